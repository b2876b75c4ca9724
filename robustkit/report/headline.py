"""A run in a sentence a checkpoint: what it does clean, what is weakest, what cannot be said; and its flags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..display.numbers import pixels
from ..evaluations.corruptions.condition import parse_corrupted
from ..evaluations.corruptions.sets import SETS
from ..evaluations.maps.condition import parts_of

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..runs.manifest import Manifest

WIDE = 0.2
"""Width of a 95 % interval from which on a sentence says that samples are too few."""
METHODS = {
    "agcam": "AG-CAM",
    "agcam-full": "AG-CAM (full gradient)",
    "grad-cam": "Grad-CAM",
    "rollout": "rollout",
    "gradient": "the gradient",
}
CONTROLS = {
    "random": "a random map",
    "centre": "a centred Gaussian",
    "full": "a map that marks everything",
    "nothing": "a map that marks nothing",
}
LEADS = (("abpc", "", "ABPC"), ("cam_iou", "mask", "IoU of pixels"), ("cam_iou", "box", "IoU of boxes"))
_CONTROL = "best control: "  # in flags of leads, where it raises no doubt

Figures = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True)
class Headline:
    """What the results say of a checkpoint, in one sentence. flags: each once, with what bears it."""

    checkpoint: str
    sentence: str
    flags: tuple[str, ...]


def verdicts(run: RunFolder, results: Sequence[dict[str, Any]]) -> list[Headline]:
    """Of the run's checkpoints, in its order. results: rows of its summary."""
    manifest = run.manifest
    scenes = manifest.protocol.task == "segmentation"
    found = []
    for known in manifest.checkpoints:
        rows = [row for row in results if row["checkpoint"] == known.name]
        own = {(row["condition"], row["metric"]): row for row in rows if _finite(row["value"])}
        parts = list(_of_scenes(own, manifest) if scenes else _of_classes(own, manifest))
        sentence = "; ".join(part for part in parts if part)
        start = sentence[:1] if sentence.startswith("mIoU") else sentence[:1].upper()
        whole = f"{start}{sentence[1:]}." if sentence else "Nothing was evaluated."
        found.append(Headline(known.name, whole, tuple(_flags(rows))))
    return found


def _of_classes(own: Figures, manifest: Manifest) -> Iterator[str]:
    said: list[Mapping[str, Any]] = []
    if (clean := own.get(("clean", "top1"))) is not None:
        said.append(clean)
        yield f"{_share(clean)} right on {clean['n']} clean images"
    if (attacked := _strongest(own, manifest, "top1")) is not None:
        said.append(attacked[1])
        yield f"{attacked[0]} leaves {_share(attacked[1])}{_other_n(attacked[1], clean)}"
    mean, worst = _worst_mean(own), _worst_severity(own, "top1")
    if mean is not None:
        said.append(mean)
        yield f"under corruption it errs on {_share(mean)} ({_of(mean)}){_at_worst(worst, 'top1', ', most under')}"
    elif worst is not None:
        yield f"under corruption{_at_worst(worst, 'top1', ' it errs most under')}"
    yield from _of_maps(own)
    yield from _unknown(own, manifest, said, corrupted=mean is not None or worst is not None)


def _of_scenes(own: Figures, manifest: Manifest) -> Iterator[str]:
    said: list[Mapping[str, Any]] = []
    if (clean := own.get(("clean", "miou"))) is not None:
        said.append(clean)
        yield f"mIoU {_share(clean)} on {clean['n']} clean images"
    if (attacked := _strongest(own, manifest, "miou")) is not None:
        said.append(attacked[1])
        yield f"{attacked[0]} leaves {_share(attacked[1])}{_other_n(attacked[1], clean)}"
    kept, worst = _worst_retention(own), _worst_severity(own, "miou")
    if kept is not None:
        said.append(kept)
        yield f"corruption leaves {_share(kept)} of it ({kept['condition']}){_at_worst(worst, 'miou')}"
    elif worst is not None:
        yield f"under corruption{_at_worst(worst, 'miou', ' it is lowest under')}"
    classes = [row for (condition, name), row in own.items() if condition == "clean" and name.startswith("iou(")]
    if classes:
        lowest = min(classes, key=lambda row: float(row["value"]))
        images = f"{lowest['n']} {'image' if lowest['n'] == 1 else 'images'}"
        yield f"its weakest class is {lowest['metric'][4:-1]} with IoU {_percent(lowest['value'])} in {images}, clean"
    yield from _unknown(own, manifest, said, corrupted=kept is not None or worst is not None)


def _strongest(own: Figures, manifest: Manifest, metric: str) -> tuple[str, Mapping[str, Any]] | None:
    """The attack that leaves least, in words, `the strongest attack, pgd at 4/255,`, and its figure."""
    claims = manifest.claims
    found = [row for (condition, name), row in own.items() if name == metric and condition in claims]
    if not found:
        return None
    row = min(found, key=lambda row: float(row["value"]))
    claim = claims[row["condition"]]
    radius = pixels(float(claim.eps), claim.norm) + ("" if claim.norm == "linf" else f" ({claim.norm})")
    if manifest.protocol.space != "pixels":
        radius += " in normalised units"
    call = f"{row['condition'].partition('(')[0]} at {radius}"
    return (f"the strongest attack, {call}," if len(found) > 1 else f"the only attack, {call},"), row


