"""Draw scores of maps as dots, next to the controls that do not look at the image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...display.svg import Figure, Point, Style, dots, draw, labels, legend, listed, panels, spread
from ..map_methods import CONTROLS, method_names
from .condition import parts_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SCORES = {
    ("cam_iou", "mask"): "IoU of pixels",
    ("cam_iou", "box"): "IoU of boxes",
    ("pointing_game", ""): "pointing game",
    ("energy_inside", ""): "energy inside",
    ("pxap", ""): "PxAP",
    ("abpc", ""): "ABPC",
    ("road", ""): "ROAD",
    ("insertion_auc", ""): "insertion",
    ("deletion_auc", ""): "deletion ↓",
}
"""The metric and mode of the scores that are drawn; the tables have all."""


def score_called(metric: str, mode: str, only_boxes: bool) -> str:
    """Return what a score of `SCORES` is called. only_boxes: whether there are no masks, so that pixels are compared
    with boxes.
    """
    return "IoU with boxes" if only_boxes and (metric, mode) == ("cam_iou", "mask") else SCORES[metric, mode]


@dataclass(frozen=True)
class Score:
    """One score of the maps of one checkpoint. kind: the parameters that the methods share, as in a condition.

    score: of `SCORES`. points: by method, those of interest first, then the controls.
    """

    checkpoint: str
    kind: str
    score: str
    points: Mapping[str, Point]


def scores(results: Sequence[Mapping[str, Any]], only_boxes: bool = False) -> list[Score]:
    """Return the scores of all checkpoints, in the order of `SCORES`. only_boxes: whether there are no masks."""
    by_score: dict[tuple[str, str, str], dict[str, Point]] = {}
    for row in results:
        parts = parts_of(row["condition"])
        if parts is None or parts[0].under or row["value"] is None or (row["metric"], parts[1]) not in SCORES:
            continue
        kind = parts[0].kind.text.removeprefix("cam(").rstrip(")").lstrip(",")
        key = row["checkpoint"], kind, score_called(row["metric"], parts[1], only_boxes)
        by_score.setdefault(key, {})[parts[0].called] = Point.of(row)
    order = [score_called(*key, only_boxes) for key in SCORES]
    every = sorted(by_score.items(), key=lambda item: order.index(item[0][2]))
    return [Score(*key, {name: points[name] for name in sorted(points, key=_place)}) for key, points in every]


def _place(called: str) -> tuple[int, str]:
    """Return where a method stands among all, with options after without."""
    return method_names().index(called.partition("(")[0]), called


def map_figures(entries: Sequence[Score], looks: Mapping[str, Style]) -> Iterator[Figure]:
    """Yield a figure for each kind of map, with a panel for each score."""
    for kind in dict.fromkeys(entry.kind for entry in entries):
        group = [entry for entry in entries if entry.kind == kind]
        shown = list(dict.fromkeys(entry.score for entry in group))
        methods = sorted({name for entry in group for name in entry.points}, key=_place)
        names = labels(entry.checkpoint for entry in group)

        def paint(
            canvas: Canvas,
            group: Sequence[Score] = group,
            shown: Sequence[str] = shown,
            methods: Sequence[str] = methods,
            names: Mapping[str, str] = names,
        ) -> None:
            grid = panels(canvas, len(shown), sharey=True)
            for axes, score in zip(grid, shown, strict=True):
                rivals = [entry for entry in group if entry.score == score]
                for place, entry in enumerate(rivals):
                    rows = [row for row, method in enumerate(methods) if method in entry.points]
                    points = [entry.points[methods[row]] for row in rows]
                    shift = -spread(place, len(rivals), 8, 34)
                    dots(axes, rows, points, looks[entry.checkpoint], shift=shift, across=True, scale=1)
                axes.set_title(score)
                axes.set_xlim(*_limits(rivals))
                axes.locator_params(axis="x", nbins=4)
                axes.grid(visible=False, axis="y")
                ink = axes.spines["left"].get_edgecolor()
                for row in range(len(methods) - 1):  # rows hold several series: lines part them
                    axes.axhline(row + 0.5, color=ink, alpha=0.25, linewidth=0.8)
            for axes in grid[::2]:
                axes.set_yticks(range(len(methods)), [f"{m} (control)" if m in CONTROLS else m for m in methods])
                axes.set_ylim(len(methods) - 0.5, -0.5)
            legend(canvas, {names[name]: looks[name] for name in names}, lines=False)

        said = [_description(score, [entry for entry in group if entry.score == score], names) for score in shown]
        yield draw(
            "maps",
            f"Scores of maps next to controls{f' ({kind})' if kind else ''}",
            20 + 18 * -(-len(names) // 2) + (52 + 42 * len(methods)) * -(-len(shown) // 2),
            paint,
            alt=" ".join(said),
            caption="With 95 % intervals. Controls do not look at the image: a map is informative where it "
            "is better than all of them."
            + (" Lower is better with ↓, higher otherwise." if any("↓" in score for score in shown) else ""),
        )


def _limits(rivals: Sequence[Score]) -> tuple[float, float]:
    """Return limits that contain all figures and intervals, with a margin."""
    every = [bound for entry in rivals for p in entry.points.values() for bound in (p.value, p.low, p.high)]
    finite = [bound for bound in every if math.isfinite(bound)]
    pad = 0.06 * (max(finite) - min(finite)) or 0.05
    return min(finite) - pad, max(finite) + pad


def _description(score: str, rivals: Sequence[Score], names: Mapping[str, str]) -> str:
    sentences = []
    for entry in rivals:
        mine = [f"{name} {_figure(point)}" for name, point in entry.points.items() if name not in CONTROLS]
        controls = {name: point.value for name, point in entry.points.items() if name in CONTROLS}
        if controls:
            pick = min if "↓" in score else max
            best = pick(controls, key=lambda name: controls[name])
            mine.append(f"best control {best} {_figure(entry.points[best])}")
        sentences.append(f"{names[entry.checkpoint]}: {', '.join(mine)}")
    return f"{score.replace(' ↓', ', lower is better')}. {listed(sentences)}."


def _figure(point: Point) -> str:
    return f"{point.value:.3f}"
