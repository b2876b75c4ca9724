"""Find a task by its name, robustkit's own or a plug-in's. Loads no task."""

from __future__ import annotations

from typing import Any

from ..common.plugins import Registry
from ..protocol.card import TASKS as NAMES


def _a_task(value: Any) -> Any:
    if isinstance(value, type) or not hasattr(value, "headline_metric"):
        raise TypeError(f"it brings {value!r}; expected an instance of robustkit.tasks.task.Task")
    return value


TASKS = {name: f"{name}.task" for name in NAMES}
EVERY_TASK: Registry[Any] = Registry("tasks", TASKS, _a_task)
"""The modules of robustkit's tasks, and the tasks of plug-ins, by name."""
