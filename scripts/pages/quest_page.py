"""The page of the QUEST paper's tables next to ours, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from robustkit.common.differences import holm
from robustkit.protocol.card import load_card
from robustkit.results.run import Run

from .quest import LOWER, OVER_CONTROL, PUBLISHED_AS, UNITS, UNJUDGED, Comparison, Gap, comparisons
from .writing import markdown

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
        " The map of the attacked image next to that of the clean one, of the same class: 1 is the same map.",
    ),
}


def page(runs: Sequence[Run], published: dict[str, Any], command: str) -> str:
    """Return the whole page. If a condition is in several runs, the first counts; clean images have no card."""
    seen: dict[tuple[str, ...], tuple[Run, Comparison]] = {}
    for run in runs:
        for comparison in comparisons(run, published):
            key = (
                (comparison.name,)
                if comparison.name == "clean"
                else (comparison.name, comparison.card, run.manifest.data.name)
            )
            seen.setdefault(key, (run, comparison))
    parts = [
        "# The QUEST paper's tables on the zoo",
        f"Made by `{command}`; do not edit.",
        "**What the intervals mean.** Each attention is here with one training of one seed. Intervals and tests are of "
        "other images, not of other trainings: they compare these files, not formulas. *minus standard* is paired by "
        "sample, with a 95 % interval that agrees with its test; top-1 intervals are Wilson's.",
        f"Columns headed *published* are of {published['data']} and larger models ({published['source']}; "
        f"{published['summary']}): their levels are not a goal here.",
        "## Does the published order show?",
        _order([gap for _, comparison in seen.values() for gap in comparison.gaps]),
        _elsewhere([comparison for _, comparison in seen.values()]),
    ]
    for card in dict.fromkeys(comparison.card for _, comparison in seen.values()):
        loaded = load_card(card.partition("@")[0])
        parts.append(f"## Card `{card}`\n\n{loaded.summary[0].upper()}{loaded.summary[1:]}.")
        for run, comparison in seen.values():
            if comparison.card == card:
                parts += list(_section(run, comparison))
    parts += ["## Runs", _runs(runs)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _order(gaps: Sequence[Gap]) -> str:
    """Return the verdicts: how many of each, and a table."""
    adjusted = holm([gap.ours.p_value for gap in gaps])
    words = [gap.verdict(p) for gap, p in zip(gaps, adjusted, strict=True)]
    heading = ("card", "condition", "figure", "attention", "against", "published", "ours [95 %]", "n", "p", "order")
    rows: list[tuple[str, ...]] = [heading]
    for gap, p, word in zip(gaps, adjusted, words, strict=True):
        title, scale, digits = UNITS[gap.metric]
        direction = "better" if gap.sign * gap.published > 0 else "worse"
        ours = _figure(gap.ours.value, gap.ours.ci_low, gap.ours.ci_high, scale, digits, "+")
        said = f"{scale * gap.published:+.{digits + (scale == 100)}f} ({direction})"
        card = gap.card.partition("@")[0]
        n = str(gap.ours.n)
        rows.append((card, gap.name, title, gap.attention, gap.against, said, ours, n, _p(p), word))
    counts = [words.count(word) for word in ("shown", "the opposite", "cannot tell")]
    return (
        f"Of {len(gaps)} differences that the paper has, {counts[0]} show here, {counts[1]} are the opposite, and "
        f"{counts[2]} are undecided. p is of McNemar's exact test for top-1 and of Student's t otherwise, "
        f"corrected for all {len(gaps)} (Holm); the verdict is at 0.05. Where it cannot tell, the interval says which "
        "differences these images do not rule out. Attacks are judged under the paper's card only; rows of one "
        "checkpoint depend on each other (FGSM and PGD most of all), and are not independent evidence.\n\n"
        + markdown(rows)
    )


def _elsewhere(every: Sequence[Comparison]) -> str:
    """Return the differences that stand out and have no published counterpart."""
    lines = []
    for comparison in every:
        judged = {gap.metric for gap in comparison.gaps}
        for line in comparison.lines[1:]:
            for metric, d in line.differences.items():
                if metric not in judged and metric not in UNJUDGED and (d.ci_low > 0 or d.ci_high < 0):
                    title, scale, digits = UNITS[metric]
                    what = f"{line.attention}, {comparison.name} ({comparison.card.partition('@')[0]}), {title}"
                    better = (d.value > 0) == (metric not in LOWER)
                    figure = _figure(d.value, d.ci_low, d.ci_high, scale, digits, "+")
                    lines.append(f"- {what}: {figure}, {'better' if better else 'worse'}")
    if not lines:
        return ""
    return (
        "Where the paper has no figure, these differences from standard attention leave 0 out of their interval (each "
        "for itself, not corrected for their number):\n\n" + "\n".join(lines)
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
    """Return the heading and rows of texts."""
    heading = ["attention"]
    for metric in comparison.metrics:
        heading += [f"{UNITS[metric][0]} [95 %]", *(["minus standard"] if metric not in UNJUDGED else [])]
        if metric in OVER_CONTROL:
            heading.append("minus best control")
    names = dict.fromkeys(PUBLISHED_AS.get(metric, metric) for metric in comparison.metrics)
    beside = [metric for metric in names if any(metric in line.published for line in comparison.lines)]
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
            level = line.published.get(metric)
            cells.append(
                "–" if level is None else f"{scale * level:.{digits + (metric != 'mce_16') * (scale == 100)}f}"
            )
        rows.append(tuple(cells))
    return rows


def _runs(runs: Sequence[Run]) -> str:
    rows: list[tuple[str, ...]] = [("run", "images", "dtype", "checkpoints, first digits of their sha256")]
    for run in runs:
        manifest = run.manifest
        files = ", ".join(f"{entry.name} {str(entry.sha256)[:12]}" for entry in manifest.checkpoints)
        rows.append((run.path.name, f"{manifest.data.n} of {manifest.data.name}", manifest.deciding.dtype, files))
    return markdown(rows)


def _figure(value: float | None, low: float | None, high: float | None, scale: int, digits: int, sign: str = "") -> str:
    if value is None or value != value:
        return "not finite"
    text = f"{scale * value:{sign}.{digits}f}"
    if low is None or high is None:
        return text
    return f"{text} [{scale * low:{sign}.{digits}f}, {scale * high:{sign}.{digits}f}]"
