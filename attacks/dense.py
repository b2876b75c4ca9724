"""FGSM, PGD, SegPGD, CosPGD and SEA on models that predict a class for each pixel."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from .apgd import MOMENTUM, checkpoint_steps
from .attack import AttackResult, AttackType, EnsembleResult, Tally, check_images
from .model_access import INTEGERS, Model, Oracle, cross_entropy, frozen, input_gradient
from .pgd import PGD
from .threat import Ball, Rng, ThreatModel, TorchRng, above_0, one_of, per_sample, round_towards

Weighting = Literal["uniform", "segpgd", "cospgd"]


@dataclass(frozen=True)
class DenseAttack(metaclass=AttackType):
    """An attack on a model that predicts a class for each pixel; made and called as every `Attack`.

    Args:
        threat: what may change: l-inf, 1/255, pixels in [0, 1] if left out.

    Example:
        >>> isinstance(DensePGD(eps=8 / 255), DenseAttack)
        True
    """

    threat: ThreatModel = field(default_factory=ThreatModel)
    norms: ClassVar[tuple[str, ...]] = ("linf", "l2")
    _tally: ClassVar[type[Tally]] = Tally

    def _check_norm(self) -> None:
        if self.threat.norm not in self.norms:
            raise ValueError(f"norm is {self.threat.norm!r}; {type(self).__name__} knows {', '.join(self.norms)}")

    def __call__(self, model: Model, images: Tensor, masks: Tensor | None = None, *, rng: Rng | None = None) -> Tensor:
        """Return the adversarial images (B, 3, H, W) of `run`."""
        return self.run(model, images, masks, rng=rng).adversarials

    def run(self, model: Model, images: Tensor, masks: Tensor | None = None, *, rng: Rng | None = None) -> AttackResult:
        """Attack a batch, and say what it took. With eps 0 the images come back, and the model is not asked.

        Each image is attacked as if it were alone. One whose pixels are all ignored stays where it starts: at a random
        point of the ball, or at the image itself. A pixel whose loss is not finite has no part in the loss of that
        step: it counts as wrong already, and must not shield the others.

        Args:
            model: nn.Module or function, images (B, 3, H, W) to logits (B, K, H, W), K at least 2. It is held still as
                by every `Attack`.
            images: (B, 3, H, W) floating, inside the bounds of the threat model; float16 and bfloat16 as `Attack` says.
                Prefer bfloat16: shares of a mean over many pixels are so small that in float16 some gradients vanish.
            masks: (B, H, W) integers, 0 to K - 1: the classes to lead away from. A negative pixel is ignored: it is not
                part of the loss, though it may be changed. uint8 has no negative numbers, so masks that mark such
                pixels with 255 must be changed first. None: the model's own predictions for the images, where every
                pixel counts.
            rng: where random numbers come from, drawn as by `PGD`; None: torch's global generator.

        Returns:
            The adversarial images, and counts. `broken_at` does not apply, as pixels turn one by one, and is -1 for
                all.

        Raises:
            TypeError: images or masks of another kind; the model is not asked.
            ValueError: images outside the bounds, or masks or logits of another shape.
        """
        check_images(images, self.threat)
        top_class = check_masks(masks, images)
        with frozen(model):
            images = images.detach().clone()
            tally = self._tally(len(images), images.device)
            if images.numel() == 0 or self.threat.eps == 0:
                return tally.result(images)
            if masks is not None:
                masks = masks.to(images.device, torch.int64)
            clean = images.to(torch.promote_types(images.dtype, torch.float32))
            oracle = DenseOracle(model, images.dtype, top_class)
            return self._result(oracle, images, clean, masks, rng or TorchRng(len(images), images.device), tally)

    def _result(
        self, oracle: DenseOracle, images: Tensor, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally
    ) -> AttackResult:
        return tally.result(round_towards(images, self._points(oracle, clean, masks, rng, tally)))

    @abstractmethod
    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        """Return the adversarial points for `clean` (B > 0, float32 or float64), which it must not change."""


@dataclass(frozen=True)
class DensePGD(DenseAttack):
    """PGD that leads all pixels of an image away from their classes: its loss is the mean cross-entropy of the pixels.

    Args:
        steps: updates, a forward and a backward each.
        step_size: length of an update in the threat model's norm and unit; None: 0.15 * eps.
        random_start: begin at a random point of the ball, otherwise at the image. Predicted masks (masks=None) then
            cost a forward of the clean images, which otherwise is the first one of the attack.
        weighting: a pixel's weight. "uniform": 1. "segpgd": in step t of T, 1 - (t - 1) / 2T where it is predicted
            right at that moment and (t - 1) / 2T where it is wrong, so that early steps turn pixels and late ones keep
            them so (Gu et al. 2022, arXiv:2207.12391, equation 4 and algorithm 1). The first step looks at right pixels
            only: an image that has none does not move in it. "cospgd": the cosine between the softmax of its logits and
            its class, p_label / |p|, by which pixels that are wrong already count by and by for less (Agnihotri et al.
            2024, arXiv:2302.02213); the weight itself has no gradient.

    Example:
        >>> adversarials = DensePGD(eps=8 / 255, steps=5, weighting="segpgd")(segmenter, images, masks)
        >>> bool((adversarials - images).abs().max() <= 8 / 255 + 1e-6)
        True
    """

    steps: int = 20
    step_size: float | None = None
    random_start: bool = True
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        self._check_norm()
        PGD(self.threat, self.steps, self.step_size)  # raises for what PGD cannot do
        one_of(get_args(Weighting), self, "weighting")

    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        if masks is None and self.random_start:
            masks = oracle.predict(clean).argmax(dim=1)
            tally.forwards += 1
        ball = self.threat.ball(clean)
        points = ball.random_start(rng, "pgd/start/0") if self.random_start else clean.clone()
        step_size = 0.15 * self.threat.eps if self.step_size is None else self.step_size
        for step in range(1, self.steps + 1):
            points.requires_grad_()
            logits = oracle(points)
            masks = logits.detach().argmax(dim=1) if masks is None else masks
            gradient = input_gradient(self._losses(logits, masks, step), points)
            points = points.detach().add_(self.threat.steepest(gradient), alpha=step_size)
            ball.project_(points)
            tally.steps += 1
            tally.forwards += 1
            tally.backwards += 1
        return points

    def _losses(self, logits: Tensor, masks: Tensor, step: int) -> Tensor:
        """Return the weighted cross-entropies (B,) of `step` (1 to T), over the number of pixels not ignored."""
        weights = (masks >= 0).to(logits.dtype)
        counting = weights.flatten(1).sum(dim=1).clamp_(min=1)
        losses = cross_entropy(logits, masks.clamp(min=0))
        lost = ~losses.detach().isfinite()
        if lost.any():
            logits, weights = logits.masked_fill(lost[:, None], 0.0), weights.masked_fill(lost, 0.0)
            losses = cross_entropy(logits, masks.clamp(min=0))
        if self.weighting == "segpgd":
            share = (step - 1) / (2 * self.steps)
            right = logits.detach().argmax(dim=1) == masks
            weights = torch.where(right, (1 - share) * weights, share * weights)
        elif self.weighting == "cospgd":
            sure = logits.detach().softmax(dim=1)
            of_label = sure.gather(1, masks.clamp(min=0)[:, None])[:, 0]
            weights = weights * of_label / torch.linalg.vector_norm(sure, dim=1)
        return (weights * losses).flatten(1).sum(dim=1) / counting


@dataclass(frozen=True)
class CosPGD(DensePGD):
    """`DensePGD` with the weighting "cospgd" where nothing else is said.

    Example:
        >>> CosPGD(eps=8 / 255, steps=5)(segmenter, images, masks).shape
        torch.Size([2, 3, 8, 8])
    """

    weighting: Weighting = "cospgd"


@dataclass(frozen=True)
class DenseFGSM(DensePGD):
    """One step of length eps from the image: `DensePGD` with steps=1, step_size=eps and random_start=False.

    With the weighting "segpgd" it looks at the pixels that are predicted right, and at no others.

    Example:
        >>> DenseFGSM(eps=8 / 255).run(segmenter, images, masks).forwards.tolist()
        [1, 1]
    """

    steps: int = field(default=1, init=False)
    step_size: float | None = field(default=None, init=False)
    random_start: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "step_size", self.threat.eps)


class DenseOracle(Oracle):
    """An `Oracle` of logits for each pixel; `top_class` is the largest of the masks."""

    def __init__(self, model: Model, dtype: torch.dtype, top_class: int) -> None:
        super().__init__(model, dtype)
        self._top_class = top_class

    def __call__(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the logits (B, K, H, W), float32 or float64. ValueError for another shape, one class, too few."""
        logits = self._model(points.to(self.dtype))
        count, *size = len(points), *points.shape[2:]
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else ()
        if len(shape) != 4 or shape[0] != count or shape[2:] != tuple(size) or shape[1] < 2:
            raise ValueError(
                f"the model returned {shape or type(logits).__name__} for images {tuple(points.shape)}; expected "
                f"logits ({count}, classes, {size[0]}, {size[1]}), classes 2 or more; resize inside the model"
            )
        if self._top_class >= shape[1]:
            raise ValueError(
                f"masks go up to {self._top_class}, the model has {shape[1]} classes (0 to {shape[1] - 1}); map the "
                f"masks to the model's classes, and ignored pixels to -1 (uint8 must become int64 before)"
            )
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_masks(masks: Tensor | None, images: Tensor) -> int:
    """Return the largest class of the masks (-1 for none); raise unless they are integers for these pixels."""
    if images.ndim != 4:
        raise ValueError(f"images have shape {tuple(images.shape)}; expected (B, 3, H, W)")
    if masks is None:
        return -1
    if not isinstance(masks, Tensor) or masks.dtype not in INTEGERS:
        kind = masks.dtype if isinstance(masks, Tensor) else type(masks).__name__
        raise TypeError(f"masks are {kind}; expected a tensor of integer class indices, negative where ignored")
    expected = (len(images), *images.shape[2:])
    if masks.shape != expected:
        raise ValueError(f"masks have shape {tuple(masks.shape)} for images {tuple(images.shape)}; expected {expected}")
    return int(masks.max().item()) if masks.numel() else -1


