"""Attacks as other libraries make them, run and counted as our own are: `--engine pyautoattack` and the like.

`peer("pyautoattack", "autoattack", threat, {}).run(...)` takes and returns what `attacks.Attack.run` does. A peer gets
exactly the parameters that were asked for; what it cannot do with the same meaning is refused before any work.
AutoAttack runs the peer's own members, one stage after the other, each on the samples that still stand, as the original
does (Croce and Hein 2020; `AutoAttack._set_version` of pyautoattack 0.2.0 for the settings).

A peer is loaded on first use.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from attacks import Attack, AttackResult, AutoAttack, Rng, StagedResult, ThreatModel
from attacks.attack import Tally, Tell
from attacks.model_access import Oracle, is_missed
from attacks.pgd import STEP_SHARES
from attacks.registry import ATTACKS
from attacks.threat import round_towards

from ...common.determinism import seeded
from ...errors import ProtocolError, unknown
from ...evaluations.attacks import ENGINES

Perturb = Callable[[Tensor, Tensor], Tensor]

_MEMBERS = {"pyautoattack": {"apgd": "autopgd_base.APGDAttack", "apgd-t": "autopgd_base.APGDAttack_targeted"}}
_MEMBERS["pyautoattack"] |= {"fab": "fab_pt.FABAttack_PT", "square": "square.SquareAttack"}
_MEMBERS["torchattacks"] = {"fgsm": "FGSM", "pgd": "PGD", "pgd-l2": "PGDL2", "apgd": "APGD", "apgd-t": "APGDT"}
_MEMBERS["torchattacks"] |= {"fab": "FAB", "square": "Square"}
_RENAMED = {"restarts": "n_restarts", "eot": "eot_iter", "queries": "n_queries", "rescale_schedule": "resc_schedule"}


class PeerStage(NamedTuple):
    """One attack of a peer: RobustKit's name for it and all its parameters; `name` is what AutoAttack calls it."""

    name: str
    attack: str
    parameters: dict[str, Any]


def make_perturb(
    engine: str, stage: PeerStage, model: nn.Module, threat: ThreatModel, seed: int, classes: int
) -> Perturb:
    """Make the peer's own attack: images (n, C, H, W) float32 in [0, 1] and labels (n,) to points."""
    values, eps = stage.parameters, threat.eps
    targeted = values.get("loss") == "dlr-targeted"
    kind = f"{stage.attack}{'-t' * targeted}{'-l2' * (stage.attack == 'pgd' and threat.norm == 'l2')}"
    member = resolve_name(f"{engine}.{_MEMBERS[engine][kind]}")
    attack: Perturb
    if stage.attack in ("fgsm", "pgd"):
        size = STEP_SHARES[threat.norm] * eps if values.get("step_size") is None else values["step_size"]
        attack = member(model, eps, *((size, values["steps"], values["random_start"]) if stage.attack == "pgd" else ()))
        return attack
    original = engine == "pyautoattack"
    renamed = _RENAMED | ({"steps": "n_iter"} if original else {})
    # early_stop and relinearise only spend passes: peers have one way.
    unsaid = {"early_stop", "relinearise", "targets", "order"} | ({"loss"} if targeted else set())
    words = {renamed.get(key, key): value for key, value in values.items() if key not in unsaid}
    targets = min(values.get("targets", 0), classes - 1)
    several = targeted or (stage.attack == "fab" and targets > 0)
    if several:  # torchattacks aims at n_classes - 1 targets, whatever the model has
        words |= {"n_target_classes": targets} if original else {"n_classes": targets + 1}
    if several and stage.attack == "fab":
        words["targeted" if original else "multi_targeted"] = True
    made = member(model, norm=threat.norm.capitalize(), eps=eps, seed=seed, **words)
    attack = made.perturb if original else made
    return attack


_SUPPORTED = {
    "pyautoattack": ("autoattack", "apgd", "fab", "square"),
    "torchattacks": ("fgsm", "pgd", "apgd", "fab", "square", "autoattack"),
}