def _worst_mean(own: Figures) -> Mapping[str, Any] | None:
    """The mean error over the benchmark's set where there is one, else over the set with the highest."""
    means = [row for (condition, metric), row in own.items() if metric == "mean_error" and _set(condition)]
    return max(means, key=lambda row: (_set(row["condition"]) == "in-c", float(row["value"])), default=None)


def _of(mean: Mapping[str, Any]) -> str:
    """`in-c`, or which of the sets has the highest mean."""
    name = mean["condition"]
    return name if _set(name) == "in-c" else f"mean over {name}, the worst set"


def _worst_retention(own: Figures) -> Mapping[str, Any] | None:
    """The same of what is left of mIoU."""
    kept = [row for (condition, metric), row in own.items() if metric == "retention" and _set(condition)]
    return min(kept, key=lambda row: (_set(row["condition"]) != "in-c", float(row["value"])), default=None)


def _set(condition: str) -> str:
    """The set of corruptions that a mean is over; empty for other conditions."""
    name = condition.partition("(")[0]
    return name if name in SETS else ""


def _worst_severity(own: Figures, metric: str) -> Mapping[str, Any] | None:
    """The single corruption at one severity under which least is right."""
    found = [
        row for (condition, name), row in own.items() if name == metric and condition.startswith("corruption(")
        and "severity=" in condition and "+" not in condition
    ]  # fmt: skip
    return min(found, key=lambda row: float(row["value"]), default=None)


def _at_worst(row: Mapping[str, Any] | None, metric: str, start: str = ", worst") -> str:
    if row is None:
        return ""
    part = parse_corrupted(row["condition"])
    assert part is not None
    value = _percent(1 - row["value"]) if metric == "top1" else f"mIoU {_percent(row['value'])}"
    return f"{start} {part.name} at severity {part.severity} with {value}"


def _of_maps(own: Figures) -> Iterator[str]:
    """Whether maps are better than the best control, of the scores in `LEADS`."""
    leads: dict[str, dict[str, list[str]]] = {}
    for metric, mode, score in LEADS:
        for (condition, found), row in own.items():
            parts = parts_of(condition) if found == f"{metric}_over_control" else None
            if parts is None or parts[1] != mode:
                continue
            control = next(flag[len(_CONTROL) :] for flag in row["flags"] if flag.startswith(_CONTROL))
            method = METHODS.get(parts[0].method, parts[0].method)
            if parts[0].target == "label":
                method += " of the label's class"
            odd = f" at threshold {parts[0].threshold:g}" if mode and parts[0].threshold != 0.5 else ""
            verb = f"{_verb(row)} {CONTROLS.get(control, control)}"
            leads.setdefault(method, {}).setdefault(verb, []).append(score + odd)
    for method, verbs in leads.items():
        said = (f"{verb} on {_and(scores)}" for verb, scores in verbs.items())
        yield f"{method} {', '.join(said)}"


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _verb(lead: Mapping[str, Any]) -> str:
    """What a lead's interval says; without one, nothing is said but what was measured."""
    low, high = lead["ci_low"], lead["ci_high"]
    if not (_finite(low) and _finite(high)):
        return "has too few maps to be held against"
    return "beats" if low > 0 else "is behind" if high < 0 else "cannot be told from"


def _unknown(own: Figures, manifest: Manifest, said: Sequence[Mapping[str, Any]], corrupted: bool) -> Iterator[str]:
    """What the sentence cannot say."""
    if not own:
        return
    attacked = any(condition in manifest.claims for condition, _ in own)
    lacking = [word for word, known in (("attacks", attacked), ("corruptions", corrupted)) if not known]
    if lacking:
        yield f"no {' and no '.join(lacking)} were evaluated"
    if any(not (_finite(row["ci_low"]) and _finite(row["ci_high"])) for row in said):
        yield "too few samples for intervals"
    elif any(row["ci_high"] - row["ci_low"] > WIDE for row in said):
        yield f"intervals are wider than {100 * WIDE:.0f} points: too few samples to tell more"


def _flags(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each doubt once, with its condition, or how many."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for flag in row["flags"]:
            if not flag.startswith(_CONTROL):
                seen.setdefault(flag, {})[row["condition"]] = None
    for flag, conditions in seen.items():
        where = next(iter(conditions)) if len(conditions) == 1 else f"{len(conditions)} conditions"
        yield f"{flag} ({where})"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(row: Mapping[str, Any]) -> str:
    """`93.3 % [84.1, 97.4]`."""
    low, high = row["ci_low"], row["ci_high"]
    bounds = f" [{100 * low:.1f}, {100 * high:.1f}]" if _finite(low) and _finite(high) else ""
    return _percent(row["value"]) + bounds


def _other_n(row: Mapping[str, Any], clean: Mapping[str, Any] | None) -> str:
    """On how many images, where it is not as many as clean."""
    return "" if clean is not None and row["n"] == clean["n"] else f" of {row['n']} images"
