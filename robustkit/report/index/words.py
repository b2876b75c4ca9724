"""Write the figures of an index as people read them."""

from __future__ import annotations

from ...tasks.measures import find_metric
from .reading import IndexFigure


def figure_name(condition: str, metric: str) -> str:
    """Return `top-1 %, pgd(eps=1/255,steps=20)`."""
    definition = find_metric(metric)
    return f"{definition.label if definition and definition.label else metric}, {condition}"


def figure_text(figure: IndexFigure) -> str:
    """Return `86.7 [75.8, 93.1]` under the metric's label."""
    definition = find_metric(figure.metric)
    scale = definition.scale if definition else 1.0
    digits = 1 if scale == 100 else 3
    value = f"{scale * figure.value:.{digits}f}"
    if figure.low is None or figure.high is None:
        return value
    return f"{value} [{scale * figure.low:.{digits}f}, {scale * figure.high:.{digits}f}]"