def _parameters(attack: Any) -> dict[str, Any]:
    """Return the parameters of an attack of RobustKit's, by name; given its class, the usual ones."""
    names = (part.name for part in fields(attack) if part.init and part.name not in ("threat", "chunk"))
    return {name: getattr(attack, name) for name in names}


_ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "fgsm": {"loss": ("ce",)},
    "pgd": {"restarts": (1,), "early_stop": (False,), "loss": ("ce",)},
    "apgd": {"loss": ("ce", "dlr", "dlr-targeted"), "order": ("logits",)},
    "square": {"loss": ("margin", "ce")},
    "autoattack": {"version": ("standard", "plus", "rand"), "only": ("",)},
}


def peer(engine: str, name: str, threat: ThreatModel, parameters: Mapping[str, Any]) -> PeerAttack:
    """Return the attack `name` of RobustKit as the library `engine` makes it; a missing parameter has its default.

    Raises ProtocolError for an attack, parameter, value, norm or bounds that it cannot do with the same meaning, and
    for a library that is not installed.
    """
    ours = "use --engine robustkit"
    if engine == "robustkit":
        raise ProtocolError(f"engine robustkit is not a peer; expected one of: {', '.join(_SUPPORTED)}")
    if engine not in _SUPPORTED:
        raise ProtocolError(unknown("engine", engine, ENGINES))
    if name not in _SUPPORTED[engine]:
        listed = ", ".join(_SUPPORTED[engine])
        raise ProtocolError(f"engine {engine} has no {name} that means the same; expected one of: {listed}; or {ours}")
    defaults = _parameters(ATTACKS[name])
    resolved = defaults | dict(parameters)
    for key, value in resolved.items():
        if key not in defaults:
            raise ProtocolError(unknown(f"parameter of {name}", key, defaults))
        able = _ONLY.get(name, {}).get(key, (value,))
        if value not in able:
            text, expected = str(value).lower(), " or ".join(str(choice).lower() for choice in able)
            raise ProtocolError(f"engine {engine}, {name}: {key} is {text}; expected {expected}; or {ours}")
    if threat.bounds != (0.0, 1.0) or threat.cut_images:
        bounds = f"the bounds are {threat.bounds}{' with cut_images' * threat.cut_images}"
        raise ProtocolError(f"engine {engine} attacks images in [0, 1] and cuts to that; {bounds}; {ours}")
    stages = _stages(name, threat, resolved)
    for stage in stages:
        if engine == "torchattacks" and threat.norm == "l2" and (reason := _gap(stage)):
            what = name if stage.name == name else f"{stage.name} of {name}"
            raise ProtocolError(f"engine torchattacks, {what} under l2: {reason}")
    if importlib.util.find_spec(engine) is None:
        extra = 'pip install ".[reference]" in the source folder'
        raise ProtocolError(f"engine {engine} is not installed; {extra}, or pip install {engine}")
    return PeerAttack(threat, engine=engine, name=name, stages=stages)


def _stages(name: str, threat: ThreatModel, resolved: dict[str, Any]) -> tuple[PeerStage, ...]:
    if name != "autoattack":
        return (PeerStage(name, name, resolved),)
    stages = AutoAttack(threat, **resolved).stages(classes=max(4, resolved["targets"] + 1))  # enough for every loss
    names = {kind: name for name, kind in ATTACKS.items()}
    return tuple(PeerStage(each.stage, names[type(each)], _parameters(each)) for each in stages)


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


