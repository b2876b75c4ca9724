"""What attacks cost: passes of a sample, by the parameters of a condition."""

from __future__ import annotations

from dataclasses import replace

from attacks import APGD, FAB, FGSM, PGD, SEA, SPSA, Attack, AutoAttack, DenseAttack, DensePGD, FeaturePGD, Square

from ...protocol.card import Card
from ...protocol.condition import Condition
from ..cost import Cost
from .build import attacked_labels, build_attack

EVIDENCE = Cost(70, 16)
"""Passes of a sample for the evidence on an attack, before and after it, as counted on ViTs."""
_IN_FULL = Cost(105, 42)
"""The same for AutoAttack, whose evidence has a sweep of radii."""


def evidence_cost(text: str) -> Cost:
    """Return the passes of a sample for the evidence on an attack."""
    return _IN_FULL if text.startswith("autoattack(") else EVIDENCE


def attack_cost(condition: Condition, card: Card, classes: int) -> Cost:
    """Return the passes of a sample that an attack makes, without that which scores its result; of another library's
    attack those of ours. classes: of the model.
    """
    ours = {**dict(condition.parameters), "engine": "robustkit"}
    attack = build_attack(replace(condition, parameters=tuple(ours.items())), card)
    if attack is None or attack.threat.eps == 0:
        return Cost(0)
    predicted = attacked_labels(condition, card) == "predicted"
    return _cost(attack, max(classes, 2), int(predicted))


def _cost(attack: Attack | DenseAttack, classes: int, predicted: int) -> Cost:
    if isinstance(attack, FGSM):
        return Cost(1, 1)
    if isinstance(attack, SEA):
        return Cost(predicted + 4 * (attack.steps + 1), 4 * attack.steps)
    if isinstance(attack, DensePGD):
        return Cost(attack.steps + predicted * attack.random_start, attack.steps)
    if isinstance(attack, PGD):
        scored, steps = int(attack.restarts > 1), attack.steps * attack.restarts
        start = predicted * attack.random_start
        return Cost(start + steps + scored * attack.restarts, steps, at_most=attack.early_stop)
    if isinstance(attack, FeaturePGD):
        return Cost(1 + attack.restarts * (attack.steps + 1), attack.restarts * attack.steps)
    if isinstance(attack, SPSA):
        return Cost(predicted + 2 * attack.directions * attack.steps)
    if isinstance(attack, AutoAttack):
        stages = [_stage(stage, classes) for stage in attack.stages(classes)]
        if attack.version == "attention":
            stages += [_stage(APGD(attack.threat, attack.steps), classes)] * 4
        return sum(stages, Cost(20 if attack.version == "rand" else 1, at_most=True))
    if isinstance(attack, APGD | FAB | Square):
        return Cost(1) + _stage(attack, classes)
    steps = int(getattr(attack, "steps", 1))  # of a plug-in
    return Cost(steps, steps)


def _stage(attack: Attack, classes: int) -> Cost:
    """Return what a queued attack costs besides the clean forward. A sample that fell has no further runs."""
    leaves = bool(getattr(attack, "early_stop", False))
    if isinstance(attack, APGD):
        aims = min(attack.targets, classes - 1) if attack.loss.endswith("targeted") else 1
        runs = attack.restarts * aims * attack.eot
        return Cost(runs * (attack.steps + 1), runs * attack.steps, at_most=leaves or runs > attack.eot)
    if isinstance(attack, FAB):
        runs = attack.restarts * (min(attack.targets, classes - 1) if attack.targets else 1)
        each = 1 if attack.targets else classes
        forwards = runs * (attack.steps + 1) * (2 if attack.relinearise else 1)
        return Cost(forwards, runs * attack.steps * each, at_most=leaves or attack.relinearise or runs > 1)
    assert isinstance(attack, Square)
    return Cost(attack.restarts * (attack.queries + 1), at_most=leaves)
