"""SEA: several losses on all pixels, each climbed by APGD, and of each image the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from .apgd import MOMENTUM, checkpoints
from .attack import EnsembleResult, Tally
from .dense import DenseAttack, DenseOracle, DensePGD
from .frozen import input_gradient
from .losses import cross_entropy
from .rng import Rng
from .threat import Ball, per_sample, round_towards

Worst = Literal["accuracy", "iou"]
PixelLoss = Callable[[Tensor, Tensor], Tensor]
"""(B, K, H, W) logits and (B, H, W) masks, -1 where a pixel does not count, to the losses (B,) of images."""
_RADII = ((2.0, 0.3), (1.5, 0.3), (1.0, 0.4))  # of the ball, in eps, and the share of the steps that is spent in it


def jensen_shannon(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean divergence of the pixels' softmax from their classes, in nats.

    With p the probability of the class it is log 2 + (p log p - (1 + p) log(1 + p)) / 2: bounded, so that pixels that
    are lost already do not drown the others.
    """
    log_share = logits.log_softmax(dim=1).gather(1, masks.clamp(min=0)[:, None])[:, 0]
    share = log_share.exp()
    return _mean(math.log(2) + 0.5 * (share * log_share - (1 + share) * torch.log1p(share)), masks >= 0)


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean cross-entropy of pixels, of which those that are wrong at the moment count 0."""
    right = logits.detach().argmax(dim=1) == masks
    return _mean(_of_some(logits, masks, right), masks >= 0)


def balanced(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the same, where each class of an image weighs as much as any other, as in the mean IoU."""
    right, kept = logits.detach().argmax(dim=1) == masks, masks.clamp(min=0).flatten(1)
    sizes = torch.zeros(len(masks), logits.shape[1], dtype=logits.dtype, device=logits.device)
    sizes.scatter_add_(1, kept, (masks >= 0).flatten(1).to(logits.dtype))
    share = (1 / (sizes * (sizes > 0).sum(dim=1, keepdim=True))).gather(1, kept).reshape(masks.shape)
    weights = torch.where(masks >= 0, share, 0.0)
    return (weights * _of_some(logits, masks, right)).flatten(1).sum(dim=1)


LOSSES: Mapping[str, PixelLoss] = MappingProxyType({"js": jensen_shannon, "masked": masked, "balanced": balanced})
RUNS = ("segpgd", *LOSSES)