@dataclass(frozen=True, kw_only=True)
class PeerAttack(Attack):
    """An attack that a peer makes.

    What differs from RobustKit's own:
    - The clean images are classified first, one forward each, for labels and the number of classes.
    - Peers take samples in batches and reorder them, so a batch's passes are spread evenly over its samples, and the
      remainder goes to the first ones: the sums are exact. `broken_at` is -1; `steps` is 0 except for FGSM and PGD.
    - Points are what the peer returned, not projected. In AutoAttack a sample is broken when its returned point is
      classified wrongly (and the judge agrees) and lies inside eps; the samples that stand come back as they were.
    - Peers seed torch's global generator; their seed is a function of `rng`, and the generator is restored afterwards.
    - `tell` is called for each batch; outside AutoAttack a sample counts as standing until its point has moved.
    - AutoAttack leaves out a stage whose loss needs more classes than there are, and says so in `notes`.
    """

    engine: str
    name: str
    stages: tuple[PeerStage, ...]
    queues: ClassVar[bool] = True

    def _check(self, images: Tensor, labels: Tensor | None, batch_size: int | None) -> None:
        if labels is not None and labels.ndim > 1:
            raise ValueError(f"{self.engine} leads away from one label; for several valid ones use --engine robustkit")
        super()._check(images, labels, batch_size)
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}; {self.engine} expects (B, C, H, W)")
        squares = self.engine == "torchattacks" and any(stage.attack == "square" for stage in self.stages)
        if squares and images.shape[2] != images.shape[3]:
            shape = tuple(images.shape)
            raise ValueError(f"images have shape {shape}; torchattacks' Square needs H equal to W; use pyautoattack")

    def _tally(self, batch: int, device: torch.device, tell: Tell | None) -> Tally:
        return _PeerTally(self, batch, device, tell)

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, _PeerTally)
        seed = int(rng.uniform((1,), "engine/seed")[0].item() * 2**24)
        with seeded(clean.device, seed):
            tally.classify(oracle, clean, labels)
            for position, stage in enumerate(self.stages, 1):
                tally.enter(position, stage, seed)
        return tally.ends


