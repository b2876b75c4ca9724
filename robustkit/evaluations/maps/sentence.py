"""What the sentence about a checkpoint says about its maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..cells import Cells, Row, is_finite
from ..map_methods import shown
from ..sentence import Clause
from ..short_row import ShortRow
from .condition import parts_of
from .figures import score_called
from .vocabulary import BEST, VOCABULARY

METHODS = {
    "agcam": "AG-CAM",
    "agcam-full": "AG-CAM (full gradient)",
    "legrad": "LeGrad",
    "chefer": "Chefer's rollout",
    "rollout": "rollout",
    "grad-cam": "Grad-CAM",
    "grad-cam-pp": "Grad-CAM++",
    "layer-cam": "LayerCAM",
    "score-cam": "Score-CAM",
    "rise": "RISE",
    "gradient": "the gradient",
    "integrated-gradients": "integrated gradients",
    "smooth-grad": "SmoothGrad",
}
CONTROLS = {
    "random": "a random map",
    "centre": "a centred Gaussian",
    "full": "a map that marks everything",
    "nothing": "a map that marks nothing",
}
LEADS = (("abpc", ""), ("cam_iou", "mask"), ("cam_iou", "box"))

HEADING = "maps: IoU in % and ABPC, more is better"


def clauses(cells: Cells, only_boxes: bool = False) -> Iterator[Clause]:
    """Yield whether maps are better than the best control, by the scores in `LEADS`. only_boxes: without masks."""
    leads: dict[str, dict[str, list[str]]] = {}
    for metric, mode in LEADS:
        score = score_called(metric, mode, only_boxes)
        for (condition, name), row in cells.items():
            parts = parts_of(condition) if name == f"{metric}_over_control" else None
            if parts is None or parts[1] != mode:
                continue
            control = next(flag[len(BEST) :] for flag in row["flags"] if flag.startswith(BEST))
            method = METHODS.get(parts[0].method, parts[0].method)
            if parts[0].options:
                method += f" ({', '.join(shown(parts[0].options))})"
            if parts[0].target == "label":
                method += " of the label's class"
            odd = f" at threshold {parts[0].threshold:g}" if mode and parts[0].threshold != 0.5 else ""
            verb = f"{_verb(row)} {CONTROLS.get(control, control)}"
            leads.setdefault(method, {}).setdefault(verb, []).append(score + odd)
    for method, verbs in leads.items():
        yield Clause(f"{method} {', '.join(f'{verb} on {_and(scores)}' for verb, scores in verbs.items())}")


def short(texts: Sequence[str], only_boxes: bool = False) -> Iterator[ShortRow]:
    """Yield the scores in `LEADS` for the short table of a run, each before its lead over the best control."""
    for text in texts:
        parts = parts_of(text)
        if parts is None or parts[0].is_control or parts[0].under:
            continue
        for name, mode in LEADS:
            score = score_called(name, mode, only_boxes)
            metric, lead = VOCABULARY.metric(name), VOCABULARY.metric(f"{name}_over_control")
            if mode == parts[1] and metric is not None and lead is not None:
                yield ShortRow(HEADING, f"{_called(text)}: {score}", text, metric)
                yield ShortRow(HEADING, "  – best control", text, lead)


def _called(text: str) -> str:
    """Return the method, with the parameters that differ from the published ones, but without the mode."""
    inside = text.partition("(")[2].removesuffix(")").split(",")
    method, *more = [part for part in inside if not part.startswith("mode=")]
    return f"{method} ({', '.join(more)})" if more else method


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _verb(lead: Row) -> str:
    """Return what a lead's interval says; without one, only that there are too few maps."""
    low, high = lead["ci_low"], lead["ci_high"]
    if not (is_finite(low) and is_finite(high)):
        return "has too few maps to be compared with"
    return "beats" if low > 0 else "is behind" if high < 0 else "cannot be distinguished from"
