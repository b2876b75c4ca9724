"""Every number that results may have, by its name."""

from __future__ import annotations

from dataclasses import replace

from ..evaluations.attention.measures import METRICS as OF_ATTENTION
from ..evaluations.corruptions.measures import METRICS as OF_CORRUPTIONS
from ..evaluations.maps.measures import CONTROLLED
from ..evaluations.maps.measures import METRICS as OF_MAPS
from ..evaluations.metric import Metric
from .classification.measures import METRICS as OF_CLASSIFICATION
from .segmentation.measures import METRICS as OF_SEGMENTATION

_EVERY = (*OF_CLASSIFICATION, *OF_CORRUPTIONS, *OF_MAPS, *OF_SEGMENTATION, *OF_ATTENTION)
METRICS = {metric.name: metric for metric in _EVERY if not metric.parametric}
_PARAMETRIC = tuple(metric for metric in _EVERY if metric.parametric)
_CONTROLLED = {metric.name for metric in CONTROLLED}
_OVER = "_over_control"


def find_metric(name: str) -> Metric | None:
    """Return the metric of this name, `iou(CLASS)`, `top1_after_STAGE` and leads over controls among them, or None."""
    lead = name.removesuffix(_OVER)
    if lead != name:
        return replace(METRICS[lead], name=name, paired=False, share=False) if lead in _CONTROLLED else None
    own = (replace(metric, name=name) for metric in _PARAMETRIC if name.startswith(metric.name) and name != "iou()")
    return METRICS.get(name) or next(own, None)
