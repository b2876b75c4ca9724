"""Which plug-ins a run uses: part of what decides its records."""

from __future__ import annotations

from typing import Any

from ..attention.registry import EVERY_FORMULA
from ..common.plugins import Registry
from ..evaluations.attacks.registry import EVERY_ATTACK
from ..evaluations.corruptions.registry import EVERY_CORRUPTION
from ..evaluations.kinds import EVERY_FAMILY
from ..evaluations.maps.registry import EVERY_EXPLAINER
from ..tasks.task import EVERY_TASK


def registries() -> dict[str, Registry[Any]]:
    """Return where the plug-ins of each group are looked up."""
    return {
        "attacks": EVERY_ATTACK,
        "corruptions": EVERY_CORRUPTION,
        "explainers": EVERY_EXPLAINER,
        "formulas": EVERY_FORMULA,
        "families": EVERY_FAMILY,
        "tasks": EVERY_TASK,
    }
