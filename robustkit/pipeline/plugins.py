"""Determine which plug-ins a run uses: they are part of what decides its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ..attention.registry import EVERY_FORMULA
from ..common.plugins import Plugin
from ..common.registry import Registry
from ..evaluations.attacks.registry import EVERY_ATTACK
from ..evaluations.corruptions.registry import EVERY_CORRUPTION
from ..evaluations.family import family_of
from ..evaluations.kinds import EVERY_FAMILY
from ..evaluations.maps.registry import EVERY_EXPLAINER
from ..protocol.condition import Condition
from ..runs.manifest import CheckpointEntry, Manifest, PluginEntry
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


def joined(old: Iterable[PluginEntry], new: Iterable[PluginEntry]) -> tuple[PluginEntry, ...]:
    """Return the plug-ins of earlier commands and of this one; both agree on the code of each."""
    entries: dict[tuple[str, str], PluginEntry] = {}
    for entry in (*old, *new):
        before = entries.get((entry.group, entry.name), entry)
        entries[entry.group, entry.name] = replace(
            entry,
            conditions=tuple(dict.fromkeys((*before.conditions, *entry.conditions))),
            checkpoints=tuple(dict.fromkeys((*before.checkpoints, *entry.checkpoints))),
        )
    return tuple(entries.values())


def differing(
    old: Manifest, new: Sequence[PluginEntry], conditions: Iterable[Condition], checkpoints: Iterable[CheckpointEntry]
) -> Iterator[str]:
    """Yield how the plug-ins of a command differ from those that made the records of a run."""
    here = {(entry.group, entry.name) for entry in new}
    asked = {*(condition.text for condition in conditions), *(entry.name for entry in checkpoints)}
    for entry in old.used_plugins:
        if (entry.group, entry.name) not in here and (covered := asked & {*entry.conditions, *entry.checkpoints}):
            yield f"{min(covered)} is of plug-in {entry.words} there and of robustkit itself here"
    there = {(entry.group, entry.name): entry for entry in old.used_plugins}
    for entry in new:
        before = there.get((entry.group, entry.name))
        if before is not None and before.identity != entry.identity:
            yield f"plug-in {before.words} there is {entry.words} here"
        unmarked = [text for text in entry.conditions if text in old.conditions and before is None]
        if unmarked:
            yield f"{unmarked[0]} is of robustkit itself there and of plug-in {entry.words} here"
