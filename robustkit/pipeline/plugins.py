"""Determine which plug-ins a run uses: they are part of what decides its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..attention.registry import EVERY_FORMULA
from ..common.plugins import Plugin
from ..common.registry import Registry
from ..evaluations.attacks.registry import EVERY_ATTACK
from ..evaluations.corruptions.registry import EVERY_CORRUPTION
from ..evaluations.explainers import EVERY_EXPLAINER
from ..evaluations.family import family_of
from ..evaluations.kinds import EVERY_FAMILY
from ..protocol.condition import Condition
from ..runs.manifest import CheckpointEntry, PluginEntry
from ..tasks.registry import EVERY_TASK


def registries() -> dict[str, Registry[Any]]:
    """Return the registry of each group of plug-ins."""
    return {
        "attacks": EVERY_ATTACK,
        "corruptions": EVERY_CORRUPTION,
        "explainers": EVERY_EXPLAINER,
        "formulas": EVERY_FORMULA,
        "families": EVERY_FAMILY,
        "tasks": EVERY_TASK,
    }


def used_plugins(
    conditions: Iterable[Condition], checkpoints: Sequence[CheckpointEntry], task: str
) -> tuple[PluginEntry, ...]:
    """Return the plug-ins that a run uses, with the conditions and checkpoints whose records each decides."""
    of_conditions: dict[Plugin, list[str]] = {}
    of_checkpoints: dict[Plugin, list[str]] = {}
    for condition in conditions:
        for plugin in dict.fromkeys(family_of(condition.name).plugins(condition)):
            of_conditions.setdefault(plugin, []).append(condition.text)
    for entry in checkpoints:
        formula = EVERY_FORMULA.plugin(entry.attention.partition("(")[0])
        for plugin in filter(None, (formula, EVERY_TASK.plugin(task))):
            of_checkpoints.setdefault(plugin, []).append(entry.name)
    return tuple(
        PluginEntry(
            **plugin.identity,
            conditions=tuple(of_conditions.get(plugin, ())),
            checkpoints=tuple(of_checkpoints.get(plugin, ())),
        )
        for plugin in {**of_conditions, **of_checkpoints}
    )
