"""Show the progress of a run: bars on a terminal or under a notebook's cell; a line for each condition elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from html import escape
from importlib import import_module
from time import monotonic
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, Task, TaskID
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from .console import print_as_it_is, shorten, width_of, wrap
from .format import clock_time

_PLAN, _LINES = "robustkit.plan", "robustkit.progress"
_GAP = 2
_WIDEST_BAR, _LEAST_BAR = 24, 8
_NAME = 40  # Columns that a name takes before there is a bar, or a time
_BETWEEN = " · "
_EACH = 0.1  # seconds between two pictures of a bar


class Bars(Progress):
    """Bars that fit a terminal, the latest where there are more than lines. noun: what is counted. overall: returns a
    line about all of them, which stands below. Nothing is shown where the console is no terminal."""

    def __init__(self, console: Console, noun: str, quiet: bool = False) -> None:
        self.screen, self.noun = console, noun
        self.overall: Callable[[], str] = lambda: ""
        self.begun: dict[TaskID, None] = {}
        super().__init__(console=console, transient=True, disable=quiet or not console.is_terminal)

    def begin(self, names: Sequence[str], samples: int, task: TaskID | None = None) -> TaskID:
        """Begin a bar of that many samples, or go on with one that gets so many more. names: parts of what it is of."""
        if task is None:
            task = self.add_task("", total=samples, names=tuple(names), stage="")
        else:
            self.update(task, total=(self._tasks[task].total or 0) + samples)
        self.begun = {other: None for other in self.begun if other != task} | {task: None}
        return task

    def time_left(self) -> str:
        """Return how long the first bar will take, as a line for `overall`; empty until that is known."""
        seconds = next((task.time_remaining for task in self.tasks), None)
        return "" if seconds is None else f"about {clock_time(seconds)} left"

    def get_renderables(self) -> Iterable[RenderableType]:
        below = wrap(line, self.screen.width) if (line := self.overall()) else []
        latest = set([*self.begun][-max(1, self.screen.height - 1 - len(below)) :])
        yield self.make_tasks_table([task for task in self.tasks if task.id in latest])
        yield from (Text(line) for line in below)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        rows, width = list(tasks), self.screen.width
        counts = [f"{task.completed:.0f}/{task.total or 0:.0f} {self.noun}" for task in rows]
        times = [clock_time(task.finished_time or task.elapsed or 0) for task in rows]
        room = width - _GAP - max(map(width_of, counts), default=0)
        longest = max((width_of(_BETWEEN.join(task.fields["names"])) for task in rows), default=0)
        least = min(longest, _NAME) + max((width_of(task.fields["stage"]) for task in rows), default=0)
        taken = _GAP + max(map(width_of, times), default=0)
        timed = room - taken >= least
        room -= taken if timed else 0
        bar = max(0, min(room - _GAP - least, _WIDEST_BAR))
        bar = bar if bar >= _LEAST_BAR else 0
        room -= bar + _GAP if bar else 0
        left, right = Column(no_wrap=True), Column(no_wrap=True, justify="right")
        columns = (left, *[left] * bool(bar), right, *[right] * timed)
        table = Table.grid(*map(Column.copy, columns), padding=(0, _GAP, 0, 0), pad_edge=False)
        for task, count, time in zip(rows, counts, times, strict=True):
            cells: list[RenderableType] = [Text(_named(task.fields["names"], task.fields["stage"], room))]
            cells += [ProgressBar(task.total, task.completed, bar)] if bar else []
            cells.append(Text(count, style="progress.download"))
            table.add_row(*cells, *([Text(time, style="progress.elapsed")] if timed else []))
        return table


def _named(names: Sequence[str], stage: str, room: int) -> str:
    """Return a name and a stage in so many columns: names are shortened, the first to a third at least; where too
    little is left for them, the last one stands alone, or the stage."""
    left = room - width_of(stage) - (len(_BETWEEN) if stage else 0)
    parts = list[str]()
    for name in names[:-1] if left >= _NAME // 4 else ():
        parts.append(shorten(name, max(left - len(_BETWEEN) - width_of(names[-1]), left // 3)))
        left -= width_of(parts[-1]) + len(_BETWEEN)
    parts += [shorten(names[-1], left)] if left >= min(3, width_of(names[-1])) else []
    return _BETWEEN.join([*parts, *([shorten(stage, room)] if stage else [])])


class _ToConsole(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print_as_it_is(self.console, record.getMessage())
        except Exception:
            self.handleError(record)


class ConsoleProgress:
    """A `runs.progress.Progress` that shows a bar per condition on a terminal; elsewhere it prints what the logger
    `robustkit.progress` gets. What a run will cost is printed in both places; nothing at all if quiet."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.bars = Bars(console, "samples", quiet)
        self.tasks: dict[tuple[str, str], TaskID] = {}
        self.current = TaskID(0)
        names = [] if quiet else [_PLAN] if console.is_terminal else [_PLAN, _LINES]
        self.handler, self.loggers = _ToConsole(console), [logging.getLogger(name) for name in names]
        self.levels = [logger.level for logger in self.loggers]

    def __enter__(self) -> ConsoleProgress:
        for logger in self.loggers:
            logger.addHandler(self.handler)
            logger.setLevel(logging.INFO)
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.removeHandler(self.handler)
            logger.setLevel(level)

    def follow(self, overall: Callable[[], str]) -> None:
        """Show a line about the whole run below the bars, asked again as they are drawn."""
        self.bars.overall = overall

    def found(self, checkpoint: str, condition: str, figure: str) -> None:
        if (task := self.tasks.get((checkpoint, condition))) is not None:
            self.bars.update(task, stage=figure)

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        names = checkpoint, condition
        self.current = self.tasks[names] = self.bars.begin(names, samples, self.tasks.get(names))

    def stage(self, name: str, standing: int, share: float) -> None:
        self.bars.update(self.current, stage=f"{name}: {standing} left, {100 * share:.0f} %")

    def advance(self, samples: int) -> None:
        self.bars.advance(self.current, samples)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class NotebookProgress:
    """A `runs.progress.Progress` that shows a bar and two lines under a notebook's cell, and nothing once it ended."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, str], list[int]] = {}  # samples done, and all
        self.current, self.figure, self.drawn = ("", ""), "", 0.0
        self.overall: Callable[[], str] = lambda: ""

    def __enter__(self) -> NotebookProgress:
        theirs: Any = import_module("IPython.display")  # there, since its shell runs this
        self._html = theirs.HTML
        self._shown = theirs.display(self._html(""), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.update(self._html(""))

    def follow(self, overall: Callable[[], str]) -> None:
        self.overall = overall

    def found(self, checkpoint: str, condition: str, figure: str) -> None:
        if self.current == (checkpoint, condition):
            self.figure = figure

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.current, self.figure = (checkpoint, condition), ""
        self.begun.setdefault(self.current, [0, 0])[1] += samples
        self._draw()

    def stage(self, name: str, standing: int, share: float) -> None:
        self.figure = f"{name}: {standing} left, {100 * share:.0f} %"
        self._draw()

    def advance(self, samples: int) -> None:
        self.begun.setdefault(self.current, [0, 0])[0] += samples
        self._draw()

    def _draw(self) -> None:
        if monotonic() - self.drawn < _EACH:
            return
        self.drawn = monotonic()
        done, every = self.begun[self.current]
        named = _BETWEEN.join([*self.current, *filter(None, (self.figure,))])
        bar = f'<progress value="{done}" max="{max(every, 1)}"></progress>'
        lines = (f"{bar} {done}/{every} samples {escape(named)}", escape(self.overall()))
        self._shown.update(self._html("<br>".join(lines)))


def progress_shown(setting: Any) -> AbstractContextManager[Any]:
    """Return what gives the progress that a caller wants: bars (True), none (False), bars in a notebook only (None),
    or a listener of their own."""
    if not (setting is None or isinstance(setting, bool) or hasattr(setting, "advance")):
        raise TypeError(f"progress={setting!r}: expected True, False, None or a listener with start, advance and stage")
    if setting is None or setting is True:
        if in_notebook():
            return NotebookProgress()
        return ConsoleProgress(Console(stderr=True)) if setting else nullcontext()
    return nullcontext(setting or None)
