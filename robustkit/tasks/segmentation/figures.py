"""Segmentation as figures: the IoU of each class, clean and under what is worst for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...display.panels import dots, legend, panels
from ...display.svg import Figure, Point, draw, labels, listed, percent, plain, style
from ...evaluations.kinds import is_over_groups, kind_of, words_of
from ...protocol.condition import CLEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST = 24
"""Classes that are drawn."""
_TOGETHER = 4  # checkpoints in a figure


@dataclass(frozen=True)
class Classes:
    """The IoU of each class of a checkpoint: clean, under the worst attack, and as means over corruptions."""

    checkpoint: str
    points: Mapping[str, Mapping[str, Point]]


def class_ious(results: Sequence[Mapping[str, Any]], claims: Mapping[str, Any]) -> list[Classes]:
    """Return those of every checkpoint, under `in-c` where it was evaluated whole, else under each set that was."""
    found: dict[str, dict[str, dict[str, Point]]] = {}
    miou: dict[str, dict[str, float]] = {}
    for row in results:
        if row["value"] is None:
            continue
        if row["metric"] == "miou":
            miou.setdefault(row["checkpoint"], {})[row["condition"]] = float(row["value"])
        elif row["metric"].startswith("iou("):
            own = found.setdefault(row["checkpoint"], {}).setdefault(row["condition"], {})
            own[row["metric"][4:-1]] = Point.of(row)
    return [
        Classes(checkpoint, {condition: own[condition] for condition in _shown(own, miou.get(checkpoint, {}), claims)})
        for checkpoint, own in found.items()
    ]


def _shown(own: Mapping[str, Any], miou: Mapping[str, float], claims: Mapping[str, Any]) -> list[str]:
    attacked = [condition for condition in own if condition in claims and math.isfinite(miou.get(condition, math.nan))]
    sets = [condition for condition in own if is_over_groups(condition)]
    whole = [condition for condition in sets if kind_of(condition) == words_of(condition).benchmark]
    chosen = [*([CLEAN.text] if CLEAN.text in own else []), *(whole or sets)]
    return [*chosen, *([min(attacked, key=lambda condition: miou[condition])] if attacked else [])]


def class_figures(found: Sequence[Classes]) -> Iterator[Figure]:
    """Yield a figure for some checkpoints, a panel for each; classes by their clean IoU of the first checkpoint."""
    if not found:
        return
    conditions = list(dict.fromkeys(condition for one in found for condition in one.points))
    every = list(dict.fromkeys(name for one in found for points in one.points.values() for name in points))
    first = found[0].points.get(conditions[0], {})
    order = sorted(every, key=lambda name: first[name].value if name in first else math.inf)
    chosen = order[:MOST]
    classes, keys = labels(chosen, 20), labels(conditions, 44)
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    for start in range(0, len(found), _TOGETHER):
        own = found[start : start + _TOGETHER]
        names = labels((one.checkpoint for one in own), 22)

        def paint(canvas: Canvas, own: Sequence[Classes] = own, names: Mapping[str, str] = names) -> None:
            grid = panels(canvas, len(own), sharex=True, sharey=True)
            for axes, one in zip(grid, own, strict=True):
                for condition, points in one.points.items():
                    rows = [row for row, name in enumerate(chosen) if name in points]
                    bare = [Point(points[chosen[row]].value, math.nan, math.nan, points[chosen[row]].n) for row in rows]
                    dots(axes, rows, bare, looks[condition], across=True)
                axes.set_title(names[one.checkpoint])
                axes.set_xlim(-3, 103)
            for axes in grid[-2:]:
                axes.set_xlabel("IoU in %")
            for axes in grid[::2]:
                axes.set_yticks(range(len(chosen)), [classes[name] for name in chosen])
                axes.set_ylim(len(chosen) - 0.5, -0.5)
            legend(canvas, {keys[name]: look for name, look in looks.items()}, lines=False)

        several = f", checkpoints {start + 1} to {start + len(own)}" if len(found) > _TOGETHER else ""
        lowest = f" The {MOST} of {len(every)} classes that are lowest." if len(every) > MOST else ""
        yield draw(
            "segmentation",
            f"IoU by class{several}",
            20 + 18 * -(-len(keys) // 2) + (58 + 17 * len(chosen)) * -(-len(own) // 2),
            paint,
            alt=f"IoU by class. {listed([_told(one, names[one.checkpoint]) for one in own])}.",
            caption=f"Classes by the IoU of {plain(found[0].checkpoint, 40)}, {plain(conditions[0], 60)}, lowest "
            f"first.{lowest} Intervals and numbers are in the tables.",
            name=" ".join(one.checkpoint for one in own),
        )


def _told(one: Classes, name: str) -> str:
    """Say the lowest classes of each condition."""
    sentences = []
    for condition, points in one.points.items():
        low = sorted((point.value, known) for known, point in points.items())[:2]
        said = " and ".join(f"{plain(known, 40)} with {percent(value)}" for value, known in low)
        sentences.append(f"{plain(condition, 60)} lowest {said}")
    return f"{name}: {', '.join(sentences)}"
