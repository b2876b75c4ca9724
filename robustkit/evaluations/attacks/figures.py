"""Draw attacks: accuracy against the radius, and the samples that stand after each stage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ...display.svg import Figure, Point, Style, dots, draw, labels, legend, listed, panels, percent, plain, spread
from ...display.text import amount
from ..metrics import SummaryRow
from .condition import UNDER, starts_from

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ...runs.manifest import Claim

METRICS = {"top1": "accuracy", "miou": "mIoU"}
AFTER = "top1_after_"
"""How the metric of what stands after a stage begins."""
_CALL = re.compile(r"([\w-]+)\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Curve:
    """A checkpoint under one attack at several radii.

    attack: its name and parameters besides eps, `pgd, steps=20`. norm: linf or l2. points: (eps, figure) in the order
    of eps, with the figure of the images that it changes at 0, where that is known.
    """

    checkpoint: str
    attack: str
    norm: str
    points: tuple[tuple[float, Point], ...]


def curves(results: Sequence[SummaryRow], claims: Mapping[str, Claim]) -> list[Curve]:
    """Return a curve for each attack (with all parameters but eps alike) and each checkpoint that it attacked."""
    starts: dict[tuple[str, str], Point] = {}
    by_curve: dict[tuple[str, str, str], dict[float, Point]] = {}
    begun = dict[str, str]()
    for row in results:
        if row["metric"] not in METRICS or row["value"] is None:
            continue
        claim = claims.get(row["condition"])
        if claim is None:
            starts[row["checkpoint"], row["condition"]] = Point.of(row)
        else:
            key = (_without_eps(row["condition"]), claim.norm, row["checkpoint"])
            begun[key[0]] = starts_from(row["condition"])
            by_curve.setdefault(key, {})[float(claim.eps)] = Point.of(row)
    order = {key[:2]: place for place, key in reversed(list(enumerate(by_curve)))}
    lines = []
    for (attack, norm, checkpoint), points in sorted(by_curve.items(), key=lambda item: order[item[0][:2]]):
        if (start := starts.get((checkpoint, begun[attack]))) is not None:
            points.setdefault(0.0, start)
        lines.append(Curve(checkpoint, attack, norm, tuple(sorted(points.items()))))
    return lines


def _without_eps(condition: str) -> str:
    form = _CALL.fullmatch(condition)
    if form is None:
        return condition
    kept = [item.strip() for item in form[2].split(",") if not item.strip().startswith(("eps=", "norm="))]
    return ", ".join([form[1], *kept])


def curve_figures(
    lines: Sequence[Curve], looks: Mapping[str, Style], metric: str, section: str, space: str
) -> Iterator[Figure]:
    """Yield a figure for each norm, with a panel for each attack."""
    for norm in dict.fromkeys(line.norm for line in lines):
        yield _curve_figure([line for line in lines if line.norm == norm], looks, metric, section, space)


def _curve_figure(lines: Sequence[Curve], looks: Mapping[str, Style], metric: str, section: str, space: str) -> Figure:
    norm, names = lines[0].norm, labels(dict.fromkeys(line.checkpoint for line in lines))
    attacks: dict[str, list[Curve]] = {}
    for line in lines:
        attacks.setdefault(line.attack, []).append(line)
    unit = 255 if norm == "linf" and space != "sigma" else 1
    axis = "eps (linf) in 1/255" if unit == 255 else f"eps ({norm})"
    axis += {"sigma": ", in σ of each channel", "normalised": ", normalised units"}.get(space, "")

    def paint(canvas: Canvas) -> None:
        grid = panels(canvas, len(attacks), sharex=True, sharey=True)
        for axes, (attack, shown) in zip(grid, attacks.items(), strict=True):
            for place, line in enumerate(shown):
                places, shift = [unit * eps for eps, _ in line.points], spread(place, len(shown), 5)
                dots(axes, places, [point for _, point in line.points], looks[line.checkpoint], shift=shift)
            axes.set_title(_wrapped(attack))
            axes.set_ylim(0, 104)
        for axes in grid[-2:]:
            axes.set_xlabel(axis)
        _ticks(grid[0], sorted({unit * eps for line in lines for eps, _ in line.points}))
        for axes in grid[::2]:
            axes.set_ylabel(f"{METRICS[metric]} in %")
        legend(canvas, {names[name]: looks[name] for name in names})

    what, title = ("Accuracy", "Robust accuracy") if metric == "top1" else ("mIoU", "mIoU")
    said = " ".join(_description(attack, shown, names, space) for attack, shown in attacks.items())
    sizes = sorted({point.n for line in lines for _, point in line.points})
    counted = f"n = {sizes[0]}" if len(sizes) == 1 else f"n from {sizes[0]} to {sizes[-1]}"
    return draw(
        section,
        f"{title} against eps, {norm}",
        40 + 18 * -(-len(names) // 2) + 215 * -(-len(attacks) // 2),
        paint,
        alt=f"{what} against eps. {said}",
        caption=f"{what} with 95 % intervals, {counted}, from unattacked samples (eps 0) on. Series are drawn a little "
        "apart so that none hides another.",
    )


def _description(attack: str, lines: Sequence[Curve], names: Mapping[str, str], space: str) -> str:
    sentences = []
    for line in lines:
        first, *rest = line.points
        start = f"{names[line.checkpoint]} has {percent(first[1].value)}"
        whole = " unattacked" if f"{UNDER}=" in line.attack else " clean"
        start += whole if first[0] == 0 else f" at {amount(first[0], line.norm, space)}"
        then = [f"{percent(point.value)} at {amount(eps, line.norm, space)}" for eps, point in rest]
        sentences.append(", ".join([start, *then]))
    return f"Under {plain(attack, 80)}: {listed(sentences)}."


def _ticks(axes: Axes, places: Sequence[float]) -> None:
    """Mark the radii themselves, unless they are too close together."""
    widest = max(places) or 1
    apart = min((b - a for a, b in pairwise(places)), default=widest)
    if apart >= 0.12 * widest:
        axes.set_xticks(places, [f"{place:.4g}" for place in places])
    axes.set_xlim(-0.09 * widest, 1.09 * widest)


def _wrapped(text: str, width: int = 28) -> str:
    """Return an attack's name, with its parameters on lines below."""
    lines = [""]
    for item in plain(text, 90).split(", "):
        if lines[-1] and len(lines[-1]) + len(item) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{item}"
    return "\n".join(lines)


