"""Auto-PGD: projected gradient ascent that sets its own step size."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from .model_access import LOSSES, dlr_targeted, input_gradient, margin_targeted, missed
from .queue import Front, Places, QueuedAttack, Runs, pick, upload
from .threat import Ball, per_sample

APGD_LOSSES = ("ce", "dlr", "margin", "dlr-targeted", "margin-targeted")
MOMENTUM = 0.75  # weight of the gradient step against that of the last move


@dataclass(frozen=True)
class _Climb(Runs):
    """Runs of APGD. best, best_gradient, best_loss: of the highest point; checked_loss: of the last checkpoint.

    rises: updates since the checkpoint that raised the loss; halved: whether that checkpoint halved the step size.
    found, fell: the last wrong point and whether there was one (only looked at without early_stop).
    """

    ball: Ball
    labels: Tensor
    targets: Tensor
    points: Tensor
    previous: Tensor
    size: Tensor
    loss: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    checked_loss: Tensor
    rises: Tensor
    halved: Tensor
    fell: Tensor
    found: Tensor | None


@dataclass(frozen=True)
class APGD(QueuedAttack):
    """Auto-PGD (Croce and Hein 2020, arXiv:2003.01690, algorithm 1), untargeted or towards the likeliest classes.

    Steps of 2 eps with momentum; at checkpoints a run that rose too rarely halves its step and goes back to its best
    point. Each update costs a forward and a backward, the last point a forward, the clean image a forward once.

    Returns the first wrong point of a sample, otherwise the point of the highest loss over all runs.

    steps: updates of each run. rho: share of updates that must raise the loss between two checkpoints.
    restarts: runs from different random starts (for each target).
    loss: "ce", "dlr", "margin"; "dlr-targeted" and "margin-targeted" make runs towards `targets` classes each.
    targets: the classes with the largest logits on the clean image, in that order, labels left out; at most as many as
        there are.
    eot: passes averaged into each loss, prediction and gradient, for models with random outputs.
    early_stop: a sample leaves as soon as it is broken. Otherwise a run goes all its steps, and the last wrong point
        is returned, as in the published code; runs of one sample then follow each other.
    """

    steps: int = 100
    rho: float = 0.75
    restarts: int = 1
    loss: str = "ce"
    targets: int = 9
    eot: int = 1
    early_stop: bool = True

    def __post_init__(self) -> None:
        if self.loss not in APGD_LOSSES:
            raise ValueError(f"loss is {self.loss!r}; expected one of: {', '.join(APGD_LOSSES)}")
        for name in ("steps", "restarts", "targets", "eot"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if not 0 < self.rho <= 1:
            raise ValueError(f"rho is {self.rho}; expected a share above 0, at most 1")

    @property
    def stage(self) -> str:
        return "apgd-t" if self._targeted else f"apgd-{self.loss}"

    @property
    def _targeted(self) -> bool:
        return self.loss.endswith("targeted")

    @property
    def _aims(self) -> int:
        return self.targets if self._targeted else 0

    @property
    def _alone(self) -> int | None:
        return checkpoints(self.steps)[0] if self.early_stop else None

    def _runs(self, classes: int) -> int:
        return self.restarts * (min(self.targets, classes - 1) if self._targeted else 1)

    def _begin(self, front: Front, rows: Tensor, runs: Tensor, places: Places) -> Runs:
        clean = front.clean[rows]
        ball = self.threat.ball(clean)
        points = clean.clone()
        for run, which in places.of_each_run():
            index = upload(which, rows.device)
            points[index] = ball.take(index).random_start(front.rng.take(rows[index]), f"{self.stage}/start/{run}")
        targets = rows  # ignored by runs without targets
        if self._targeted:
            targets = front.targets(min(self.targets, front.logits.shape[1] - 1))[rows, runs // self.restarts]
        lowest = torch.full_like(rows, -torch.inf, dtype=clean.dtype)
        no = torch.zeros_like(rows, dtype=torch.bool)
        return _Climb(
            rows=rows,
            run=runs,
            step=torch.zeros_like(rows),
            places=places,
            ball=ball,
            labels=front.labels[rows],
            targets=targets,
            points=points,
            previous=points.clone(),
            size=torch.full_like(lowest, 2 * self.threat.eps),
            loss=lowest,
            best=points.clone(),
            best_gradient=torch.zeros_like(points),
            best_loss=lowest.clone(),
            checked_loss=lowest.clone(),
            rises=torch.zeros_like(rows),
            halved=~no,  # so that the first checkpoint only counts rises
            fell=no,
            found=None if self.early_stop else points.clone(),
        )

    def _advance(self, front: Front, state: Runs) -> Runs:
        s = cast("_Climb", state)
        over = [step == self.steps for step in s.places.steps]
        logits, losses, gradient_of = self._ask(front, s, last=all(over))
        wrong = front.wrong(s.rows, s.points, missed(logits, s.labels))
        if s.found is not None:  # reported at the end of the run
            s = replace(s, found=torch.where(per_sample(wrong, s.points), s.points, s.found), fell=s.fell | wrong)
            wrong = (s.step == self.steps) & s.fell
        falls = wrong.tolist()
        done = [ends and not fell for ends, fell in zip(over, falls, strict=True)]
        higher, ends = losses > s.best_loss, s.points if s.found is None else s.found
        if any(done):
            highest = torch.where(per_sample(higher, s.points), s.points, s.best)
            ends = torch.where(per_sample((s.step == self.steps) & ~wrong, ends), highest, ends)
        front.report(s, ends, torch.where(higher, losses, s.best_loss), falls, done)
        s, stay = s.leave([ends or fell for ends, fell in zip(over, falls, strict=True)])
        if not len(s):
            return s
        front.tally.count(s.rows, backwards=self.eot, steps=1)
        return self._climb(s, pick(losses, stay), gradient_of(stay))

    def _ask(self, front: Front, s: _Climb, last: bool) -> tuple[Tensor, Tensor, Callable[[Tensor | None], Tensor]]:
        """Return logits (n, K) and losses (n,) of the runs' points, and a function from an index to their gradients
        there.

        last: a gradient is no longer needed.
        """
        front.tally.count(s.rows, forwards=self.eot)
        answers, gradients = [], []
        for _ in range(self.eot):
            points = s.points.detach().requires_grad_(not last)
            logits = front.oracle.predict(points) if last else front.oracle(points)
            answers.append(logits.detach() / self.eot)
            if self.eot > 1 and not last:
                gradients.append(input_gradient(self._losses(logits, s), points) / self.eot)
        if self.eot > 1:
            total = sum(answers[1:], answers[0])
            losses = self._losses(total, s).to(s.points.dtype)
            return total, losses, lambda stay: pick(sum(gradients[1:], gradients[0]), stay)
        losses = self._losses(logits, s)

        def gradient_of(stay: Tensor | None) -> Tensor:
            return pick(input_gradient(pick(losses, stay), points), stay)

        return logits.detach(), losses.detach().to(s.points.dtype), gradient_of

    def _losses(self, logits: Tensor, s: _Climb) -> Tensor:
        if self.loss == "dlr-targeted":
            return dlr_targeted(logits, s.labels, s.targets)
        if self.loss == "margin-targeted":
            return margin_targeted(logits, s.labels, s.targets)
        return LOSSES[self.loss](logits, s.labels)

    def _climb(self, s: _Climb, losses: Tensor, gradient: Tensor) -> _Climb:
        """Return the runs after the checkpoint, where they are at one, and their next step."""
        begins = s.step == 0
        higher = losses > s.best_loss
        wide = per_sample(higher, s.points)
        best, best_gradient = torch.where(wide, s.points, s.best), torch.where(wide, gradient, s.best_gradient)
        best_loss = torch.where(higher, losses, s.best_loss)
        rises = s.rises + (~begins & (losses > s.loss))
        length = _lengths(self.steps, s.step.device)[s.step]
        check = length > 0
        stuck = ~s.halved & (s.checked_loss >= best_loss)
        halve = check & ((rises <= length * self.rho) | stuck)
        points, size = s.points, torch.where(halve, s.size / 2, s.size)
        if not set(checkpoints(self.steps)).isdisjoint(s.places.steps):
            back = per_sample(halve, points)
            points, gradient = torch.where(back, best, points), torch.where(back, best_gradient, gradient)
        keep = per_sample(begins.to(points.dtype).mul_(1 - MOMENTUM).add_(MOMENTUM), points)
        ahead = self.threat.steepest(gradient.clone()).mul_(per_sample(size, points)).add_(points)
        ahead = s.ball.project_(ahead).sub_(points).mul_(keep).add_(points)
        ahead.addcmul_(points - s.previous, 1 - keep)
        return replace(
            s,
            step=s.step + 1,
            places=s.places.later(),
            points=s.ball.project_(ahead),
            previous=points,
            size=size,
            loss=losses,
            best=best,
            best_gradient=best_gradient,
            best_loss=best_loss,
            checked_loss=torch.where(check, best_loss, s.checked_loss),
            rises=torch.where(check, 0, rises),
            halved=torch.where(check, halve, s.halved),
        )


@functools.cache
def _lengths(steps: int, device: torch.device) -> Tensor:
    """Return (steps + 1,): for each number of updates the updates since the last checkpoint if it is one, else 0."""
    table, before = [0] * (steps + 1), 0
    for at in checkpoints(steps):
        table[at], before = at - before, at
    return upload(table, device)


def checkpoints(steps: int) -> list[int]:
    """Return the updates after which a run is looked at: windows of 22 % of the steps, each 3 % shorter, at least 6 %
    (eq. 2).
    """
    length, shorter, least = (max(int(share * steps), 1) for share in (0.22, 0.03, 0.06))
    checkpoints = [length]
    while checkpoints[-1] < steps:
        length = max(length - shorter, least)
        checkpoints.append(checkpoints[-1] + length)
    return [at for at in checkpoints if at <= steps]
