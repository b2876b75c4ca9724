"""Which class of a peer library makes an attack, and with which arguments. A peer is loaded on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attacks import ThreatModel

    Perturb = Callable[[Tensor, Tensor], Tensor]

_MEMBERS = {
    "pyautoattack": {
        "apgd": "pyautoattack.autopgd_base.APGDAttack",
        "apgd-t": "pyautoattack.autopgd_base.APGDAttack_targeted",
        "fab": "pyautoattack.fab_pt.FABAttack_PT",
        "square": "pyautoattack.square.SquareAttack",
    },
    "torchattacks": {
        "fgsm": "torchattacks.FGSM",
        "pgd": "torchattacks.PGD",
        "pgd-l2": "torchattacks.PGDL2",
        "apgd": "torchattacks.APGD",
        "apgd-t": "torchattacks.APGDT",
        "fab": "torchattacks.FAB",
        "square": "torchattacks.Square",
    },
}
_RENAMED = {"restarts": "n_restarts", "eot": "eot_iter", "queries": "n_queries", "rescale_schedule": "resc_schedule"}


@dataclass(frozen=True)
class PeerStage:
    """One attack of a peer: RobustKit's name for it and all its parameters; `name` is what AutoAttack calls it."""

    name: str
    attack: str
    parameters: dict[str, Any]


def make_perturb(
    engine: str, stage: PeerStage, model: nn.Module, threat: ThreatModel, seed: int, classes: int
) -> Perturb:
    """Make the peer's own attack: images (n, C, H, W) float32 in [0, 1] and labels (n,) to points."""
    from attacks.pgd import STEP_SHARES

    given, eps = stage.parameters, threat.eps
    targeted = given.get("loss") == "dlr-targeted"
    kind = f"{stage.attack}{'-t' * targeted}{'-l2' * (stage.attack == 'pgd' and threat.norm == 'l2')}"
    home, _, name = _MEMBERS[engine][kind].rpartition(".")
    member = getattr(importlib.import_module(home), name)
    attack: Perturb
    if stage.attack == "fgsm":
        attack = member(model, eps)
        return attack
    if stage.attack == "pgd":
        size = STEP_SHARES[threat.norm] * eps if given["step_size"] is None else given["step_size"]
        attack = member(model, eps, size, given["steps"], given["random_start"])
        return attack
    renamed = _RENAMED | ({"steps": "n_iter"} if engine == "pyautoattack" else {})
    unsaid = {"early_stop", "relinearise", "targets"} | ({"loss"} if targeted else set())
    words = {renamed.get(key, key): value for key, value in given.items() if key not in unsaid}
    targets = min(given.get("targets", 0), classes - 1)
    several = targeted or (stage.attack == "fab" and targets > 0)
    if several:  # torchattacks aims at n_classes - 1 targets, whatever the model has
        words |= {"n_target_classes": targets} if engine == "pyautoattack" else {"n_classes": targets + 1}
    if several and stage.attack == "fab":
        words["targeted" if engine == "pyautoattack" else "multi_targeted"] = True
    made = member(model, norm=threat.norm.capitalize(), eps=eps, seed=seed, **words)
    attack = made.perturb if engine == "pyautoattack" else made
    return attack