Worst = Literal["accuracy", "iou"]
PixelLoss = Callable[[Tensor, Tensor], Tensor]  # logits (B, K, H, W) and masks (B, H, W), -1 ignored, to (B,)
_RADII, _FIRST = (2.0, 1.5, 1.0), 0.3  # of the ball, in eps, and the share of the steps in each of the two larger ones


def jensen_shannon(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the pixels' mean log 2 + (p log p - (1 + p) log(1 + p)) / 2, in nats, p of their class: bounded."""
    log_share = logits.log_softmax(dim=1).gather(1, masks.clamp(min=0)[:, None])[:, 0]
    share = log_share.exp()
    return _mean(math.log(2) + 0.5 * (share * log_share - (1 + share) * torch.log1p(share)), masks >= 0)


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean cross-entropy of pixels, of which those that are wrong at the moment count 0."""
    right = logits.detach().argmax(dim=1) == masks
    return _mean(_of_some(logits, masks, right), masks >= 0)


def balanced(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the same, where each class of an image weighs as much as any other, as in the mean IoU."""
    right, classes = logits.detach().argmax(dim=1) == masks, masks.clamp(min=0).flatten(1)
    sizes = torch.zeros(len(masks), logits.shape[1], dtype=logits.dtype, device=logits.device)
    sizes.scatter_add_(1, classes, (masks >= 0).flatten(1).to(logits.dtype))
    share = (1 / (sizes * (sizes > 0).sum(dim=1, keepdim=True))).gather(1, classes).reshape(masks.shape)
    weights = torch.where(masks >= 0, share, 0.0)
    return (weights * _of_some(logits, masks, right)).flatten(1).sum(dim=1)


LOSSES: Mapping[str, PixelLoss] = MappingProxyType({"js": jensen_shannon, "masked": masked, "balanced": balanced})
RUNS = ("segpgd", *LOSSES)


@dataclass(frozen=True)
class SEA(DenseAttack):
    """The segmentation ensemble attack (Croce, Singh and Hein 2024, arXiv:2306.12941): the worst point of four runs.

    They are APGD on the Jensen-Shannon divergence, on the cross-entropy of right pixels, and on the same balanced by
    class; and SegPGD. So SEA is at least as strong as SegPGD with as many steps and the same start.

    A run of APGD begins in a ball of twice the radius, goes on in one and a half of it, and ends in the ball itself,
    each time from the best point so far. All points of the last ball count; the published attack looks at the final
    ones alone. `run` returns the worst point of each of the four, too (`EnsembleResult`). Each update takes a forward
    and a backward, and each of the four runs one more forward.

    Args:
        steps: updates of a run, 3 or more.
        rho: as for `APGD`.
        worst: by which an image's points are ranked: "accuracy", the share of its pixels that are right, or "iou", the
            mean IoU over the classes that it shows.

    Example:
        >>> SEA(eps=8 / 255, steps=4).run(segmenter, images, masks).forwards.tolist()
        [20, 20]
    """

    steps: int = 100
    rho: float = 0.75
    worst: Worst = "accuracy"

    def __post_init__(self) -> None:
        if self.steps < 3:
            raise ValueError(f"steps is {self.steps}; expected 3 or more, for three radii")
        above_0(self, "rho", share=True)
        one_of(get_args(Worst), self, "worst")
        self._check_norm()

    def _result(
        self, oracle: DenseOracle, images: Tensor, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally
    ) -> EnsembleResult:
        worst = self._runs(oracle, clean, masks, rng, tally)
        result = tally.result(round_towards(images, worst.points))
        ends = torch.stack([round_towards(images, points) for points in worst.ends])
        return EnsembleResult(**vars(result), runs=RUNS, ends=ends)

    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        return self._runs(oracle, clean, masks, rng, tally).points

    def _runs(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> _WorstPoints:
        if masks is None:
            masks = oracle.predict(clean).argmax(dim=1)
            tally.forwards += 1
        worst, bounds = _WorstPoints(clean, masks, self.worst), self.threat.bounds
        widest = bounds[1] - bounds[0] if bounds and self.threat.norm == "linf" else math.inf
        first = max(1, int(_FIRST * self.steps))  # updates at each of the two larger radii
        ends = DensePGD(self.threat, steps=self.steps, weighting="segpgd")._points(oracle, clean, masks, rng, tally)
        worst.see(0, ends.detach(), oracle.predict(ends))
        tally.forwards += 1
        for run, name in enumerate(RUNS[1:], start=1):
            points: Tensor | None = None
            for place, factor in enumerate(_RADII):
                eps = min(factor * self.threat.eps, widest)
                ball, start = replace(self.threat, eps=eps).ball(clean), f"sea/start/{name}"
                points = ball.random_start(rng, start) if points is None else ball.project_(points.clone())
                last = place + 1 == len(_RADII)
                steps = self.steps - 2 * first if last else first
                see = partial(worst.see, run) if last else None
                points = self._climb(oracle, points, masks, ball, LOSSES[name], steps, tally, see)
        return worst

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
        """Return the points of the highest loss after `steps` updates of APGD; `see` is shown points and logits."""
        previous = best = points
        best_gradient = torch.zeros_like(points)
        size = torch.full((len(points),), 2 * ball.threat.eps, dtype=points.dtype, device=points.device)
        before = best_loss = checked = torch.full_like(size, -math.inf)
        rises, halved, last_check = torch.zeros_like(size), torch.ones_like(size, dtype=torch.bool), 0
        marks = set(checkpoint_steps(steps))
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
            ahead = ball.project_(self.threat.steepest(gradient.clone()).mul_(per_sample(size, points)).add_(points))
            if step:
                ahead = ball.project_(points + MOMENTUM * (ahead - points) + (1 - MOMENTUM) * (points - previous))
            points, previous = ahead, points
        return best


class _WorstPoints:
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

    labelled, both = sizes(masks, counts), sizes(masks, counts & (predicted == masks))
    union = labelled + sizes(predicted, counts & (predicted >= 0)) - both
    occurs = labelled > 0
    return torch.where(occurs, both / union.clamp(min=1), 0.0).sum(dim=1) / occurs.sum(dim=1).clamp_(min=1)


def _of_some(logits: Tensor, masks: Tensor, which: Tensor) -> Tensor:
    """Return the cross-entropies (B, H, W) of some pixels, 0 of the others."""
    return torch.where(which, cross_entropy(logits, masks.clamp(min=0)), 0.0)


def _mean(losses: Tensor, counting: Tensor) -> Tensor:
    """Return the mean (B,) over the pixels that count."""
    total = torch.where(counting, losses, 0.0).flatten(1).sum(dim=1)
    return total / counting.flatten(1).sum(dim=1).clamp_(min=1)
