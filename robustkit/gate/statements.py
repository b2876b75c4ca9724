"""Metrics, conditions and bounds into what a rule states: of a value, a change, flags, or who the subject is."""

from __future__ import annotations

from dataclasses import dataclass

from ..evaluations.attention.layer import METRICS as OF_ATTENTION
from ..evaluations.maps.condition import PLAIN, SCORES
from .pattern import Wanted

CAM_METRICS = (*(f"cam_{score}" for score in SCORES), *PLAIN.values(), "pxap", "max_box_acc")
_STABLE = tuple(f"{name}{group}" for name in ("rank_correlation", "map_iou") for group in ("", "_held", "_fell"))
OF_SETS = ("mean_error", "mce", "relative_mce")  # whose condition is in-c where a rule names none
METRICS = (
    *("top1", "top5", "nll", "ece", "linf_max", "l2_max", *OF_SETS, "ce", *CAM_METRICS, *_STABLE),
    *("miou", "pixel_accuracy", "mean_accuracy", "retention"),
    *OF_ATTENTION,
    *(f"{name}_change" for name in OF_ATTENTION),
)
"""And `iou(CLASS)`, `top1_after_STAGE`, and `…_over_control` of the scores of maps."""
LOWER_IS_BETTER = ("nll", "mean_error", "deletion_auc", "largest_logit", "query_norm", "key_norm", "strongest_key")
_NOT_PAIRED = (
    "ece",
    "linf_max",
    "l2_max",
    "mce",
    "relative_mce",
    "ce",
    "head_correlation",
    "pxap",
    "max_box_acc",
    "retention",
)
PAIRED = tuple(name for name in METRICS if name not in _NOT_PAIRED and not name.endswith(("_held", "_fell", "_change")))
"""Metrics that are means over samples, or of segmentation, so that two runs can be paired by sample."""
SUBJECTS = ("attention", "arch", "protocol", "data digest", "checkpoint sha256")


@dataclass(frozen=True)
class Value:
    """A figure, or with `n` the number of samples, is on one side of a bound; `sure`: its 95 % interval is."""

    metric: str
    condition: Wanted
    compare: str
    bound: float
    sure: bool = False


@dataclass(frozen=True)
class Change:
    """How much a figure may drop or rise against the baseline's.

    metric: empty for top1, or miou of segmenters. condition: None for all of the baseline.
    """

    falls: bool
    metric: str
    condition: Wanted | None
    compare: str
    bound: float
    sure: bool = False


@dataclass(frozen=True)
class NoFlags:
    """No flag, but for those that contain one of these texts."""

    condition: Wanted | None = None
    excepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What run.json says of the subject."""

    subject: str
    expected: str


Statement = Value | Change | NoFlags | Identity
