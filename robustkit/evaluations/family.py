"""A family of evaluations: all that is known of one kind of condition, behind one seam.

A family is loaded when a condition of its kind is met (`vocabulary.FOLDERS`), and what computes of it only when
something is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from .vocabulary import FOLDERS, folder_of

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table
    from rich.text import Text

    from ..common.randomness import SampleRng
    from ..display.section import Section
    from ..display.svg import Style
    from ..display.table import TextTable
    from ..protocol.card import Card
    from ..protocol.condition import Condition
    from ..runs.folder import RunFolder
    from .rows import Reading, Row
    from .subject import Batch, Evaluation, Shown, Subject

    Results = Sequence[Mapping[str, Any]]
    """Rows of the summary."""
    Looks = Mapping[str, Style]
    """How a checkpoint looks in all figures, by its name."""


class Summary:
    """The results of one checkpoint under the conditions of a family that has records of its own kind."""

    def add(self, condition: str) -> Iterable[Row]:
        """Return the rows of one condition, in the order of the run."""
        raise NotImplementedError

    def finish(self) -> Iterable[Row]:
        """Return the rows that take several conditions."""
        return ()


class Overview:
    """What a family makes of a checkpoint's results on images, whatever condition shows them."""

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        """Take the rows of a condition whose samples could be read; there are some."""

    def flags(self) -> Mapping[str, Sequence[str]]:
        """Return flags that only show beside other conditions, by condition."""
        return {}

    def rows(self) -> Iterable[Row]:
        """Return rows of several conditions together."""
        return ()


class Family:
    """One kind of evaluation. A family of conditions that change images says what they show; another one evaluates.

    name: for people.
    """

    name: ClassVar[str]

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        """The columns that its records have beside the task's."""
        return {}

    def summary(self, reading: Reading) -> Summary | None:
        """Return what summarises its records; None where the task does, since they are of images shown."""
        return None

    def overview(self, reading: Reading) -> Overview | None:
        """Return what it makes of all results on images of a checkpoint; None for nothing."""
        return None

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        """Return flags of a condition whose samples, `read`, the task scores."""
        return []

    def tables(self, results: Results) -> Sequence[TextTable]:
        """Return the tables of its rows of the summary."""
        return ()

    def flag_lines(self, results: Results) -> Iterable[str]:
        """Return what raises a doubt about its rows, a line each, with what bears it."""
        return (flag for table in self.tables(results) for flag in table.flags)

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        """Return its tables for a terminal, without their flags."""
        from ..display.console import terminal_tables

        return terminal_tables([replace(table, flags=()) for table in self.tables(results)])

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        """Return its parts of the page. looks: how each checkpoint is drawn."""
        from ..display.section import of_tables

        if tables := self.tables(results):
            yield of_tables(self.name, self.name.capitalize(), tuple(tables))

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        """Whether it makes batches by itself, from a whole shard."""
        return False

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        """Return what the condition makes the network see."""
        raise NotImplementedError(f"{self.name} shows no images of its own")

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return the columns of a batch: by default, how the model does on what the condition shows."""
        from .shown import score_shown

        return score_shown(subject, batch, condition, self.show(subject, batch, condition, rng))


def families() -> list[Family]:
    """Return every family once."""
    return list({family.name: family for family in map(family_of, (*FOLDERS, ""))}.values())


def family_of(kind: str) -> Family:
    """Return the family of the conditions of a kind, such as `cam`."""
    family: Family = import_module(f"{__package__}.{folder_of(kind)}.family").FAMILY
    return family
