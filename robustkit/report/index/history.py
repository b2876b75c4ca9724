"""Show how the figures of a checkpoint's name went over runs on the same data under the same card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ...display.panels import dots, legend, spread
from ...display.svg import Figure, Point, draw, labels, style
from ...tasks.measures import find_metric
from .reading import IndexCheckpoint, IndexFigure, IndexRun
from .words import figure_name, figure_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SERIES = 4  # in a chart
CHARTS = 24  # drawn, of the names with the newest runs; the others have their tables

Key = tuple[str, str]
"""Condition and metric."""


@dataclass(frozen=True)
class History:
    """A checkpoint's name on one data set under one card. runs: the oldest first, with what the checkpoint was there.

    keys: of the figures shown. chart: None where there is one run only.
    """

    name: str
    data: str
    card: str
    runs: tuple[tuple[str, IndexRun, IndexCheckpoint], ...]
    keys: tuple[Key, ...]
    chart: Figure | None = None

    @property
    def headings(self) -> list[str]:
        """The names of the figures."""
        return [figure_name(*key) for key in self.keys]

    def cells(self, checkpoint: IndexCheckpoint) -> list[str]:
        """Return the figures of one run as texts; a dash where it has none."""
        there = _by_key(checkpoint)
        return [figure_text(there[key]) if key in there else "–" for key in self.keys]


@dataclass
class Pairs:
    """Comparisons of consecutive runs of a name, by (older, newer).

    pages: where those that were computed lie. failed: why some cannot be. waiting: those for which there was no time.
    """

    pages: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)


def histories(runs: Mapping[str, IndexRun]) -> list[History]:
    """Return the history of each name that several runs have, with charts for the first of them. runs: newest first."""
    groups: dict[tuple[str, ...], list[tuple[str, IndexRun, IndexCheckpoint]]] = {}
    for path, run in runs.items():
        for checkpoint in run.checkpoints:
            if checkpoint.figures:
                key = (checkpoint.name, run.data_digest, run.card, run.task)
                groups.setdefault(key, []).append((path, run, checkpoint))
    result = list[History]()
    for (name, *_), newest_first in groups.items():
        if len(newest_first) < 2:
            continue
        keys = tuple((f.condition, f.metric) for f in newest_first[0][2].figures if f.chief)
        run, entries = newest_first[0][1], tuple(reversed(newest_first))
        chart = _chart(name, keys, entries) if len(result) < CHARTS else None
        result.append(History(name, f"{run.n} samples of {run.data}", run.card, entries, keys, chart))
    return result


def consecutive(runs: Mapping[str, IndexRun]) -> Iterator[tuple[str, str]]:
    """Yield (older, newer) paths of runs that follow each other in the history of a name, the newest first, once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, run in runs.items():
        for checkpoint in run.checkpoints:
            if checkpoint.figures:
                groups.setdefault((checkpoint.name, run.data_digest, run.card, run.task), []).append(path)
    pairs = {(older, newer) for group in groups.values() for newer, older in pairwise(group)}
    place = {path: number for number, path in enumerate(runs)}
    yield from sorted(pairs, key=lambda pair: (place[pair[1]], place[pair[0]]))


def _by_key(checkpoint: IndexCheckpoint) -> dict[Key, IndexFigure]:
    return {(figure.condition, figure.metric): figure for figure in checkpoint.figures}


def _chart(name: str, keys: Sequence[Key], entries: Sequence[tuple[str, IndexRun, IndexCheckpoint]]) -> Figure | None:
    """Draw the figures in percent over the runs, with their intervals."""
    shown = [key for key in keys if (metric := find_metric(key[1])) and metric.scale == 100][:SERIES]
    if not shown:
        return None
    series = {key: [_by_key(checkpoint).get(key) for _, _, checkpoint in entries] for key in shown}
    named = labels((figure_name(*key) for key in shown), 44)
    looks = {named[figure_name(*key)]: style(place) for place, key in enumerate(shown)}
    points = [_point(figure) for key in shown for figure in series[key] if figure is not None]
    ends = [100 * end for point in points for end in (point.low, point.high)]

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for place, (key, look) in enumerate(zip(shown, looks.values(), strict=True)):
            there = [(at, figure) for at, figure in enumerate(series[key]) if figure is not None]
            marks = [_point(figure) for _, figure in there]
            dots(axes, [at for at, _ in there], marks, look, shift=spread(place, len(shown), 5))
        axes.set_xlim(-0.5, len(entries) - 0.5)
        axes.set_ylim(min(0, *ends) - 3, max(ends) + 3)
        step = max(1, len(entries) // 6)
        places = list(range(0, len(entries), step))
        axes.set_xticks(places, [entries[at][1].started[:10] for at in places])
        axes.set_ylabel("%")
        axes.tick_params(length=0)
        legend(canvas, looks, columns=1)

    said = [
        f"{figure_name(*key)}: {', '.join('none' if figure is None else figure_text(figure) for figure in series[key])}"
        for key in shown
    ]
    alt = f"{name} over {len(entries)} runs, the oldest first. {'; '.join(said)}"
    return draw(
        *("history", f"{name} over {len(entries)} runs", 190 + 16 * len(shown), paint),
        alt=alt[:4000],
        caption="Each mark is a run, its bar the 95 % interval; runs are in the order in which they began.",
        name="\n".join(path for path, _, _ in entries),
    )


def _point(figure: IndexFigure) -> Point:
    low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
    return Point(figure.value, low, high, figure.n)
