"""Attacks made by a peer library, run and counted as our own are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks import AttackResult, Rng, StagedResult, ThreatModel, TorchRng
from attacks.attack import Tell, check_arguments
from attacks.frozen import Model, Oracle, frozen
from attacks.labels import missed
from attacks.threat import round_towards

from .peer_libraries import PeerStage, make_perturb

_LEAST_CLASSES = {"dlr": 3, "dlr-targeted": 4}


@dataclass(frozen=True)
class PeerAttack:
    """An attack that a peer makes; `run` is that of `attacks.Attack`.

    What differs from RobustKit's own:
    - The clean images are classified first, a forward each, for labels and the number of classes.
    - Peers take samples in batches and reorder them, so a batch's passes are spread evenly over its samples, and what
      does not divide goes to the first ones: the sums are exact. `broken_at` is -1; `steps` is 0 but for FGSM and PGD.
    - Points are what the peer returned, not projected. In AutoAttack a sample is broken when its returned point is
      classified wrongly (and the judge agrees) and lies inside eps; the samples that stand come back as they were.
    - Peers seed torch's global generator; theirs is a function of `rng`, and the generator is put back afterwards.
    - `tell` hears of each batch; outside AutoAttack a sample counts as standing until its point has moved.
    - AutoAttack leaves out a stage whose loss needs more classes than there are, and says so in `notes`.
    """

    engine: str
    name: str
    threat: ThreatModel
    stages: tuple[PeerStage, ...]
    queues: ClassVar[bool] = True

    def run(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        rng: Rng | None = None,
        judge: Model | None = None,
        batch_size: int | None = None,
        tell: Tell | None = None,
    ) -> AttackResult | StagedResult:
        """Raises what `attacks.Attack.run` does, and ValueError for images or models that the peer cannot take."""
        if labels is not None and labels.ndim > 1:
            raise ValueError(f"{self.engine} leads away from one label; for several valid ones use --engine robustkit")
        top_label = check_arguments(images, labels, self.threat, batch_size)
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}; {self.engine} expects (B, C, H, W)")
        squares = self.engine == "torchattacks" and any(stage.attack == "square" for stage in self.stages)
        if squares and images.shape[2] != images.shape[3]:
            shape = tuple(images.shape)
            raise ValueError(f"images have shape {shape}; torchattacks' Square needs H equal to W; use pyautoattack")
        with frozen(model), frozen(judge or model):
            work = _Work(self, Oracle(model, images.dtype, top_label, judge), images.detach(), batch_size, tell)
            if len(images) and self.threat.eps:
                draw = (rng or TorchRng(len(images), images.device)).uniform((1,), "engine/seed")[0]
                seed = int(draw.item() * 2**24)
                with _seeded(seed):
                    work.classify(labels)
                    for position, stage in enumerate(self.stages, 1):
                        work.enter(position, stage, seed)
        return work.result()


class _Work:
    """A run under way. Row 0 of `forwards`, `backwards` and `seconds` is the classification of the clean images."""

    def __init__(
        self, attack: PeerAttack, oracle: Oracle, images: Tensor, batch_size: int | None, tell: Tell | None
    ) -> None:
        self.attack, self.oracle, self.images = attack, oracle, images
        self.staged = attack.name == "autoattack"
        self.batch_size, self.tell = batch_size or max(1, len(images)), tell
        self.clean = images.float().contiguous()  # the peers view and cast
        self.ends = images.clone()
        rows, count = len(images), len(attack.stages) + 1
        self.everyone = torch.arange(rows, device=images.device)
        self.broken_by = torch.full_like(self.everyone, -1)
        self.standing = torch.ones_like(self.everyone, dtype=torch.bool)
        self.forwards, self.backwards = torch.zeros(2, count, rows, dtype=torch.int64, device=images.device)
        self.steps = torch.zeros_like(self.everyone)
        self.seconds, self.notes = [0.0] * count, list[str]()

    def classify(self, labels: Tensor | None) -> None:
        """Labels, number of classes, and who is wrong before any attack."""
        begin = time.perf_counter()
        parts = torch.split(self.everyone, self.batch_size)
        logits = torch.cat([self.oracle.predict(self.clean[part]) for part in parts])
        self.forwards[0] += 1
        self.classes = logits.shape[1]
        if self.classes < 2:
            raise ValueError(f"the model has {self.classes} class; an attack needs at least 2")
        predicted = logits.argmax(dim=1)
        self.labels = predicted if labels is None else labels.to(predicted)
        for part in parts:
            self._fell(0, part, self.images[part], missed(logits[part], self.labels[part]))
        self.seconds[0] = time.perf_counter() - begin

    def enter(self, position: int, stage: PeerStage, seed: int) -> None:
        """Hands the samples of a stage to the peer, batch by batch."""
        begin = time.perf_counter()
        if self._too_few(stage):
            return
        counter = _Counter(self.oracle)
        model = counter.module(self.clean.device)
        perturb = make_perturb(self.attack.engine, stage, model, self.attack.threat, seed, self.classes)
        rows = self.standing.nonzero().flatten() if self.staged else self.everyone
        with torch.set_grad_enabled(stage.attack in ("fgsm", "pgd")):  # the others ask for a graph where they need one
            for part in torch.split(rows, self.batch_size) if len(rows) else ():
                points = round_towards(self.images[part], perturb(self.clean[part], self.labels[part]).detach())
                if self.staged:
                    wrong = missed(counter(points), self.labels[part])
                    self._fell(position, part, points, wrong & self._inside(part, points))
                else:
                    self.ends[part] = points
                    self.standing[part] &= (points == self.images[part]).flatten(1).all(dim=1)
                    self.steps[part] = {"fgsm": 1, "pgd": stage.parameters.get("steps", 0)}.get(stage.attack, 0)
                counter.spread(self.forwards[position], self.backwards[position], part)
                if self.tell:
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
        """Which points lie inside eps, give or take float32 rounding."""
        eps = self.attack.threat.eps
        return self.attack.threat.distance(points, self.images[part]) <= eps * (1 + 1e-5) + 1e-6

    def _fell(self, position: int, part: Tensor, points: Tensor, wrong: Tensor) -> None:
        """Notes the samples of `part` that stage `position` broke."""
        if self.staged:
            wrong, asked = self.oracle.confirm(points, self.labels[part], wrong)
            self.forwards[position, part] += asked.long()
        self.ends[part[wrong]] = points[wrong]
        self.broken_by[part[wrong]] = position
        self.standing[part[wrong]] = False

    def result(self) -> AttackResult | StagedResult:
        sums = self.forwards.sum(dim=0), self.backwards.sum(dim=0), self.broken_by.new_full(self.broken_by.shape, -1)
        if not self.staged:
            return AttackResult(self.ends, self.steps, *sums)
        names = ("clean", *(stage.name for stage in self.attack.stages))
        return StagedResult(
            self.ends, self.steps, *sums, names, self.broken_by, self.forwards, self.backwards, tuple(self.seconds),
            notes=tuple(self.notes),
        )  # fmt: skip


class _Counter:
    """The model as a peer sees it: float32 logits, contiguous gradients, and every row that passes counted."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.forwards = self.backwards = 0

    def __call__(self, points: Tensor) -> Tensor:
        self.forwards += len(points)
        points = points.view_as(points)  # one leaf may be asked several times, and each forward needs its own hook
        if points.requires_grad:
            points.register_hook(self._backward)  # type: ignore[no-untyped-call]
        return self.oracle(points).clone().float()  # Square writes into them

    def _backward(self, gradient: Tensor) -> Tensor:
        self.backwards += len(gradient)
        return gradient.contiguous()  # one that a model left in another layout cannot be viewed, which peers do

    def module(self, device: Any) -> nn.Module:
        """An nn.Module without parts, so that a peer has nothing to switch into another mode.

        Its one empty parameter says where it is: torchattacks looks there.
        """
        module = torch.nn.Module()
        module.forward = self
        module.register_parameter("where", torch.nn.Parameter(torch.empty(0, device=device), requires_grad=False))
        return module

    def spread(self, forwards: Tensor, backwards: Tensor, part: Tensor) -> None:
        """Adds what was counted since the last call to the samples `part` (n,) of both (B,), in equal shares."""
        for counts, total in ((forwards, self.forwards), (backwards, self.backwards)):
            each, left = divmod(total, len(part))
            counts[part] += each
            counts[part[:left]] += 1
        self.forwards = self.backwards = 0


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds torch's global generators, and puts them back on leaving, whatever was drawn or seeded meanwhile."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = list(range(torch.cuda.device_count())) if used else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
