"""Build the attack that a condition names."""

from __future__ import annotations

import math
from typing import Any, cast

import attacks
from attacks.registry import FEATURE_ATTACKS

from ...errors import ProtocolError
from ...protocol.card import Card, number
from ...protocol.condition import ON, Condition
from ..kinds import is_attack
from .engines import peer
from .registry import EVERY_ATTACK, EVERY_DENSE_ATTACK


def attacked_labels(condition: Condition, card: Card) -> str:
    """Return which labels the attack is given: `true` or `predicted`."""
    return str(card.attacks.get(condition.name, {}).get("labels", card.labels))


def build_attack(condition: Condition, card: Card) -> attacks.Attack | attacks.DenseAttack | None:
    """Build the attack with these parameters under the card's bounds; None for all other conditions."""
    if not is_attack(condition.name) and condition.name not in EVERY_ATTACK:
        return None
    fields = dict(condition.parameters)
    eps = float(fields.pop("eps", math.inf))
    norm, engine = fields.pop("norm"), fields.pop("engine")
    fields.pop(ON, None)
    options = card.attacks.get(condition.name, {})
    bounds = tuple(options["bounds"]) if "bounds" in options else card.bounds
    if isinstance(fields.get("step_size"), str):
        fields["step_size"] = float(number(str(fields["step_size"]).removesuffix("*eps"))) * eps
    try:
        place = {name: fields.pop(name) for name in ("size", "where") if name in fields and norm == "patch"}
        threat = attacks.ThreatModel(norm, eps, bounds, options.get("cut_images", False), **place)  # type: ignore[arg-type]
        if card.task == "segmentation":
            return EVERY_DENSE_ATTACK[condition.name](threat, **cast(dict[str, Any], fields))
        if card.task == "features":
            return FEATURE_ATTACKS[condition.name](threat, **cast(dict[str, Any], fields))
        if engine != "robustkit":
            return peer(str(engine), condition.name, threat, fields)
        return EVERY_ATTACK[condition.name](threat, **fields)
    except (TypeError, ValueError) as fault:
        raise ProtocolError(f"condition {condition.text}: {fault}") from None
