"""What figures are put together from: panels, markers with intervals, a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .svg import Point, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


def roomy(canvas: Canvas) -> None:
    """Make room between panels, so that the first figure of one axis does not touch the last of another."""
    engine: Any = canvas.get_layout_engine()
    engine.set(wspace=0.05, hspace=0.03, w_pad=0.03, h_pad=0.05)


def panels(canvas: Canvas, count: int, columns: int = 2, **options: Any) -> list[Axes]:
    """Return axes in rows of at most `columns`. options: of matplotlib's `subplots`."""
    rows = max(1, math.ceil(count / columns))
    roomy(canvas)
    grid = canvas.subplots(rows, min(columns, max(1, count)), squeeze=False, **options)
    every: list[Axes] = list(grid.flat)
    for place, axes in enumerate(every):
        axes.tick_params(length=0)
        axes.set_visible(place < count)
        if count - columns <= place < count:  # the lowest of its column, also if the last row is not full
            axes.tick_params(labelbottom=True)
    return every[:count]


def dots(
    axes: Axes,
    places: Sequence[float],
    points: Sequence[Point],
    look: Style,
    *,
    shift: float = 0,
    across: bool = False,
    scale: float = 100,
) -> None:
    """Draw markers with their intervals: values upwards at places along the axis, or `across` it. The caller sets
    limits.

    scale: 100 for percent. shift: in units of the figure, so that series at the same places do not hide each other.
    """
    from matplotlib.transforms import ScaledTranslation

    move = ScaledTranslation(0 if across else shift / 72, shift / 72 if across else 0, axes.figure.dpi_scale_trans)
    values, lows, highs = ([scale * number for number in row] for row in _columns(points))
    lines = axes.hlines if across else axes.vlines
    lines(places, lows, highs, colors=look.colour, linewidth=1.4, transform=axes.transData + move)
    x, y = (values, places) if across else (places, values)
    axes.plot(
        *(x, y),
        color=look.colour,
        marker=look.marker,
        markersize=5.5,
        linestyle="none" if across else look.line,
        linewidth=1.6,
        transform=axes.transData + move,
    )


def spread(place: int, count: int, step: float, most: float = 24) -> float:
    """Return the shift of one of `count` series, so that together they are at most `most` wide."""
    return (place - (count - 1) / 2) * min(step, most / max(count, 1))


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float], list[float]]:
    return [p.value for p in points], [p.low for p in points], [p.high for p in points]


def legend(canvas: Canvas, looks: Mapping[str, Style], lines: bool = True, columns: int = 2) -> None:
    """Draw above the panels what each series is."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=5.5, linestyle=look.line if lines else "none")
        for look in looks.values()
    ]
    # Texts are set afterwards: matplotlib leaves out labels that begin with an underscore.
    box = canvas.legend(handles, ["?"] * len(handles), loc="outside upper left", ncols=columns, handlelength=2.6)
    for text, label in zip(box.get_texts(), looks, strict=True):
        text.set_text(label)
