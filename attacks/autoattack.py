"""AutoAttack: an ensemble of attacks without parameters to tune, each on the samples that still stand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from .apgd import APGD
from .attack import Attack, StagedResult, Tally, Tell
from .fab import FAB
from .model_access import Oracle
from .queue import Front, QueuedAttack, upload
from .rng import Rng
from .square import Square

Version = Literal["standard", "plus", "rand", "attention"]


class StagedTally(Tally):
    """Counts by stage as well; `enter` begins the next stage."""

    def __init__(self, batch: int, device: torch.device, tell: Tell | None) -> None:
        super().__init__(batch, device, tell)
        self.stages: list[str] = []
        self.passes: list[tuple[Tensor, Tensor]] = []
        self.since: list[float] = []
        self.broken_by = torch.full((batch,), -1, dtype=torch.int64, device=device)
        self.enter("clean")

    def enter(self, stage: str) -> None:
        """Begin a stage: what is counted from here on belongs to it."""
        self._close()
        self.stages.append(stage)
        self.since.append(time.perf_counter())
        self.passes.append((self.forwards.clone(), self.backwards.clone()))

    def _close(self) -> None:
        """Attribute samples broken since the last call to the stage that ends."""
        new = (self.broken_at >= 0) & (self.broken_by < 0)
        self.broken_by.masked_fill_(new, len(self.stages) - 1)

    def result(self, adversarials: Tensor) -> StagedResult:
        self._close()
        edges = [*self.passes, (self.forwards, self.backwards)]
        times = [*self.since, time.perf_counter()]
        forwards, backwards = (torch.stack([edge[which] for edge in edges]).diff(dim=0) for which in (0, 1))
        return StagedResult(
            adversarials,
            self.steps,
            self.forwards,
            self.backwards,
            self.broken_at,
            stages=tuple(self.stages),
            broken_by=self.broken_by,
            stage_forwards=forwards,
            stage_backwards=backwards,
            seconds=tuple(after - before for before, after in pairwise(times)),
            notes=tuple(self.notes),
        )


@dataclass(frozen=True)
class AutoAttack(Attack):
    """AutoAttack (Croce and Hein 2020, arXiv:2003.01690): robust accuracy as the pointwise worst case of its stages.

    version: "standard" is APGD on cross-entropy, targeted APGD on the DLR loss, targeted FAB, Square. "plus" gives
        APGD and untargeted FAB five restarts and adds APGD on DLR. "rand", for models with random outputs, is APGD on
        cross-entropy and DLR, each gradient and prediction averaged over 20 passes. "attention", for a model with
        `surrogates` (by name, functions with the model's answers and other gradients), is standard, and after it APGD
        on cross-entropy by the gradients of each surrogate: a sample falls to the best of them for it.
    steps: of APGD and FAB. targets: of targeted APGD and FAB; fewer where the model has fewer classes. queries: of
        Square.
    early_stop: samples leave at the first wrong prediction. Otherwise APGD and FAB run to their ends on what they were
        given, as the published code does, and FAB asks twice per step. Samples always leave Square at the first wrong
        prediction.
    only: the stages that run, joined by +, such as "apgd-ce" or "fab-t+square"; all of them where it is empty. What a
        stage draws does not depend on the others, so two halves in turn are the whole.

    With fewer than four classes (two) the loss of targeted APGD (APGD on DLR) is the difference of two logits, because
    the DLR loss needs a fourth (third) one; the same holds for a sample with so many valid labels that fewer compete.
    `run` returns a `StagedResult`. Samples that stand come back as they were.
    """

    version: Version = "standard"
    steps: int = 100
    targets: int = 9
    queries: int = 5000
    early_stop: bool = True
    only: str = ""
    queues: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.version not in get_args(Version):
            raise ValueError(f"version is {self.version!r}; expected one of: {', '.join(get_args(Version))}")
        for name in ("steps", "targets", "queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.only and self.version == "rand":
            raise ValueError("only is for models that answer alike each time; leave it out of version rand")
        known = self.stage_names
        if self.only and (odd := [name for name in self.only.split("+") if name not in known]):
            raise ValueError(f"only names {odd[0]!r}; expected some of {'+'.join(known)}")

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The names of all stages of the version, in their order, whichever of them run."""
        every = tuple(attack.stage for attack in self._all(10))
        return (*every, "attention") if self.version == "attention" else every

    def stages(self, classes: int) -> tuple[QueuedAttack, ...]:
        """Return the attacks that run, in their order, for a model with that many classes."""
        every = self._all(classes)
        named = [name for name in self.stage_names if name != "attention"]
        chosen = self.only.split("+") if self.only else named
        return tuple(attack for name, attack in zip(named, every, strict=True) if name in chosen)

    def _all(self, classes: int) -> tuple[QueuedAttack, ...]:
        """Return all attacks of the version in their order."""
        targets = min(self.targets, classes - 1)
        plus, rand = self.version == "plus", self.version == "rand"

        def apgd(loss: str) -> APGD:
            restarts, eot = 5 if plus and loss in ("ce", "dlr") else 1, 20 if rand else 1
            if classes < (4 if loss == "dlr-targeted" else 3):
                loss = loss.replace("dlr", "margin")
            return APGD(
                self.threat, self.steps, restarts=restarts, loss=loss, targets=targets, eot=eot,
                early_stop=self.early_stop,
            )  # fmt: skip

        def fab(count: int) -> FAB:
            return FAB(
                self.threat, self.steps, targets=count, restarts=1 if count else 5, relinearise=not self.early_stop,
                early_stop=self.early_stop,
            )  # fmt: skip

        # The original shrinks Square's squares as if it had 10000 queries.
        square = Square(self.threat, self.queries, rescale_schedule=False)
        if rand:
            return apgd("ce"), apgd("dlr")
        if plus:
            return apgd("ce"), apgd("dlr"), fab(0), square, apgd("dlr-targeted"), fab(targets)
        return apgd("ce"), apgd("dlr-targeted"), fab(targets), square

    def _tally(self, batch: int, device: torch.device, tell: Tell | None) -> StagedTally:
        return StagedTally(batch, device, tell)

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, StagedTally)
        if clean.ndim != 4 and self.version != "rand":
            raise ValueError(f"AutoAttack attacks images (B, C, H, W); these have shape {tuple(clean.shape)}")
        front = Front(oracle, clean, labels, rng, tally)
        classes = front.logits.shape[1]
        few = 3 if self.version == "rand" else 4
        if classes < few:
            tally.note(f"{classes} classes: the difference of logits as loss where DLR has too few of them")
        elif min(front.contenders) < few:
            tally.note(f"samples for which fewer than {few} classes compete: the difference of logits in place of DLR")
        for attack in self.stages(classes):
            if self.version != "rand":
                front.note_targets(self.targets)
            tally.enter(attack.stage)
            if any(front.standing):
                tally.tell(attack.stage, sum(front.standing), 0.0)
            attack.drain(front)
        if self.version == "attention" and "attention" in (self.only or "attention").split("+"):
            self._by_surrogates(front, oracle, tally)
        standing = upload([row for row, stands in enumerate(front.standing) if stands], clean.device)
        front.ends[standing] = clean[standing]
        return front.ends

    def _by_surrogates(self, front: Front, oracle: Oracle, tally: StagedTally) -> None:
        """Attack what stands by the gradients of each of the model's surrogates, as the stage `attention`."""
        surrogates = oracle.surrogates
        if not surrogates:
            raise ValueError(
                "version is 'attention', and the model has no surrogates; expected one whose attention is understood, "
                "or another version, such as 'standard'"
            )
        tally.enter("attention")
        for surrogate in surrogates.values():
            front.oracle = oracle.by(surrogate)
            APGD(self.threat, self.steps, early_stop=self.early_stop).drain(front)
