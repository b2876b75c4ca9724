"""The QUEST paper's tables beside ours: differences paired by sample, and whether the published order shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from robustkit.errors import RobustkitError
from robustkit.evaluations.corruptions.sets import SETS
from robustkit.protocol.card import load_card
from robustkit.results.paired import Difference, Side, holm, paired_difference
from robustkit.results.published import name_of, read_published
from robustkit.results.run import Run

from .writing import markdown

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
TITLES = {
    "agcam": (
        "AG-CAM",
        " Box mode at threshold 0.5, as published: the boxes around what a map marks, against the object's. Images "
        "predicted right; *minus standard* over those that both predict right.",
    ),
    "agcam-mask": ("AG-CAM, mask mode", " What a map marks against the object's own pixels."),
    "agcam-faithfulness": (
        "AG-CAM, faithfulness",
        " ABPC, the area between the curves of removing the least and the most relevant pixels first: how much of a "
        "prediction hangs on what its map marks. Images predicted right; *minus standard* over those that both "
        "predict right.",
    ),
    "agcam-stability": (
        "AG-CAM, stability",
        " The map of the attacked image beside that of the clean one, of the same class: 1 is the same map.",
    ),
}


def published_figures() -> dict[str, Any]:
    """The paper's tables: by attention, then condition, then metric."""
    found = asdict(read_published("quest"))
    figures = found.pop("figures")
    return {**found, **figures}


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
        """What becomes of the published order. p_value: of no difference here, corrected for the number of gaps."""
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
    """Raises RobustkitError where the checkpoint that the others are held against has not standard attention."""
    if attention != "standard":
        raise RobustkitError(f"{name} has {attention} attention; expected one with standard attention first")


def comparisons(run: Run, published: dict[str, Any]) -> Iterator[Comparison]:
    """Every condition of a run that the page knows, the maps last, for the checkpoints that it was last asked for.

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
    conditions = {row["condition"]: name_of(row["condition"]) for row in rows if row["metric"] in UNITS}
    order = list(MAPS)
    for condition, name in sorted(conditions.items(), key=lambda item: order.index(item[1]) if item[1] in MAPS else -1):
        if not name:
            continue
        wanted = MAPS.get(name, ("mean_error",) if name in SETS else LEVELS)
        # The paper's attacks are those of its own protocol; under another card there is nothing to stand beside.
        fits = name not in ("fgsm", "pgd", "spsa", "autoattack") or card.startswith(published["protocol"])
        lines = []
        for checkpoint in known:
            own = {r["metric"]: r for r in rows if (r["checkpoint"], r["condition"]) == (checkpoint, condition)}
            metrics = tuple(metric for metric in wanted if metric in own)
            differences = {
                m: paired_difference(Side(run, known[0]), Side(run, checkpoint), condition, m) for m in metrics
            }
            figures = published.get(of[checkpoint], {}).get(name, {}) if fits else {}
            lines.append(Line(_label(checkpoint, of), own, differences, figures))
        gaps = _gaps(run, card, condition, name, metrics, of, published) if fits else ()
        yield Comparison(card, name, condition, metrics, tuple(lines), tuple(gaps))


def _label(checkpoint: str, of: dict[str, str]) -> str:
    """The attention, or the checkpoint's name where several have it."""
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
                told = [
                    published.get(a, {}).get(name, {}).get(PUBLISHED_AS.get(metric, metric))
                    for a in (against, attention)
                ]
                if metric in UNJUDGED or None in told or not {attention, against} <= alone.keys():
                    continue
                gap = told[1] - told[0]
                if abs(gap) > UNRESOLVED.get(metric, 0):
                    ours = paired_difference(Side(run, alone[against]), Side(run, alone[attention]), condition, metric)
                    sign = -1 if metric in LOWER else 1
                    yield Gap(card, name, metric, attention, against, gap, ours, sign)


# Markdown


