"""Tasks by name, a folder each (classification, segmentation), and every metric of results. It loads none of them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

from ..common.plugins import Registry, built_in, plugin_session
from ..evaluations.condition import EVERY_FAMILY, metric_in, vocabularies
from ..evaluations.metrics import Metric, metric_named
from ..protocol.card import TASKS


def _a_task(value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "headline_metric"):
        raise TypeError(f"it provides {value!r}; expected an instance of robustkit.tasks.task.Task")
    return value


_HERE = {name: EntryPoint(name, f"{__package__}.{name}:TASK", "robustkit.tasks") for name in TASKS}
EVERY_TASK: Registry[Any] = Registry("tasks", {**_HERE, **built_in("tasks")}, _a_task)
"""The tasks of this room, of slices and of plug-ins, by name."""


@cache
def _of_tasks() -> tuple[Metric, ...]:
    return tuple(dict.fromkeys(metric for name in EVERY_TASK.entries for metric in EVERY_TASK[name].metrics))


def metrics() -> dict[str, Metric]:
    """Return every metric of one checkpoint, of tasks and families, by its name, except parametric ones."""
    return {name: metric for name, metric in _named().items() if not metric.of_pairs}


def metrics_of_pairs() -> list[str]:
    """Return the names of shares of the samples of two checkpoints."""
    return [name for name, metric in _named().items() if metric.of_pairs]


def _named() -> dict[str, Metric]:
    every: dict[str, Metric] = {}
    of_families = (metric for words in vocabularies() for metric in words.metrics)
    for metric in (*_of_tasks(), *of_families, *_of_plugins()):
        if not metric.parametric:
            every.setdefault(metric.name, metric)  # robustkit's own come first
    return every


@plugin_session()
def find_metric(name: str) -> Metric | None:
    """Return the metric of this name, `iou(CLASS)`, `top1_after_STAGE` and leads over controls among them, or None."""
    if (metric := metric_named(_of_tasks(), name)) is not None:
        return metric
    for _ in range(2):
        of_families = (metric_in(words, name) for words in vocabularies())
        if (metric := next(filter(None, (*of_families, metric_named(_of_plugins(), name))), None)) is not None:
            return metric
        for registry in (EVERY_FAMILY, EVERY_TASK):
            list(registry.usable())  # one that is not loaded may have it
    return None


def _of_plugins() -> list[Metric]:
    return [metric for task in EVERY_TASK.loaded for metric in task.metrics]


def metric_of(name: str) -> Metric:
    metric = find_metric(name)
    assert metric is not None
    return metric
