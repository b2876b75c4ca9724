"""A family of evaluations: all that is known of one kind of condition, behind one seam.

A family is loaded when a condition of its kind is met (`vocabulary.FOLDERS`), and what computes of it only when
something is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ..protocol.condition import Condition, Value
from ..protocol.parameters import parse_parameters, show
from .vocabulary import EVERY_FAMILY, FOLDERS, Vocabulary, kind_of, module_of

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table
    from rich.text import Text

    from ..common.plugins import Plugin
    from ..common.randomness import SampleRng
    from ..display.section import Section
    from ..display.svg import Style
    from ..display.table import TextTable
    from ..protocol.card import Card
    from ..protocol.pattern import ConditionPattern
    from ..runs.folder import RunFolder
    from .metric import Metric
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

    Of a family that a plug-in brings, also
    parameters: of its conditions, each with its usual value, which tells the type. metrics: its own numbers.
    in_results: whether its conditions stand in the task's table of results.
    """

    name: ClassVar[str]
    parameters: ClassVar[Mapping[str, Value]] = {}
    metrics: ClassVar[tuple[Metric, ...]] = ()
    in_results: ClassVar[bool] = False

    @property
    def vocabulary(self) -> Vocabulary:
        """The words of its conditions, where it comes from a plug-in."""
        return ParameterWords(self)

    def parse(self, text: str) -> Condition:
        """Return the condition that a text means: `rotation(degrees=30)`, all parameters named.

        Raises:
            ProtocolError: an unknown parameter, or a value of the wrong kind.
        """
        kind, given = parse_parameters(text, self.parameters)
        inside = ",".join(f"{key}={show(value)}" for key, value in given.items())
        return Condition(kind, f"{kind}({inside})" if inside else kind, tuple(given.items()))

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

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        """Return the plug-ins that a condition needs."""
        plugged = EVERY_FAMILY.plugin(condition.name)
        return () if plugged is None else (plugged,)

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


class ParameterWords(Vocabulary):
    """The words of a plug-in's family, whose conditions are texts such as `rotation(degrees=30)`."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.in_results = family.in_results  # type: ignore[misc]

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        self._family.parse(pattern.text)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--evaluations", pattern.text)


def families(conditions: Iterable[str] = ()) -> list[Family]:
    """Return robustkit's families once each, and those of plug-ins that some of these conditions are of."""
    plugged = [kind for kind in dict.fromkeys(map(kind_of, conditions)) if EVERY_FAMILY.plugin(kind)]
    return list({family.name: family for family in map(family_of, (*FOLDERS, "", *plugged))}.values())


def family_of(kind: str) -> Family:
    """Return the family of the conditions of a kind, such as `cam`."""
    plugged = EVERY_FAMILY.plugin(kind)
    family: Family = EVERY_FAMILY.load(plugged) if plugged else module_of(kind, "family").FAMILY
    return family
