"""All attacks by name: those of the package `attacks`, and the ones of plug-ins."""

from __future__ import annotations

import attacks
from attacks.registry import ATTACKS, DENSE_ATTACKS

from ...common.plugins import Registry, subclass_of
from ..kinds import ATTACK_NAMES, FOLDERS

EVERY_ATTACK: Registry[type[attacks.Attack]] = Registry(
    "attacks", ATTACKS, subclass_of(attacks.Attack), (*FOLDERS, *ATTACK_NAMES), same_name=False
)
"""Of classifiers."""
EVERY_DENSE_ATTACK: Registry[type[attacks.DenseAttack]] = Registry(
    "attacks", DENSE_ATTACKS, subclass_of(attacks.DenseAttack), (*FOLDERS, *ATTACK_NAMES), same_name=False
)
"""Of models that predict a class for each pixel."""
