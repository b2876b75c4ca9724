"""A task: how models of one kind are summarised and shown, behind one seam."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ..display.section import Section
    from ..evaluations.family import Looks, Results
    from ..evaluations.rows import Parts, Reading
    from ..runs.folder import RunFolder
    from ..runs.manifest import Manifest


class Task:
    """What models of one kind are asked.

    name: as cards and run.json have it. headline: the metric that a gate means where a rule names none.
    compared: whether the terminal shows checkpoints compared.
    """

    name: ClassVar[str]
    headline: ClassVar[str]
    compared: ClassVar[bool] = False

    def rows(self, reading: Reading, conditions: Sequence[str]) -> Parts:
        """Return the rows of a checkpoint: of single conditions, of means over conditions, and of several together."""
        raise NotImplementedError

    def flag_lines(self, run: RunFolder, results: Results) -> Iterable[str]:
        """Return what raises a doubt about rows of the summary, a line each, with what bears it."""
        raise NotImplementedError

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        """Return the tables of a run for a terminal."""
        raise NotImplementedError

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        """Return the parts of the page that show the results. looks: how each checkpoint is drawn."""
        raise NotImplementedError


TASKS = {"classification": "classification.task", "segmentation": "segmentation.task"}


def task_of(manifest: Manifest) -> Task:
    """Return the task of a run by its run.json."""
    name = manifest.protocol.task
    task: Task = import_module(f"{__package__}.{TASKS[name]}").TASK
    return task
