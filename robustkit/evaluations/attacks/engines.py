"""Which class of a peer library makes an attack, and with which arguments. A peer is loaded on first use.

`peer("pyautoattack", "autoattack", threat, {}).run(...)` takes and returns what `attacks.Attack.run` does. A peer gets
exactly the parameters that were asked for; what it cannot do with the same meaning is refused before any work.
AutoAttack runs the peer's own members, one stage after the other, each on the samples that still stand, as the original
does (Croce and Hein 2020; `AutoAttack._set_version` of pyautoattack 0.2.0 for the settings).

Importing this module loads neither torch nor a peer.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ProtocolError, unknown

if TYPE_CHECKING:
    from attacks import ThreatModel

    from .peers import PeerAttack

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


ENGINES: tuple[str, ...] = ("robustkit", "pyautoattack", "torchattacks")
_SUPPORTED = {
    "pyautoattack": ("autoattack", "apgd", "fab", "square"),
    "torchattacks": ("fgsm", "pgd", "apgd", "fab", "square", "autoattack"),
}

# early_stop and relinearise say how RobustKit's APGD, FAB and Square spend their passes. The peers have one way: APGD
# and FAB finish each run, Square stops, FAB asks for a gradient wherever it stands. What counts as broken is the same.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "fgsm": {"loss": "ce"},
    "pgd": {"steps": 20, "step_size": None, "random_start": True, "restarts": 1, "early_stop": False, "loss": "ce"},
    "apgd": {"steps": 100, "rho": 0.75, "restarts": 1, "loss": "ce", "targets": 9, "eot": 1, "early_stop": True},
    "fab": {
        "steps": 100, "targets": 9, "restarts": 1, "alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "relinearise": False,
        "early_stop": True,
    },
    "square": {
        "queries": 5000, "p_init": 0.8, "restarts": 1, "loss": "margin", "rescale_schedule": True, "early_stop": True,
    },
    "autoattack": {
        "version": "standard", "steps": 100, "targets": 9, "queries": 5000, "early_stop": True, "only": "",
    },
}  # fmt: skip
_TARGETED: tuple[str, dict[str, Any]] = ("apgd", {"loss": "dlr-targeted"})
_SQUARE: tuple[str, dict[str, Any]] = ("square", {"rescale_schedule": False})
_VERSIONS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "standard": {"apgd-ce": ("apgd", {}), "apgd-t": _TARGETED, "fab-t": ("fab", {}), "square": _SQUARE},
    "plus": {
        "apgd-ce": ("apgd", {"restarts": 5}),
        "apgd-dlr": ("apgd", {"loss": "dlr", "restarts": 5}),
        "fab": ("fab", {"targets": 0, "restarts": 5}),
        "square": _SQUARE,
        "apgd-t": _TARGETED,
        "fab-t": ("fab", {}),
    },
    "rand": {"apgd-ce": ("apgd", {"eot": 20}), "apgd-dlr": ("apgd", {"loss": "dlr", "eot": 20})},
}
_ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "fgsm": {"loss": ("ce",)},
    "pgd": {"restarts": (1,), "early_stop": (False,), "loss": ("ce",)},
    "apgd": {"loss": ("ce", "dlr", "dlr-targeted")},
    "square": {"loss": ("margin", "ce")},
    "autoattack": {"version": tuple(_VERSIONS), "only": ("",)},
}


def supported(engine: str) -> tuple[str, ...]:
    """Return the names of RobustKit's attacks that a peer can make; raises ProtocolError for an unknown engine."""
    if engine not in _SUPPORTED:
        raise ProtocolError(unknown("engine", engine, ENGINES))
    return _SUPPORTED[engine]


def peer(engine: str, name: str, threat: ThreatModel, parameters: Mapping[str, Any]) -> PeerAttack:
    """Return the attack `name` of RobustKit as the library `engine` makes it.

    parameters: RobustKit's own, resolved; a missing one has the default of its attack.

    Raises:
        ProtocolError: an engine without this attack, an unknown parameter, a value, norm or bounds that it cannot do
            with the same meaning, or a library that is not installed.
    """
    from .peers import PeerAttack

    ours = "use --engine robustkit"
    if engine == "robustkit":
        raise ProtocolError(f"engine robustkit is not a peer; expected one of: {', '.join(_SUPPORTED)}")
    names = supported(engine)
    if name not in names:
        listed = ", ".join(names)
        raise ProtocolError(f"engine {engine} has no {name} that means the same; expected one of: {listed}; or {ours}")
    resolved = _DEFAULTS[name] | dict(parameters)
    for key, value in resolved.items():
        if key not in _DEFAULTS[name]:
            raise ProtocolError(unknown(f"parameter of {name}", key, _DEFAULTS[name]))
        able = _ONLY.get(name, {}).get(key, (value,))
        if value not in able:
            said, expected = str(value).lower(), " or ".join(str(choice).lower() for choice in able)
            raise ProtocolError(f"engine {engine}, {name}: {key} is {said}; expected {expected}; or {ours}")
    if threat.bounds != (0.0, 1.0) or threat.cut_images:
        bounds = f"{threat.bounds}{' with cut_images' * threat.cut_images}"
        raise ProtocolError(
            f"engine {engine} attacks images in [0, 1] and cuts to that; the bounds are {bounds}; {ours}"
        )
    stages = _stages(name, resolved)
    for stage in stages:
        reason = _gap(stage) if engine == "torchattacks" and threat.norm == "l2" else None
        if reason:
            what = name if stage.name == name else f"{stage.name} of {name}"
            raise ProtocolError(f"engine torchattacks, {what} under l2: {reason}")
    if importlib.util.find_spec(engine) is None:
        extra = 'pip install ".[reference]" in the source folder'
        raise ProtocolError(f"engine {engine} is not installed; {extra}, or pip install {engine}")
    return PeerAttack(threat, engine=engine, name=name, stages=stages)


def _stages(name: str, resolved: dict[str, Any]) -> tuple[PeerStage, ...]:
    """Return the stages of AutoAttack; any other attack is its own."""
    if name != "autoattack":
        return (PeerStage(name, name, resolved),)
    stages = []
    for stage, (attack, changes) in _VERSIONS[resolved["version"]].items():
        shared = {key: value for key, value in resolved.items() if key in _DEFAULTS[attack]}
        stages.append(PeerStage(stage, attack, _DEFAULTS[attack] | shared | changes))
    return tuple(stages)


def _gap(stage: PeerStage) -> str | None:
    """Return why torchattacks 3.5.1 does something else under l2, and what to do; None where it does not."""
    if stage.attack == "fgsm":
        return "it steps along the gradient's sign; use norm=linf or --engine robustkit"
    if stage.attack == "pgd" and stage.parameters["random_start"]:
        return "it draws a random start's radius evenly, not the point; use random_start=false or --engine robustkit"
    if stage.attack == "apgd" and stage.parameters["loss"] == "dlr-targeted":
        return "it steps every sample of a batch by the first one's step size; use --engine pyautoattack"
    if stage.attack == "square":
        return "each channel of a window gets the budget of all; use --engine pyautoattack"
    return None