class _PeerTally(Tally):
    """Counts by stage. Result 0 of each is the classification of the clean images."""

    def __init__(self, attack: PeerAttack, batch: int, device: torch.device, tell: Tell | None) -> None:
        super().__init__(batch, device, tell)
        self.attack, self.staged = attack, attack.name == "autoattack"
        count = len(attack.stages) + 1
        self.everyone = torch.arange(batch, device=device)
        self.broken_by = torch.full_like(self.everyone, -1)
        self.standing = torch.ones_like(self.everyone, dtype=torch.bool)
        self.stage_forwards, self.stage_backwards = torch.zeros(2, count, batch, dtype=torch.int64, device=device)
        self.seconds = [0.0] * count

    def classify(self, oracle: Oracle, clean: Tensor, labels: Tensor | None) -> None:
        begin = time.perf_counter()
        self.oracle, self.batch_size = oracle, oracle.batch_size or len(clean)
        self.images = clean.to(oracle.dtype)
        self.clean = clean.float().contiguous()  # the peers view and cast
        self.ends = self.images.clone()
        parts = torch.split(self.everyone, self.batch_size)
        logits = torch.cat([self.oracle.predict(self.clean[part]) for part in parts])
        self.stage_forwards[0] += 1
        self.classes = logits.shape[1]
        predicted = logits.argmax(dim=1)
        self.labels = predicted if labels is None else labels.to(predicted)
        for part in parts:
            self._fell(0, part, self.images[part], is_missed(logits[part], self.labels[part]))
        self.seconds[0] = time.perf_counter() - begin

    def enter(self, position: int, stage: PeerStage, seed: int) -> None:
        if self._too_few(stage):
            return
        begin = time.perf_counter()
        counter, threat = _Counter(self.oracle, self.clean.device), self.attack.threat
        perturb = make_perturb(self.attack.engine, stage, counter, threat, seed, self.classes)
        rows = self.standing.nonzero().flatten() if self.staged else self.everyone
        with torch.set_grad_enabled(stage.attack in ("fgsm", "pgd")):  # the others enable a graph where they need one
            for part in torch.split(rows, self.batch_size) if len(rows) else ():
                points = round_towards(self.images[part], perturb(self.clean[part], self.labels[part]).detach())
                if self.staged:
                    wrong = is_missed(counter(points), self.labels[part])
                    wrong &= threat.distance(points, self.images[part]) <= threat.eps * (1 + 1e-5) + 1e-6  # rounding
                    self._fell(position, part, points, wrong)
                else:
                    self.ends[part] = points
                    self.standing[part] &= (points == self.images[part]).flatten(1).all(dim=1)
                    self.steps[part] = {"fgsm": 1, "pgd": stage.parameters.get("steps", 0)}.get(stage.attack, 0)
                counter.spread(self.stage_forwards[position], self.stage_backwards[position], part)
                done = int((rows <= part[-1]).sum())
                self.tell(stage.name, int(self.standing.sum()), done / len(rows))
        self.seconds[position] = time.perf_counter() - begin

    def _too_few(self, stage: PeerStage) -> bool:
        """Whether the stage must be left out; raises ValueError where there is nothing else."""
        asked, loss = stage.parameters.get("targets", 0), stage.parameters.get("loss", "")
        least = {"dlr": 3, "dlr-targeted": 4}.get(loss, 2)  # classes
        if self.classes < least and not self.staged:
            raise ValueError(f"the {loss} loss needs at least {least} classes, the model has {self.classes}; use 'ce'")
        if self.classes < least:
            self.notes.append(f"{self.classes} classes: {stage.name} left out, its loss needs {least}")
        elif self.classes <= asked and self.staged and stage.name.endswith("-t"):
            self.notes.append(f"{self.classes} classes: {stage.name} has {self.classes - 1} targets instead of {asked}")
        return self.classes < least

    def _fell(self, position: int, part: Tensor, points: Tensor, wrong: Tensor) -> None:
        if self.staged:
            wrong, asked = self.oracle.confirm(points, self.labels[part], wrong, part)
            self.stage_forwards[position, part] += asked.long()
        self.ends[part[wrong]] = points[wrong]
        self.broken_by[part[wrong]] = position
        self.standing[part[wrong]] = False

    def result(self, adversarials: Tensor) -> AttackResult:
        self.forwards, self.backwards = self.stage_forwards.sum(dim=0), self.stage_backwards.sum(dim=0)
        result = super().result(adversarials)
        if not self.staged:
            return result
        names = ("clean", *(stage.name for stage in self.attack.stages))
        passes = {"stage_forwards": self.stage_forwards, "stage_backwards": self.stage_backwards}
        seconds = tuple(self.seconds)
        return StagedResult(**vars(result), stages=names, broken_by=self.broken_by, **passes, seconds=seconds)


class _Counter(nn.Module):
    """The model as a peer sees it: float32 logits, contiguous gradients, and a count of every row that passes.

    It has no modes that a peer could switch. Its empty parameter shows torchattacks the device.
    """

    def __init__(self, oracle: Oracle, device: torch.device) -> None:
        super().__init__()
        self.oracle, self.forwards, self.backwards = oracle, 0, 0
        self.where = nn.Parameter(torch.empty(0, device=device), requires_grad=False)

    def forward(self, points: Tensor) -> Tensor:
        self.forwards += len(points)
        points = points.view_as(points)  # a peer may show one leaf several times; each forward needs its own hook
        if points.requires_grad:
            points.register_hook(self._backward)  # type: ignore[no-untyped-call]
        return self.oracle(points).clone().float()  # Square writes into the logits

    def _backward(self, gradient: Tensor) -> Tensor:
        self.backwards += len(gradient)
        return gradient.contiguous()  # peers view gradients, which needs a contiguous layout

    def spread(self, forwards: Tensor, backwards: Tensor, part: Tensor) -> None:
        """Add what was counted since the last call to the samples `part` (n,) of both (B,), in equal shares."""
        for counts, total in ((forwards, self.forwards), (backwards, self.backwards)):
            each, left = divmod(total, len(part))
            counts[part] += each
            counts[part[:left]] += 1
        self.forwards = self.backwards = 0