@dataclass(frozen=True)
class SEA(DenseAttack):
    """The segmentation ensemble attack (Croce, Singh and Hein 2024, arXiv:2306.12941): APGD on the Jensen-Shannon
    divergence, on the cross-entropy of right pixels, and on the same balanced by class; and SegPGD. Of each image the
    worst point of all, so that SEA is at least as strong as SegPGD with as many steps and the same start.

    A run of APGD begins in a ball of twice the radius, goes on in one and a half of it, and ends in the ball itself,
    each time from the best point so far. All points of the last ball count; the published attack looks at the final
    ones alone. `run` returns the worst point of each of the four, too (`EnsembleResult`). Each update takes a forward
    and a backward, and each of the four runs one more forward.

    steps: updates of a run. rho: as for `APGD`. worst: by which an image's points are ranked: "accuracy", the share of
    its pixels that are right, or "iou", the mean IoU over the classes that it shows.
    """

    steps: int = 100
    rho: float = 0.75
    worst: Worst = "accuracy"

    def __post_init__(self) -> None:
        if self.steps < 3:
            raise ValueError(f"steps is {self.steps}; expected 3 or more, for three radii")
        if not 0 < self.rho <= 1:
            raise ValueError(f"rho is {self.rho}; expected a share above 0, at most 1")
        if self.worst not in get_args(Worst):
            raise ValueError(f"worst is {self.worst!r}; expected one of: {', '.join(get_args(Worst))}")
        self._check_norm()

    def _found(
        self, oracle: DenseOracle, images: Tensor, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally
    ) -> EnsembleResult:
        kept = self._runs(oracle, clean, masks, rng, tally)
        found = tally.result(round_towards(images, kept.points))
        ends = torch.stack([round_towards(images, points) for points in kept.ends])
        return EnsembleResult(**vars(found), runs=RUNS, ends=ends)

    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        return self._runs(oracle, clean, masks, rng, tally).points

    def _runs(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> _Kept:
        if masks is None:
            masks = oracle.predict(clean).argmax(dim=1)
            tally.forwards += 1
        kept = _Kept(clean, masks, self.worst)
        ends = DensePGD(self.threat, steps=self.steps, weighting="segpgd")._points(oracle, clean, masks, rng, tally)
        kept.see(0, ends.detach(), oracle.predict(ends))
        tally.forwards += 1
        for run, name in enumerate(RUNS[1:], start=1):
            points: Tensor | None = None
            for place, (factor, share) in enumerate(_RADII):
                threat = replace(self.threat, eps=self._radius(factor))
                ball = threat.ball(clean)
                points = (
                    ball.random_start(rng, f"sea/start/{name}") if points is None else ball.project_(points.clone())
                )
                last = place + 1 == len(_RADII)
                steps = self.steps - 2 * int(0.3 * self.steps) if last else int(share * self.steps)
                see = partial(kept.see, run) if last else None
                points = self._climb(oracle, points, masks, ball, LOSSES[name], max(1, steps), tally, see)
        return kept

    def _radius(self, factor: float) -> float:
        eps, bounds = factor * self.threat.eps, self.threat.bounds
        return eps if bounds is None or self.threat.norm != "linf" else min(eps, bounds[1] - bounds[0])

    def _climb(
        self,
        oracle: DenseOracle,
        points: Tensor,
        masks: Tensor,
        ball: Ball,
        loss: PixelLoss,
        steps: int,
        tally: Tally,
        see: Callable[[Tensor, Tensor], None] | None,
    ) -> Tensor:
        """Return the points of the highest loss after `steps` updates of APGD; `see` is shown the points met, and their
        logits.
        """
        previous = best = points
        best_gradient = torch.zeros_like(points)
        size = torch.full((len(points),), 2 * ball.threat.eps, dtype=points.dtype, device=points.device)
        before = best_loss = checked = torch.full_like(size, -math.inf)
        rises, halved, last_check = torch.zeros_like(size), torch.ones_like(size, dtype=torch.bool), 0
        marks = set(checkpoints(steps))
        for step in range(steps + (see is not None)):
            ends = step == steps
            points = points.detach().requires_grad_(not ends)
            logits = oracle.predict(points) if ends else oracle(points)
            tally.forwards += 1
            if see is not None:
                see(points.detach(), logits.detach())
            if ends:
                break
            losses = loss(logits, masks)
            gradient = input_gradient(losses, points).nan_to_num_(nan=0.0)
            losses, points = losses.detach().to(size).nan_to_num_(nan=-math.inf), points.detach()
            tally.backwards += 1
            tally.steps += 1
            higher = losses > best_loss
            wide = per_sample(higher, points)
            best, best_gradient = torch.where(wide, points, best), torch.where(wide, gradient, best_gradient)
            best_loss = torch.where(higher, losses, best_loss)
            rises += (losses > before) & (step > 0)
            before = losses
            if step in marks:
                halve = (rises <= (step - last_check) * self.rho) | (~halved & (checked >= best_loss))
                size, back = torch.where(halve, size / 2, size), per_sample(halve, points)
                points, gradient = torch.where(back, best, points), torch.where(back, best_gradient, gradient)
                checked, halved, last_check = best_loss, halve, step
                rises = torch.zeros_like(rises)
            ahead = self.threat.steepest(gradient.clone()).mul_(per_sample(size, points)).add_(points)
            ahead = ball.project_(ahead)
            if step:
                ahead = points + MOMENTUM * (ahead - points) + (1 - MOMENTUM) * (points - previous)
                ahead = ball.project_(ahead)
            points, previous = ahead, points
        return best


class _Kept:
    """The worst point of each image in each run so far: the clean image to begin with, which is not asked about."""

    def __init__(self, clean: Tensor, masks: Tensor, worst: Worst) -> None:
        self.masks, self.score = masks, _accuracy if worst == "accuracy" else _iou
        self.ends = [clean] * len(RUNS)
        self.scores = torch.full((len(RUNS), len(clean)), math.inf, device=clean.device)

    def see(self, run: int, points: Tensor, logits: Tensor) -> None:
        """Keep those of the points (B, ...) that are worse than what is kept of this run."""
        scores = self.score(logits, self.masks)
        worse = scores < self.scores[run]
        self.scores[run] = torch.where(worse, scores, self.scores[run])
        self.ends[run] = torch.where(per_sample(worse, points), points, self.ends[run])

    @property
    def points(self) -> Tensor:
        """The worst of all runs, the first of those that are alike."""
        worst, points = self.scores.argmin(dim=0), self.ends[0]
        for run in range(1, len(RUNS)):
            points = torch.where(per_sample(worst == run, points), self.ends[run], points)
        return points


def _predicted(logits: Tensor) -> Tensor:
    """Return the classes of pixels; -2, which is wrong everywhere, where logits are not finite."""
    return torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -2)


def _accuracy(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the share of each image's pixels that are right."""
    right = (_predicted(logits) == masks) & (masks >= 0)
    return right.flatten(1).sum(dim=1) / (masks >= 0).flatten(1).sum(dim=1).clamp_(min=1)


def _iou(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean IoU (B,) over the classes that each image's mask shows."""
    classes, predicted, counts = logits.shape[1], _predicted(logits), masks >= 0

    def sizes(values: Tensor, which: Tensor) -> Tensor:
        table = torch.zeros(len(values), classes, device=values.device)
        return table.scatter_add_(1, values.clamp(min=0).flatten(1), which.flatten(1).to(table))

    shown, both = sizes(masks, counts), sizes(masks, counts & (predicted == masks))
    union = shown + sizes(predicted, counts & (predicted >= 0)) - both
    there = shown > 0
    return torch.where(there, both / union.clamp(min=1), 0.0).sum(dim=1) / there.sum(dim=1).clamp_(min=1)


def _of_some(logits: Tensor, masks: Tensor, which: Tensor) -> Tensor:
    """Return the cross-entropies (B, H, W) of some pixels, 0 of the others."""
    return torch.where(which, cross_entropy(logits, masks.clamp(min=0)), 0.0)


def _mean(losses: Tensor, counting: Tensor) -> Tensor:
    """Return the mean (B,) over the pixels that count."""
    total = torch.where(counting, losses, 0.0).flatten(1).sum(dim=1)
    return total / counting.flatten(1).sum(dim=1).clamp_(min=1)