def _short(condition: str) -> str:
    """Return `autoattack, eps 4/255` of `autoattack(eps=4/255,version=standard)`."""
    eps = re.search(r"\beps=([^,)]+)", condition)
    return plain(condition.partition("(")[0] + (f", eps {eps[1]}" if eps else ""), 60)


def stage_figures(results: Sequence[SummaryRow], looks: Mapping[str, Style]) -> Iterator[Figure]:
    """Yield a figure for each attack in stages: how many samples of every checkpoint stand after each."""
    after: dict[str, dict[str, dict[str, Point]]] = {}  # by condition, checkpoint and stage
    for row in results:
        if row["metric"].startswith(AFTER) and row["value"] is not None:
            checkpoints = after.setdefault(row["condition"], {})
            checkpoints.setdefault(row["checkpoint"], {})[row["metric"].removeprefix(AFTER)] = Point.of(row)
    yield from (_stage_figure(condition, checkpoints, looks) for condition, checkpoints in after.items())


def _stage_figure(condition: str, after: Mapping[str, Mapping[str, Point]], looks: Mapping[str, Style]) -> Figure:
    stages, names = list(dict.fromkeys(stage for points in after.values() for stage in points)), labels(after)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1)
        for place, (name, points) in enumerate(after.items()):
            places, shift = [stages.index(stage) for stage in points], spread(place, len(after), 7, 48)
            dots(axes, places, list(points.values()), looks[name], shift=shift)
        axes.set_xticks(range(len(stages)), stages)
        axes.set_xlim(-0.4, len(stages) - 0.6)
        axes.set_ylim(0, 104)
        axes.set_ylabel("samples standing, %")
        legend(canvas, {names[name]: looks[name] for name in names})

    sentences = []
    for name, points in after.items():
        standing = ", ".join(f"{round(point.value * point.n)} after {stage}" for stage, point in points.items())
        sentences.append(f"of {next(iter(points.values())).n} samples of {names[name]} stand {standing}")
    shown = plain(condition, 150).replace(",", ", ")  # so that a line can break
    return draw(
        "stages",
        f"Samples standing after each stage of {_short(condition)}",
        260 + 18 * -(-len(names) // 2),
        paint,
        alt=f"{plain(condition, 90)}: {listed(sentences)}.",
        caption=f"{shown}: each stage attacks the samples that the ones before left standing; 95 % intervals.",
        name=condition,
    )
