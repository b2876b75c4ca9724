"""Attacks made by a peer library, run and counted as our own are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks import Attack, AttackResult, Rng, StagedResult
from attacks.attack import Tally, Tell
from attacks.model_access import Oracle, missed
from attacks.threat import round_towards

from ...common.determinism import seeded
from .engines import PeerStage, make_perturb

_LEAST_CLASSES = {"dlr": 3, "dlr-targeted": 4}


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
        """Raise ValueError for images or labels that the peer cannot take, too."""
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
    """Counts by stage. Row 0 of each is the classification of the clean images."""

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
        """Find labels, the number of classes, and who is wrong before any attack."""
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
            self._fell(0, part, self.images[part], missed(logits[part], self.labels[part]))
        self.seconds[0] = time.perf_counter() - begin

    def enter(self, position: int, stage: PeerStage, seed: int) -> None:
        """Hand the samples of a stage to the peer, batch by batch."""
        begin = time.perf_counter()
        if self._too_few(stage):
            return
        counter = _Counter(self.oracle)
        model = counter.module(self.clean.device)
        perturb = make_perturb(self.attack.engine, stage, model, self.attack.threat, seed, self.classes)
        rows = self.standing.nonzero().flatten() if self.staged else self.everyone
        with torch.set_grad_enabled(stage.attack in ("fgsm", "pgd")):  # the others enable a graph where they need one
            for part in torch.split(rows, self.batch_size) if len(rows) else ():
                points = round_towards(self.images[part], perturb(self.clean[part], self.labels[part]).detach())
                if self.staged:
                    wrong = missed(counter(points), self.labels[part])
                    self._fell(position, part, points, wrong & self._inside(part, points))
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
        least = _LEAST_CLASSES.get(loss, 2)
        if self.classes < least and not self.staged:
            raise ValueError(f"the {loss} loss needs at least {least} classes, the model has {self.classes}; use 'ce'")
        if self.classes < least:
            self.notes.append(f"{self.classes} classes: {stage.name} left out, its loss needs {least}")
        elif self.classes <= asked and self.staged and stage.name.endswith("-t"):
            self.notes.append(f"{self.classes} classes: {stage.name} has {self.classes - 1} targets instead of {asked}")
        return self.classes < least

    def _inside(self, part: Tensor, points: Tensor) -> Tensor:
        """Return which points lie inside eps, give or take float32 rounding."""
        eps = self.attack.threat.eps
        return self.attack.threat.distance(points, self.images[part]) <= eps * (1 + 1e-5) + 1e-6

    def _fell(self, position: int, part: Tensor, points: Tensor, wrong: Tensor) -> None:
        """Note which samples of `part` stage `position` broke."""
        if self.staged:
            wrong, asked = self.oracle.confirm(points, self.labels[part], wrong)
            self.stage_forwards[position, part] += asked.long()
        self.ends[part[wrong]] = points[wrong]
        self.broken_by[part[wrong]] = position
        self.standing[part[wrong]] = False

    def result(self, adversarials: Tensor) -> AttackResult:
        self.forwards, self.backwards = self.stage_forwards.sum(dim=0), self.stage_backwards.sum(dim=0)
        if not self.staged:
            return super().result(adversarials)
        return StagedResult(
            adversarials,
            self.steps,
            self.forwards,
            self.backwards,
            self.broken_at,
            stages=("clean", *(stage.name for stage in self.attack.stages)),
            broken_by=self.broken_by,
            stage_forwards=self.stage_forwards,
            stage_backwards=self.stage_backwards,
            seconds=tuple(self.seconds),
            notes=tuple(self.notes),
        )


class _Counter:
    """The model as a peer sees it: float32 logits, contiguous gradients, and a count of every row that passes."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.forwards = self.backwards = 0

    def __call__(self, points: Tensor) -> Tensor:
        self.forwards += len(points)
        points = points.view_as(points)  # a peer may show one leaf several times; each forward needs its own hook
        if points.requires_grad:
            points.register_hook(self._backward)  # type: ignore[no-untyped-call]
        return self.oracle(points).clone().float()  # Square writes into the logits

    def _backward(self, gradient: Tensor) -> Tensor:
        self.backwards += len(gradient)
        return gradient.contiguous()  # peers view gradients, which needs a contiguous layout

    def module(self, device: Any) -> nn.Module:
        """Return an nn.Module without parts, so that a peer has nothing to switch into another mode.

        Its one empty parameter shows the device: torchattacks looks there.
        """
        module = torch.nn.Module()
        module.forward = self
        module.register_parameter("where", torch.nn.Parameter(torch.empty(0, device=device), requires_grad=False))
        return module

    def spread(self, forwards: Tensor, backwards: Tensor, part: Tensor) -> None:
        """Add what was counted since the last call to the samples `part` (n,) of both (B,), in equal shares."""
        for counts, total in ((forwards, self.forwards), (backwards, self.backwards)):
            each, left = divmod(total, len(part))
            counts[part] += each
            counts[part[:left]] += 1
        self.forwards = self.backwards = 0
