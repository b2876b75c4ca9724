"""Attacks that look for small changes: FMN in four norms, DDN in l2, and FAB along the decision boundary."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor

from .model_access import LOSSES, contains_label, input_gradient, is_missed, margin_targeted
from .queue import AttackState, Places, QueuedAttack, Restarts, pick, upload
from .threat import above_0, at_least, cached_rows, distance, onto_ball, per_sample, scale_to_unit, step_to_hyperplane

_LAST_STEP = 0.01  # of the first
_LAST_GAMMA = 0.001
_DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


@dataclass(frozen=True)
class NormSearch(Restarts):
    """Runs of such an attack, one at each sample."""

    clean: Tensor
    labels: Tensor
    points: Tensor
    radius: Tensor  # of the ball that they move in
    nearest: Tensor  # distance of `closest`, or infinity
    closest: Tensor  # the nearest wrong point so far, the clean image where there is none


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
    _loss: ClassVar[str]  # which of `LOSSES` the attack raises
    steps: int = 100
    alpha: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        at_least(1, self, "steps")
        above_0(self, "alpha")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; expected a share between 0 and 1")

    @property
    def _start(self) -> float:  # the radius before the first update
        return 1.0

    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        clean = front.clean[rows]
        radius = torch.full_like(rows, self._start, dtype=clean.dtype)
        nothing = torch.full_like(radius, torch.inf)
        begun = (rows, runs, torch.zeros_like(rows), places)
        return NormSearch(*begun, clean, front.labels[rows], clean, radius, nothing, clean)

    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        s = cast("NormSearch", state)
        over = [step == self.steps for step in s.places.steps]
        points = s.points.detach().requires_grad_(not all(over))
        logits = (front.oracle if points.requires_grad else front.oracle.predict)(points, s.rows)
        front.tally.count(s.rows, forwards=1)
        away = distance(self.threat.norm, s.points, s.clean)
        wrong = front.wrong(s.rows, s.points, is_missed(logits, s.labels))
        nearer = wrong & (away < s.nearest) & (away <= self.threat.eps)
        closest = torch.where(per_sample(nearer, s.points), s.points, s.closest)
        s = replace(s, closest=closest, nearest=torch.where(nearer, away, s.nearest))
        met = s.nearest.isfinite().tolist()
        front.report(s, s.closest, away, [ends and met for ends, met in zip(over, met, strict=True)], [False] * len(s))
        loss = LOSSES[self._loss](logits, s.labels)
        s, stay = s.leave(over)
        if not len(s):
            return s
        gradient = pick(input_gradient(loss, points), stay)
        front.tally.count(s.rows, backwards=1, steps=1)
        s = self._update(s, pick(loss.detach(), stay), gradient, pick(wrong, stay), pick(away, stay))
        return replace(s, step=s.step + 1, places=s.places.later())

    def _annealed(self, s: NormSearch, first: float, last: float) -> Tensor:
        """Return (n,) values that go from `first` to `last` along half a cosine, at the step of each run."""
        share = s.step.to(s.radius) / self.steps
        return last + (first - last) * (1 + torch.cos(math.pi * share)) / 2

    def _ahead(self, s: NormSearch, gradient: Tensor) -> Tensor:
        """Return the change (n, ...) of the points after a step along the gradient."""
        length = self._annealed(s, self.alpha, _LAST_STEP * self.alpha)
        return s.points - s.clean + scale_to_unit(gradient) * per_sample(length, gradient)

    def _inside(self, s: NormSearch, change: Tensor) -> Tensor:
        points = s.clean + change
        return points if self.threat.bounds is None else points.clamp_(*self.threat.bounds)

    @abstractmethod
    def _update(self, s: NormSearch, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> NormSearch:
        """Return the runs with new radii and points. wrong, away: of the points before; gradient: may be changed."""


@dataclass(frozen=True)
class FMN(MinimalNorm):
    """The fast minimum-norm attack (Pintor et al. 2021, arXiv:2102.12827) in linf, l2, l1 or l0 (values that change).

    It climbs the margin in a ball whose radius follows the boundary: before a wrong point was met it is what a linear
    model would ask for, then it shrinks while the points are wrong and grows while they are right, by a share that
    falls from `gamma` to a thousandth. In l0 the radius changes by one value at least.

    Unlike in the paper the radius also grows by that share before a wrong point was met, and leads beyond the boundary
    of the linear model: otherwise points cut to the bounds stay inside for ever, and a linear model is never misled.

    Args:
        steps: updates of each run, a forward and a backward each.
        alpha: l2 length of the first step, in the unit of the images; it falls to a hundredth along a cosine.
        gamma: share by which the radius grows where the model is right, and shrinks where it is wrong.

    Example:
        >>> predicted = model(images).argmax(dim=1)
        >>> nearest = FMN(norm="l1", steps=20)(model, images, predicted)
        >>> bool((model(nearest).argmax(dim=1) != predicted).all())
        True
    """

    norms: ClassVar[tuple[str, ...]] = ("linf", "l2", "l1", "l0")
    _loss = "margin"
    stage = "fmn"

    @property
    def _start(self) -> float:
        return 1.0 if self.threat.norm == "l0" else 0.0

    def _update(self, s: NormSearch, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> NormSearch:
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

    Args:
        steps: updates of each run, a forward and a backward each.
        alpha: l2 length of the first step, in the unit of the images; it falls to a hundredth along a cosine.
        gamma: share by which the radius changes.

    Example:
        >>> nearest = DDN(norm="l2", steps=20)(model, images, model(images).argmax(dim=1))
        >>> ThreatModel("l2", eps=1.0).distance(nearest, images).shape
        torch.Size([2])
    """

    norms: ClassVar[tuple[str, ...]] = ("l2",)
    _loss = "ce"
    stage = "ddn"

    def _update(self, s: NormSearch, loss: Tensor, gradient: Tensor, wrong: Tensor, away: Tensor) -> NormSearch:
        radius = s.radius * torch.where(wrong, 1 - self.gamma, 1 + self.gamma)
        change = scale_to_unit(self._ahead(s, gradient))
        return replace(s, radius=radius, points=self._inside(s, change * per_sample(radius, change)))


