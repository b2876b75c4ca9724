"""The one figure of the first screen: the task's metric under all that was asked, with intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..display.panels import dots, legend, panels, spread
from ..display.svg import Figure, Point, Style, draw, labels, listed, percent, plain
from ..evaluations.results import Results
from ..results.comparison import Asked
from ..tasks.measures import metric_of
from ..tasks.task import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MOST = 8  # checkpoints in one figure
_HEIGHT = 24  # units of a row; more where many checkpoints share it


def front_figure(rows: Sequence[Asked], results: Results, looks: Mapping[str, Style]) -> Figure | None:
    """Return a row of dots for each condition with the task's metric, or an error that is its complement."""
    headline = task_of(results.manifest).headline_metric
    drawn = [entry for entry in rows if entry.metric == headline.name or _is_error(entry.metric)]
    if headline.scale != 100:  # the axis is of shares
        return None
    names = results.manifest.names[:_MOST]
    points = {name: [_point(results, name, entry) for entry in drawn] for name in names}
    if len(drawn) < 2 or not any(math.isfinite(point.value) for some in points.values() for point in some):
        return None
    short, titles = labels(names, 24), _titles(drawn)
    word = headline.noun or headline.word
    heading = word if word[1:2].isupper() else word[:1].upper() + word[1:]  # mIoU
    height = max(_HEIGHT, 7 * len(names) + 8)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1, columns=1)
        for place, name in enumerate(names):
            shift = -spread(place, len(names), 7, height - 6)
            dots(axes, range(len(drawn)), points[name], looks[name], shift=shift, across=True)
        axes.set(xlim=(0, 100), ylim=(len(drawn) - 0.4, -0.6))
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.set_xlabel(f"{word} in %")
        axes.set_yticks(range(len(drawn)), titles)
        axes.grid(axis="y", visible=False)
        if len(names) > 1:
            legend(canvas, {short[name]: looks[name] for name in names}, lines=False)

    said = [f"{short[name]}: {_spoken(titles, points[name])}" for name in names]
    every = len(results.manifest.names)
    more = f" The first {_MOST} of {every} checkpoints." if every > _MOST else ""
    error = "; under corruption, one minus the mean error" if any(_is_error(entry.metric) for entry in drawn) else ""
    return draw(
        "front",
        f"{heading} under all that was asked",
        70 + 18 * math.ceil(len(names) / 2) * (len(names) > 1) + height * len(drawn),
        paint,
        alt=f"{word} in percent. {listed(said)}.",
        caption=f"{heading} with 95 % intervals{error}.{more}",
    )


def _spoken(titles: Sequence[str], points: Sequence[Point]) -> str:
    return ", ".join(f"{title} {percent(point.value)}" for title, point in zip(titles, points, strict=True))


def _is_error(name: str) -> bool:
    metric = metric_of(name)
    return metric.better < 0 and metric.share


def _point(results: Results, name: str, entry: Asked) -> Point:
    row = results.cells[name].get(entry.key)
    if row is None:
        return Point(math.nan, math.nan, math.nan, 0)
    point = Point.of(row)
    return point.complement if _is_error(entry.metric) else point


def _titles(rows: Sequence[Asked]) -> list[str]:
    """Return what conditions are called, without what distinguishes none of them."""
    short = [", ".join(entry.called.split(", ")[:2]) for entry in rows]
    count = Counter(short)
    return [plain(entry.called if count[text] > 1 else text, 30) for entry, text in zip(rows, short, strict=True)]
