"""Show the progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class ConsoleProgress:
    """A `runs.progress.Progress` that shows a bar per condition, and a line at its end."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("samples"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.current = ""
        self.said = ""
        self.counted: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.since = time.monotonic()

    def __enter__(self) -> ConsoleProgress:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
        for name, count in self.counted.items():
            self.console.print(f"{name}: {count} samples, {self.seconds[name]:.1f} s", markup=False, highlight=False)

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.current = f"{checkpoint} · {condition}"
        self.since = time.monotonic()
        if self.current not in self.tasks:
            self.tasks[self.current] = self.bars.add_task(self.current, total=0)
        task = self.bars.tasks[self.tasks[self.current]]
        self.bars.update(task.id, total=(task.total or 0) + samples)

    def stage(self, name: str, standing: int, share: float) -> None:
        """Show a stage of an attack beside the bar, or without one as a line when it begins."""
        if self.console.is_terminal:
            text = f"{self.current} · {name}: {standing} stand, {share:.0%}"
            self.bars.update(self.tasks[self.current], description=text)
        elif self.said != (said := f"{self.current} · {name}"):
            self.said = said
            self.console.print(f"{said} begins with {standing} standing", markup=False, highlight=False)

    def advance(self, samples: int) -> None:
        self.bars.advance(self.tasks[self.current], samples)
        now = time.monotonic()
        self.counted[self.current] = self.counted.get(self.current, 0) + samples
        self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self.since
        self.since = now
