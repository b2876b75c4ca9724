"""The QUEST paper's tables next to ours: differences paired by sample, and whether the published order shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from robustkit.common.differences import Difference
from robustkit.errors import RobustkitError
from robustkit.evaluations.corruptions.sets import SETS
from robustkit.evaluations.kinds import words_of
from robustkit.results.paired import Side, paired_difference
from robustkit.results.published import read_published
from robustkit.results.run import Run

Row = dict[str, Any]

LEVELS = ("top1", "top5", "nll")
LOCALISED = ("cam_pixel_accuracy", "cam_iou", "cam_dice")
MAPS = {
    "agcam": LOCALISED,
    "agcam-mask": LOCALISED,
    "agcam-faithfulness": ("abpc",),
    "agcam-stability": ("rank_correlation", "map_iou"),
}
OVER_CONTROL = (*LOCALISED, "abpc")
UNITS = {
    "top1": ("top-1 %", 100, 1),
    "top5": ("top-5 %", 100, 1),
    "nll": ("NLL", 1, 3),
    "mean_error": ("mean error %", 100, 1),
    "mce_16": ("mCE of 16 corruptions", 100, 1),
    "cam_pixel_accuracy": ("pixel accuracy %", 100, 1),
    "cam_iou": ("IoU %", 100, 1),
    "cam_dice": ("DICE", 1, 3),
    "abpc": ("ABPC", 1, 3),
    "rank_correlation": ("rank correlation", 1, 3),
    "map_iou": ("IoU at 0.5", 1, 3),
}
"""Heading, factor and digits of each figure."""
PUBLISHED_AS = {"mean_error": "mce_16"}
UNJUDGED = ("top5",)
"""Figures that follow another one so closely that a verdict on them would count the same evidence twice."""
LOWER = ("nll", "mean_error")
"""Figures that are better where they are lower."""
AGAINST = {"quest": ("standard",), "elliptical": ("standard",), "elliptical-quest": ("standard", "elliptical")}
UNRESOLVED = {"top1": 0.002, "nll": 0.005}
"""Published gaps below these are what another seed changes in the paper; there is no order to look for."""


def published_figures() -> dict[str, Any]:
    """Return the paper's tables: by attention, then condition, then metric."""
    tables = asdict(read_published("quest"))
    figures = tables.pop("figures")
    return {**tables, **figures}


@dataclass(frozen=True)
class Line:
    """A checkpoint under one condition: ours, the difference from standard attention, and the published figures."""

    attention: str
    ours: dict[str, Row]
    differences: dict[str, Difference]
    published: dict[str, float]


@dataclass(frozen=True)
class Gap:
    """How far one attention is ahead of another: published and ours. sign: 1 where more is better, else -1."""

    card: str
    name: str
    metric: str
    attention: str
    against: str
    published: float
    ours: Difference
    sign: int

    def verdict(self, p_value: float) -> str:
        """Return what becomes of the published order. p_value: of no difference here, corrected for their number."""
        if not p_value <= 0.05:
            return "cannot tell"
        return "shown" if self.ours.value * self.published > 0 else "the opposite"


@dataclass(frozen=True)
class Comparison:
    """All checkpoints under one condition. name: as the published tables know it."""

    card: str
    name: str
    condition: str
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    gaps: tuple[Gap, ...]


def baseline(name: str, attention: str) -> None:
    """Raise RobustkitError where the checkpoint that the others are compared with does not have standard attention."""
    if attention != "standard":
        raise RobustkitError(f"{name} has {attention} attention; expected one with standard attention first")


def comparisons(run: Run, published: dict[str, Any]) -> Iterator[Comparison]:
    """Yield every condition of a run that the page knows, maps last, for the checkpoints that the run was last asked
    for.

    Raises:
        RobustkitError: the first checkpoint has another attention than standard.
    """
    rows = run.summary()
    asked = list(map(str, run.manifest.arguments["checkpoints"]))
    ours = sorted((c for c in run.manifest.checkpoints if c.spec in asked), key=lambda c: asked.index(c.spec))
    of = {known.name: known.attention for known in ours}
    known = list(of)
    baseline(known[0], of[known[0]])
    card = run.manifest.protocol.tag
    conditions = {
        row["condition"]: words_of(row["condition"]).published_name(row["condition"])
        for row in rows
        if row["metric"] in UNITS
    }
    order = list(MAPS)
    for condition, name in sorted(conditions.items(), key=lambda item: order.index(item[1]) if item[1] in MAPS else -1):
        if not name:
            continue
        wanted = MAPS.get(name, ("mean_error",) if name in SETS else LEVELS)
        # The paper's attacks are those of its own protocol; under another card there is nothing to compare with.
        fits = name not in ("fgsm", "pgd", "spsa", "autoattack") or card.startswith(published["protocol"])
        lines = []
        for checkpoint in known:
            metrics_of = {r["metric"]: r for r in rows if (r["checkpoint"], r["condition"]) == (checkpoint, condition)}
            metrics = tuple(metric for metric in wanted if metric in metrics_of)
            differences = {
                m: paired_difference(Side(run, known[0]), Side(run, checkpoint), condition, m) for m in metrics
            }
            figures = published.get(of[checkpoint], {}).get(name, {}) if fits else {}
            lines.append(Line(_label(checkpoint, of), metrics_of, differences, figures))
        gaps = _gaps(run, card, condition, name, metrics, of, published) if fits else ()
        yield Comparison(card, name, condition, metrics, tuple(lines), tuple(gaps))


def _label(checkpoint: str, of: dict[str, str]) -> str:
    """Return the attention, or the checkpoint's name where several have it."""
    return of[checkpoint] if list(of.values()).count(of[checkpoint]) == 1 else checkpoint


def _gaps(
    run: Run,
    card: str,
    condition: str,
    name: str,
    metrics: Sequence[str],
    of: dict[str, str],
    published: dict[str, Any],
) -> Iterator[Gap]:
    alone = {attention: checkpoint for checkpoint, attention in of.items() if _label(checkpoint, of) == attention}
    for attention, others in AGAINST.items():
        for against in others:
            for metric in metrics:
                levels = [
                    published.get(a, {}).get(name, {}).get(PUBLISHED_AS.get(metric, metric))
                    for a in (against, attention)
                ]
                if metric in UNJUDGED or None in levels or not {attention, against} <= alone.keys():
                    continue
                gap = levels[1] - levels[0]
                if abs(gap) > UNRESOLVED.get(metric, 0):
                    ours = paired_difference(Side(run, alone[against]), Side(run, alone[attention]), condition, metric)
                    sign = -1 if metric in LOWER else 1
                    yield Gap(card, name, metric, attention, against, gap, ours, sign)
