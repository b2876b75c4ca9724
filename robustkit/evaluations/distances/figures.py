"""Draw smallest changes: the robust accuracy at every radius, with its band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...display.svg import Figure, Point, Style, draw, labels, legend, listed, panels, percent, plain
from ...protocol.card import number
from .vocabulary import VOCABULARY, norm_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def distance_figures(
    results: Sequence[Mapping[str, Any]], texts: Sequence[str], looks: Mapping[str, Style]
) -> Iterator[Figure]:
    """Yield a figure for each condition of the family, `texts`, with a curve for each checkpoint."""
    for text in texts:
        curves: dict[str, list[tuple[float, Point]]] = {}
        for row in results:
            if row["condition"] == text and row["metric"].startswith("accuracy_at("):
                radius = float(number(row["metric"].removeprefix("accuracy_at(").removesuffix(")")))
                curves.setdefault(row["checkpoint"], []).append((radius, Point.of(row)))
        if curves:
            yield _figure(text, curves, looks)


def _figure(text: str, curves: Mapping[str, list[tuple[float, Point]]], looks: Mapping[str, Style]) -> Figure:
    norm, names = norm_of(text), labels(curves)
    unit = 255 if norm == "linf" else 1
    axis = {"linf": "radius (linf) in 1/255", "l0": "values that may change (l0)"}.get(norm, f"radius ({norm})")

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1)
        for checkpoint, points in curves.items():
            look, radii = looks[checkpoint], [unit * radius for radius, _ in points]
            low, value, high = (
                [100 * getattr(point, part) for _, point in points] for part in ("low", "value", "high")
            )
            axes.fill_between(radii, low, high, color=look.colour, alpha=0.15, linewidth=0)
            axes.plot(
                radii, value, color=look.colour, marker=look.marker, markersize=4, linestyle=look.line, linewidth=1.6
            )
        axes.set_xscale("symlog", linthresh=min(unit * points[0][0] for points in curves.values()))
        ticks = [unit * radius for radius, _ in next(iter(curves.values()))]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, 104)
        axes.set_xlabel(axis)
        axes.set_ylabel("accuracy, %")
        legend(canvas, {names[name]: looks[name] for name in curves})

    sentences = []
    for checkpoint, points in curves.items():
        shown = (f"{percent(point.value)} at {unit * radius:g}" for radius, point in points)
        sentences.append(f"{names[checkpoint]} has {', '.join(shown)}")
    label = VOCABULARY.label(text)
    return draw(
        "distances",
        f"Accuracy at every radius, {label}",
        300 + 18 * -(-len(curves) // 2),
        paint,
        alt=f"{plain(label, 90)}: {listed(sentences)}.",
        caption=f"{label}: the share of samples without a wrong point nearer than the radius; bands: 95 %.",
        name=text,
    )