_LEAST = 1e-8  # least length of a step that is a divisor


@dataclass(frozen=True)
class _Walk(Restarts):
    """Runs of FAB. nearest: distance of `closest`, the nearest wrong point (only looked at without early_stop)."""

    clean: Tensor
    labels: Tensor
    targets: Tensor
    points: Tensor
    nearest: Tensor
    closest: Tensor | None


@dataclass(frozen=True)
class FAB(QueuedAttack):
    """The fast adaptive boundary attack (Croce and Hein 2020, arXiv:1907.02044, algorithm 1), here inside a ball.

    The boundary between label and target is taken to be the hyperplane that the gradient gives; of several valid labels
    the likeliest at that moment counts. A step goes to it from the point and from the image, mixes the two, and
    overshoots; a wrong point is drawn back towards the image. FAB looks for small changes by itself: eps decides which
    wrong points count, and the size of random starts.

    Args:
        steps: updates of each run, a forward and a backward each, and a forward for the last point.
        targets: the classes with the largest logits on the clean image, labels left out, at most as many as there are;
            0: untargeted, which takes the nearest of all classes at each step, at the price of a backward for each.
        restarts: runs for each target; the first starts at the image, the others at random points at most eps / 2 away.
        alpha_max: largest share of the step from the image.
        eta: overshoot.
        beta: how far a wrong point is drawn back.
        relinearise: after a wrong point was drawn back, ask for the gradient there, as in the paper: a second forward.
            Otherwise the plane seen from the wrong point serves, which nearly halves the forwards and ends as near in
            the median (single samples end up to a sixth nearer or further).
        early_stop: a sample leaves at the first wrong point inside the ball. Otherwise runs go all their steps, and the
            nearest one is returned.

    Example:
        >>> adversarials = FAB(norm="l2", eps=0.5, steps=5)(model, images, labels)
        >>> bool(ThreatModel("l2", eps=0.5).distance(adversarials, images).max() <= 0.5)
        True
    """

    steps: int = 100
    targets: int = 9
    restarts: int = 1
    alpha_max: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    relinearise: bool = False
    early_stop: bool = True

    def __post_init__(self) -> None:
        at_least(1, self, "steps", "restarts")
        at_least(0, self, "targets")
        for name in ("alpha_max", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a share from 0 to 1")
        if not self.eta >= 1:
            raise ValueError(f"eta is {self.eta}; expected 1 or more")

    @property
    def stage(self) -> str:
        return "fab-t" if self.targets else "fab"

    @property
    def _aims(self) -> int:
        return self.targets

    @property
    def _alone(self) -> int | None:
        return max(1, self.steps // 5) if self.early_stop else None

    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        clean, labels = front.clean[rows], front.labels[rows]
        points = clean.clone()
        for run, which in places.of_each_run():
            if run % self.restarts:
                index = upload(which, rows.device)
                half = replace(self.threat, eps=self.threat.eps / 2).ball(clean[index])
                points[index] = half.random_start(front.rng.take(rows[index]), f"{self.stage}/start/{run}")
        targets = front.targets(self.targets)[rows, runs // self.restarts] if self.targets else rows  # or ignored
        nearest = torch.full_like(rows, torch.inf, dtype=clean.dtype)
        closest = None if self.early_stop else clean.clone()
        return _Walk(rows, runs, torch.zeros_like(rows), places, clean, labels, targets, points, nearest, closest)

    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        s = cast("_Walk", state)
        over = [step == self.steps for step in s.places.steps]
        points = s.points.detach().requires_grad_(not all(over))
        logits = (front.oracle if points.requires_grad else front.oracle.predict)(points, s.rows)
        front.tally.count(s.rows, forwards=1)
        away = distance(self.threat.norm, s.points, s.clean)
        wrong = is_missed(logits, s.labels)
        broken = front.wrong(s.rows, s.points, wrong & (away <= self.threat.eps))
        if s.closest is not None:  # reported at the end of the run
            nearer = broken & (away < s.nearest)
            closest = torch.where(per_sample(nearer, s.points), s.points, s.closest)
            s = replace(s, closest=closest, nearest=torch.where(nearer, away, s.nearest))
            broken = (s.step == self.steps) & s.nearest.isfinite()
        ends, (falls, behind) = s.points if s.closest is None else s.closest, torch.stack([broken, wrong]).tolist()
        front.report(s, ends, away, falls, [False] * len(s))
        gone = [ends or fell for ends, fell in zip(over, falls, strict=True)]
        s, stay = s.leave(gone)
        if not len(s):
            return s
        gaps, normals = self._plane(front, s, logits, points, stay)
        front.tally.count(s.rows, steps=1)
        wrong, seen = pick(wrong, stay), s.points
        start = torch.where(per_sample(wrong, seen), s.clean + self.beta * (seen - s.clean), seen)
        left = [there for there, leaves in zip(behind, gone, strict=True) if not leaves]
        if self.relinearise and any(left):
            back = upload([i for i, there in enumerate(left) if there], wrong.device)
            again, seen = start[back].requires_grad_(), start
            front.tally.count(s.rows[back], forwards=1)
            gaps[back], normals[back] = self._plane(front, s.take(back), front.oracle(again, s.rows[back]), again, None)
        parts = zip(
            *(torch.split(each, cached_rows(seen)) for each in (s.clean, start, seen, gaps, normals)), strict=True
        )
        ahead = torch.cat([self._step(*part) for part in parts])
        return replace(s, step=s.step + 1, places=s.places.later(), points=ahead)

    def _plane(
        self, front: AttackState, s: _Walk, logits: Tensor, points: Tensor, stay: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return gaps (m,) and normals (m, ...) of the boundary, normals · (z - point) = gaps, at the rows `stay`."""
        logits = pick(logits, stay)
        if self.targets:
            front.tally.count(s.rows, backwards=1)
            return _linear(margin_targeted(logits, s.labels, s.targets), points, stay)
        # Untargeted: of all classes the one whose boundary is nearest, each at the price of a backward.
        dual = 1 if self.threat.norm == "linf" else 2
        front.tally.count(s.rows, backwards=logits.shape[1])
        nearest = torch.full_like(s.nearest, torch.inf)
        gaps, normals = torch.zeros_like(nearest), torch.zeros_like(s.points)
        for target in range(logits.shape[1]):
            aim = torch.full_like(s.rows, target)
            gap, normal = _linear(margin_targeted(logits, s.labels, aim), points, stay, more=True)
            away = gap.abs() / torch.linalg.vector_norm(normal.flatten(1), ord=dual, dim=1).clamp_(min=1e-12)
            nearer = (away < nearest) & ~contains_label(s.labels, aim)
            gaps, nearest = torch.where(nearer, gap, gaps), torch.where(nearer, away, nearest)
            normals = torch.where(per_sample(nearer, normal), normal, normals)
        return gaps, normals

    def _step(self, clean: Tensor, start: Tensor, seen: Tensor, gaps: Tensor, normals: Tensor) -> Tensor:
        """Return the next points, from `start` and from the images, towards the plane as it was `seen`."""
        norm, bounds = self.threat.norm, self.threat.bounds

        def left(points: Tensor) -> Tensor:
            return gaps - (normals * (points - seen)).sum(dim=tuple(range(1, seen.ndim)))

        # Both at once: on a device the search waits once for all.
        both = torch.cat([start, clean]), torch.cat([normals, normals]), torch.cat([left(start), left(clean)])
        from_start, from_image = step_to_hyperplane(norm, *both, bounds).chunk(2)
        zero = torch.zeros_like(start)
        first, second = (distance(norm, way, zero).clamp_(min=_LEAST) for way in (from_start, from_image))
        share = per_sample((first / (first + second)).clamp_(max=self.alpha_max), start)
        points = (start + self.eta * from_start).mul_(1 - share).add_((clean + self.eta * from_image).mul_(share))
        return points if bounds is None else points.clamp_(*bounds)


def _linear(gap: Tensor, points: Tensor, stay: Tensor | None, more: bool = False) -> tuple[Tensor, Tensor]:
    """Return how far the gaps are from 0, and their gradients; `more` of the same pass may follow."""
    normal = pick(input_gradient(gap, points, more), stay).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    lost = ~gap.detach().isfinite()  # no plane to see: the next point is nearer to the image
    return -gap.detach().to(normal.dtype).masked_fill(lost, 0.0), normal.masked_fill_(per_sample(lost, normal), 0.0)
