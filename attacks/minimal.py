"""Attacks that look for the smallest change that misleads the model: FMN in four norms, DDN in l2."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from .model_access import cross_entropy, input_gradient, margin, missed
from .queue import Front, Places, QueuedAttack, Runs, pick
from .threat import distance, onto_ball, per_sample, unit

_LAST_STEP = 0.01  # of the first
_LAST_GAMMA = 0.001
_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


@dataclass(frozen=True)
class Search(Runs):
    """Runs of such an attack, one at each sample. radius: of the ball that `points` move in.

    found: the nearest wrong point so far, the clean image where there is none. nearest: its distance, or infinity.
    """

    clean: Tensor
    labels: Tensor
    points: Tensor
    radius: Tensor
    nearest: Tensor
    found: Tensor


@dataclass(frozen=True)
class MinimalNorm(QueuedAttack):
    """An attack whose result is a distance: one run at each sample, which returns the nearest wrong point that it met,
    and the clean image where it met none.

    eps of the threat model decides which wrong points count, `math.inf`: all. An update takes a forward and a backward;
    each sample takes two more forwards, of the clean image and of the last point.

    steps: updates of each run. alpha: l2 length of the first step; it falls to a hundredth along a cosine. gamma: share
    by which the radius grows where the model is right, and shrinks where it is wrong.
    """

    minimal: ClassVar[bool] = True
    steps: int = 100
    alpha: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; expected 1 or more")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha}; expected a finite number above 0")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; expected a share between 0 and 1")

    @property
    def _start(self) -> float:
        """The radius before the first update."""
        return 1.0

    def _runs(self, classes: int) -> int:
        return 1

    def _begin(self, front: Front, rows: Tensor, runs: Tensor, places: Places) -> Runs:
        clean = front.clean[rows]
        radius = torch.full_like(rows, self._start, dtype=clean.dtype)
        nothing = torch.full_like(radius, torch.inf)
        return Search(
            rows, runs, torch.zeros_like(rows), places, clean, front.labels[rows], clean, radius, nothing, clean
        )

    def _advance(self, front: Front, state: Runs) -> Runs:
        s = cast("Search", state)
        over = [step == self.steps for step in s.places.steps]
        points = s.points.detach().requires_grad_(not all(over))
        logits = front.oracle(points) if points.requires_grad else front.oracle.predict(points)
        front.tally.count(s.rows, forwards=1)
        away = distance(self.threat.norm, s.points, s.clean)
        wrong = front.wrong(s.rows, s.points, missed(logits, s.labels))
        nearer = wrong & (away < s.nearest) & (away <= self.threat.eps)
        found = torch.where(per_sample(nearer, s.points), s.points, s.found)
        s = replace(s, found=found, nearest=torch.where(nearer, away, s.nearest))
        met = s.nearest.isfinite().tolist()
        front.report(s, s.found, away, [ends and met for ends, met in zip(over, met, strict=True)], [False] * len(s))
        loss = self._loss(logits, s.labels)
        s, stay = s.leave(over)
        if not len(s):
            return s
        gradient = pick(input_gradient(loss, points), stay)
        front.tally.count(s.rows, backwards=1, steps=1)
        s = self._update(s, pick(loss.detach(), stay), gradient, pick(wrong, stay), pick(away, stay))
        return replace(s, step=s.step + 1, places=s.places.later())

    def _annealed(self, s: Search, first: float, last: float) -> Tensor:
        """Return (n,) values that go from `first` to `last` along half a cosine, at the step of each run."""
        share = s.step.to(s.radius) / self.steps
        return last + (first - last) * (1 + torch.cos(math.pi * share)) / 2

    def _ahead(self, s: Search, gradient: Tensor) -> Tensor:
        """Return the change (n, ...) of the points after a step along the gradient."""
        length = self._annealed(s, self.alpha, _LAST_STEP * self.alpha)
        return s.points - s.clean + unit(gradient) * per_sample(length, gradient)

    def _inside(self, s: Search, change: Tensor) -> Tensor:
        points = s.clean + change
        return points if self.threat.bounds is None else points.clamp_(*self.threat.bounds)

    @abstractmethod
    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss (n,) that the attack raises."""

    @abstractmethod
    def _update(self, s: Search, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> Search:
        """Return the runs with new radii and points. wrong, away: of the points before; gradient: may be changed."""


@dataclass(frozen=True)
class FMN(MinimalNorm):
    """The fast minimum-norm attack (Pintor et al. 2021, arXiv:2102.12827) in linf, l2, l1 or l0 (values that change).

    It climbs the margin in a ball whose radius follows the boundary: before a wrong point was met it is what a linear
    model would ask for, then it shrinks while the points are wrong and grows while they are right, by a share that
    falls from `gamma` to a thousandth. In l0 the radius changes by one value at least.

    Unlike in the paper the radius also grows by that share before a wrong point was met, and leads beyond the boundary
    of the linear model: otherwise points cut to the bounds stay inside for ever, and a linear model is never misled.
    """

    norms: ClassVar[tuple[str, ...]] = ("linf", "l2", "l1", "l0")

    @property
    def stage(self) -> str:
        return "fmn"

    @property
    def _start(self) -> float:
        return 1.0 if self.threat.norm == "l0" else 0.0

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return margin(logits, labels)

    def _update(self, s: Search, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> Search:
        norm, gamma = self.threat.norm, self._annealed(s, self.gamma, _LAST_GAMMA)
        if norm == "l0":
            wider = torch.maximum(s.radius + 1, (s.radius * (1 + gamma)).floor())
            tighter = torch.minimum(s.radius - 1, (s.radius * (1 - gamma)).floor()).clamp_(min=0)
        else:
            slope = torch.linalg.vector_norm(gradient.flatten(1), ord=_DUAL[norm], dim=1).clamp_(min=1e-12)
            to_plane = (away + (1 + gamma) * (loss.abs() / slope).to(away)).nan_to_num_(nan=torch.inf)
            wider = s.radius * (1 + gamma)
            wider = torch.where(s.nearest.isfinite(), wider, torch.maximum(wider, to_plane))
            tighter = s.radius * (1 - gamma)
        radius = torch.where(wrong, torch.minimum(tighter, s.nearest), wider)
        return replace(s, radius=radius, points=self._inside(s, onto_ball(norm, self._ahead(s, gradient), radius)))


@dataclass(frozen=True)
class DDN(MinimalNorm):
    """Decoupled direction and norm (Rony et al. 2019, arXiv:1811.09600), in l2.

    It climbs the cross-entropy, and every point lies on the sphere of the radius, which grows by the share `gamma`
    where the model was right and shrinks by it where it was wrong; it begins at 1. Levels are not rounded.
    """

    norms: ClassVar[tuple[str, ...]] = ("l2",)

    @property
    def stage(self) -> str:
        return "ddn"

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels)

    def _update(self, s: Search, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> Search:
        radius = s.radius * torch.where(wrong, 1 - self.gamma, 1 + self.gamma)
        change = unit(self._ahead(s, gradient))
        return replace(s, radius=radius, points=self._inside(s, change * per_sample(radius, change)))
