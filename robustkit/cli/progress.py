"""Show the progress of a run: bars on a terminal, a line for each finished condition elsewhere."""

from __future__ import annotations

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

_PLAN, _LINES = "robustkit.plan", "robustkit.progress"


class _ToConsole(logging.Handler):
    """Prints what a logger is told."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.console.print(record.getMessage(), markup=False, highlight=False, soft_wrap=True)
        except Exception:
            self.handleError(record)


class ConsoleProgress:
    """A `runs.progress.Progress` that shows a bar per condition on a terminal.

    Elsewhere it prints what the logger `robustkit.progress` is told while the context lasts. What a run will cost is
    printed in both places. quiet: print nothing at all.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("samples"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.current = ""
        names = [] if quiet else [_PLAN] if console.is_terminal else [_PLAN, _LINES]
        self.handler, self.loggers = _ToConsole(console), [logging.getLogger(name) for name in names]
        self.levels = [logger.level for logger in self.loggers]

    def __enter__(self) -> ConsoleProgress:
        for logger in self.loggers:
            logger.addHandler(self.handler)
            logger.setLevel(logging.INFO)
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.removeHandler(self.handler)
            logger.setLevel(level)

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.current = f"{checkpoint} · {condition}"
        if self.current not in self.tasks:
            self.tasks[self.current] = self.bars.add_task(self.current, total=0)
        task = self.bars.tasks[self.tasks[self.current]]
        self.bars.update(task.id, total=(task.total or 0) + samples)

    def stage(self, name: str, standing: int, share: float) -> None:
        """Show a stage of an attack next to the bar."""
        text = f"{self.current} · {name}: {standing} stand, {share:.0%}"
        self.bars.update(self.tasks[self.current], description=text)

    def advance(self, samples: int) -> None:
        self.bars.advance(self.tasks[self.current], samples)
