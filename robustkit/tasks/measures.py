"""Look up every metric that results may have, by its name."""

from __future__ import annotations

from importlib import import_module

from ..evaluations.kinds import EVERY_FAMILY, vocabularies
from ..evaluations.metric import Metric, named
from ..protocol.card import TASKS
from .registry import EVERY_TASK

_OF_TASKS: tuple[Metric, ...] = tuple(
    dict.fromkeys(metric for name in TASKS for metric in import_module(f"{__package__}.{name}.measures").METRICS)
)


def metrics() -> dict[str, Metric]:
    """Return every metric of tasks and families by its name, except parametric ones."""
    every: dict[str, Metric] = {}
    of_families = (metric for words in vocabularies() for metric in words.metrics)
    for metric in (*_OF_TASKS, *of_families, *_of_plugins()):
        if not metric.parametric:
            every.setdefault(metric.name, metric)  # robustkit's own come first
    return every


def find_metric(name: str) -> Metric | None:
    """Return the metric of this name, `iou(CLASS)`, `top1_after_STAGE` and leads over controls among them, or None."""
    if (metric := named(_OF_TASKS, name)) is not None:
        return metric
    for _ in range(2):
        of_families = (words.metric(name) for words in vocabularies())
        if (metric := next(filter(None, (*of_families, named(_of_plugins(), name))), None)) is not None:
            return metric
        for registry in (EVERY_FAMILY, EVERY_TASK):
            list(registry.usable())  # one that is not loaded may have it
    return None


def _of_plugins() -> list[Metric]:
    """Return the metrics of the plug-ins' tasks that were loaded."""
    return [metric for task in EVERY_TASK.loaded for metric in task.metrics]


def metric_of(name: str) -> Metric:
    """Return the metric of this name, which must exist."""
    metric = find_metric(name)
    assert metric is not None
    return metric