def page(runs: Sequence[Run], published: dict[str, Any], command: str) -> str:
    """The whole page. Of a condition in several runs the first counts; clean images know no card."""
    seen: dict[tuple[str, ...], tuple[Run, Comparison]] = {}
    for run in runs:
        for one in comparisons(run, published):
            key = (one.name,) if one.name == "clean" else (one.name, one.card, run.manifest.data.name)
            seen.setdefault(key, (run, one))
    parts = [
        "# The QUEST paper's tables on the zoo",
        f"Made by `{command}`; do not edit.",
        "**What the intervals mean.** Each attention is here with one training of one seed. Intervals and tests are of "
        "other images, not of other trainings: they compare these files, not formulas. *minus standard* is paired by "
        "sample, with a 95 % bootstrap interval; top-1 intervals are Wilson's.",
        f"Columns headed *published* are of {published['data']} and larger models ({published['source']}; "
        f"{published['summary']}): their levels are no goal here.",
        "## Does the published order show?",
        _order([gap for _, one in seen.values() for gap in one.gaps]),
        _elsewhere([one for _, one in seen.values()]),
    ]
    for card in dict.fromkeys(one.card for _, one in seen.values()):
        loaded = load_card(card.partition("@")[0])
        parts.append(f"## Card `{card}`\n\n{loaded.summary[0].upper()}{loaded.summary[1:]}.")
        for run, one in seen.values():
            if one.card == card:
                parts += list(_section(run, one))
    parts += ["## Runs", _runs(runs)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _order(gaps: Sequence[Gap]) -> str:
    """The verdicts: how many of each, and a table."""
    adjusted = holm([gap.ours.p_value for gap in gaps])
    words = [gap.verdict(p) for gap, p in zip(gaps, adjusted, strict=True)]
    heading = ("card", "condition", "figure", "attention", "against", "published", "ours [95 %]", "n", "p", "order")
    rows: list[tuple[str, ...]] = [heading]
    for gap, p, word in zip(gaps, adjusted, words, strict=True):
        title, scale, digits = UNITS[gap.metric]
        told = "better" if gap.sign * gap.published > 0 else "worse"
        ours = _figure(gap.ours.value, gap.ours.ci_low, gap.ours.ci_high, scale, digits, "+")
        said = f"{scale * gap.published:+.{digits + (scale == 100)}f} ({told})"
        card = gap.card.partition("@")[0]
        n = str(gap.ours.n)
        rows.append((card, gap.name, title, gap.attention, gap.against, said, ours, n, _p(p), word))
    counts = [words.count(word) for word in ("shown", "the opposite", "cannot tell")]
    return (
        f"Of {len(gaps)} differences that the paper has, {counts[0]} show here, {counts[1]} are the opposite, and "
        f"{counts[2]} cannot be told. p is McNemar's exact test for top-1 and a normal approximation else, corrected "
        f"for all {len(gaps)} (Holm); the verdict is at 0.05. Where it cannot tell, the interval says which "
        "differences these images do not rule out. Attacks are judged under the paper's card only; rows of one "
        "checkpoint hang together (FGSM and PGD most of all), and are no independent evidence.\n\n" + markdown(rows)
    )


def _elsewhere(every: Sequence[Comparison]) -> str:
    """The differences without a published one that stand out."""
    found = []
    for one in every:
        judged = {gap.metric for gap in one.gaps}
        for line in one.lines[1:]:
            for metric, d in line.differences.items():
                if metric not in judged and metric not in UNJUDGED and (d.ci_low > 0 or d.ci_high < 0):
                    title, scale, digits = UNITS[metric]
                    what = f"{line.attention}, {one.name} ({one.card.partition('@')[0]}), {title}"
                    better = (d.value > 0) == (metric not in LOWER)
                    figure = _figure(d.value, d.ci_low, d.ci_high, scale, digits, "+")
                    found.append(f"- {what}: {figure}, {'better' if better else 'worse'}")
    if not found:
        return ""
    return (
        "Where the paper has no figure, these differences from standard attention leave 0 out of their interval (each "
        "for itself, not corrected for their number):\n\n" + "\n".join(found)
    )


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _section(run: Run, comparison: Comparison) -> Iterator[str]:
    counts = sorted({line.ours[comparison.metrics[0]]["n"] for line in comparison.lines})
    title, meaning = TITLES.get(comparison.name, (comparison.name, ""))
    n = " to ".join(map(str, counts[:1] + counts[1:][-1:]))
    data = run.manifest.data.name
    yield f"### {title}\n\n`{comparison.condition}`, {n} images of {data}.{meaning}"
    yield markdown(_table(comparison))
    flags: dict[str, list[str]] = {}
    for line in comparison.lines:
        for metric in comparison.metrics:
            for flag in line.ours[metric]["flags"]:
                flags.setdefault(flag, []).append(line.attention)
            lead = line.ours.get(f"{metric}_over_control")
            if lead is not None and lead["ci_low"] is not None and lead["ci_low"] <= 0:
                flag = f"{UNITS[metric][0].removesuffix(' %')} is not ahead of the best control"
                flags.setdefault(flag, []).append(line.attention)
    for flag, of in flags.items():
        who = dict.fromkeys(of)
        yield f"⚑ {'all' if len(who) == len(comparison.lines) else ', '.join(who)}: {flag}"


def _table(comparison: Comparison) -> list[tuple[str, ...]]:
    """Heading and rows of texts."""
    heading = ["attention"]
    for metric in comparison.metrics:
        heading += [f"{UNITS[metric][0]} [95 %]", *(["minus standard"] if metric not in UNJUDGED else [])]
        if metric in OVER_CONTROL:
            heading.append("minus best control")
    known = dict.fromkeys(PUBLISHED_AS.get(metric, metric) for metric in comparison.metrics)
    beside = [metric for metric in known if any(metric in line.published for line in comparison.lines)]
    heading += [f"published: {UNITS[metric][0]}" for metric in beside]
    rows = [tuple(heading)]
    for line in comparison.lines:
        cells = [line.attention]
        for metric in comparison.metrics:
            _, scale, digits = UNITS[metric]
            row = line.ours[metric]
            cells.append(_figure(row["value"], row["ci_low"], row["ci_high"], scale, digits))
            if metric not in UNJUDGED:
                d = line.differences[metric]
                base = line is comparison.lines[0]
                cells.append("" if base else _figure(d.value, d.ci_low, d.ci_high, scale, digits, "+"))
            if metric in OVER_CONTROL:
                lead = line.ours[f"{metric}_over_control"]
                best = lead["flags"][0].partition(": ")[2]
                cells.append(f"{_figure(lead['value'], lead['ci_low'], lead['ci_high'], scale, digits, '+')} ({best})")
        for metric in beside:
            _, scale, digits = UNITS[metric]
            told = line.published.get(metric)
            cells.append("–" if told is None else f"{scale * told:.{digits + (metric != 'mce_16') * (scale == 100)}f}")
        rows.append(tuple(cells))
    return rows


def _runs(runs: Sequence[Run]) -> str:
    rows: list[tuple[str, ...]] = [("run", "images", "dtype", "checkpoints, first digits of their sha256")]
    for run in runs:
        told = run.manifest
        files = ", ".join(f"{known.name} {str(known.sha256)[:12]}" for known in told.checkpoints)
        rows.append((run.path.name, f"{told.data.n} of {told.data.name}", told.deciding.dtype, files))
    return markdown(rows)


def _figure(value: float | None, low: float | None, high: float | None, scale: int, digits: int, sign: str = "") -> str:
    if value is None or value != value:
        return "not finite"
    text = f"{scale * value:{sign}.{digits}f}"
    if low is None or high is None:
        return text
    return f"{text} [{scale * low:{sign}.{digits}f}, {scale * high:{sign}.{digits}f}]"
