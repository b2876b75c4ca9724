"""FGSM and PGD on models that predict a class for each pixel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from .attack import AttackResult, Tally, check_images
from .frozen import Model, Oracle, frozen, input_gradient
from .labels import INTEGERS
from .losses import cross_entropy
from .pgd import PGD
from .rng import Rng, TorchRng
from .threat import ThreatModel, round_towards

Weighting = Literal["uniform", "segpgd", "cospgd"]


@dataclass(frozen=True)
class DenseAttack(ABC):
    """An attack on a model that predicts a class for each pixel. Called with, as is `run`,

    model: nn.Module or function, images (B, 3, H, W) to logits (B, K, H, W), K at least 2. It is held still as by
        every `Attack`.
    images: (B, 3, H, W) floating, inside the bounds of the threat model; float16 and bfloat16 as `Attack` says. Prefer
        bfloat16: shares of a mean over many pixels are so small that in float16 some gradients vanish.
    masks: (B, H, W) integers, 0 to K - 1: the classes to lead away from. A negative pixel is ignored: it is not part of
        the loss, though it may be changed. uint8 has no negative numbers, so masks that mark such pixels with 255 must
        be changed first. None: the model's own predictions for the images, where every pixel counts.
    rng: where random numbers come from, drawn as by `PGD`; None: torch's global generator.

    The call returns the adversarial images, `run` an `AttackResult`. Its `broken_at` does not apply, as pixels turn one
    by one, and is -1 for all. Each image is attacked as if it were alone. One whose pixels are all ignored stays where
    it starts: at a random point of the ball, or at the image itself. A pixel whose loss is not finite has no part in
    the loss of that step: it counts as wrong already, and must not shield the others.

    Raises TypeError or ValueError, before the model is asked, for images and masks of another kind and for images
    outside the bounds. With eps 0 the images come back, and the model is not asked.
    """

    threat: ThreatModel = field(default_factory=ThreatModel)
    norms: ClassVar[tuple[str, ...]] = ("linf", "l2")

    def _check_norm(self) -> None:
        if self.threat.norm not in self.norms:
            raise ValueError(f"norm is {self.threat.norm!r}; {type(self).__name__} knows {', '.join(self.norms)}")

    def __call__(self, model: Model, images: Tensor, masks: Tensor | None = None, *, rng: Rng | None = None) -> Tensor:
        return self.run(model, images, masks, rng=rng).adversarials

    def run(self, model: Model, images: Tensor, masks: Tensor | None = None, *, rng: Rng | None = None) -> AttackResult:
        check_images(images, self.threat)
        top_class = check_masks(masks, images)
        with frozen(model):
            images = images.detach().clone()
            tally = Tally(len(images), images.device)
            if images.numel() == 0 or self.threat.eps == 0:
                return tally.result(images)
            if masks is not None:
                masks = masks.to(images.device, torch.int64)
            clean = images.to(torch.promote_types(images.dtype, torch.float32))
            oracle = DenseOracle(model, images.dtype, top_class)
            return self._found(oracle, images, clean, masks, rng or TorchRng(len(images), images.device), tally)

    def _found(
        self, oracle: DenseOracle, images: Tensor, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally
    ) -> AttackResult:
        return tally.result(round_towards(images, self._points(oracle, clean, masks, rng, tally)))

    @abstractmethod
    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        """Return the adversarial points for `clean` (B > 0, float32 or float64), which it must not change."""


@dataclass(frozen=True)
class DensePGD(DenseAttack):
    """PGD that leads all pixels of an image away from their classes: its loss is the mean cross-entropy of the pixels.

    steps: updates, a forward and a backward each.
    step_size: length of an update in the threat model's norm and unit; None: 0.15 * eps.
    random_start: begin at a random point of the ball, otherwise at the image. Predicted masks (masks=None) then cost a
        forward of the clean images, which otherwise is the first one of the attack.
    weighting: a pixel's weight. "uniform": 1. "segpgd": in step t of T, 1 - (t - 1) / 2T where it is predicted right
        at that moment and (t - 1) / 2T where it is wrong, so that early steps turn pixels and late ones keep them so
        (Gu et al. 2022, arXiv:2207.12391, equation 4 and algorithm 1). The first step looks at right pixels only: an
        image that has none does not move in it. "cospgd": the cosine between the softmax of its logits and its class,
        p_label / |p|, by which pixels that are wrong already count by and by for less (Agnihotri et al. 2024,
        arXiv:2302.02213); the weight itself has no gradient.
    """

    steps: int = 20
    step_size: float | None = None
    random_start: bool = True
    weighting: Weighting = "uniform"

    def __post_init__(self) -> None:
        self._check_norm()
        PGD(self.threat, self.steps, self.step_size)  # raises for what PGD cannot do
        if self.weighting not in get_args(Weighting):
            raise ValueError(f"weighting is {self.weighting!r}; expected one of: {', '.join(get_args(Weighting))}")

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
            if masks is None:
                masks = logits.detach().argmax(dim=1)
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
    """`DensePGD` with the weighting "cospgd" where nothing else is said."""

    weighting: Weighting = "cospgd"


@dataclass(frozen=True)
class DenseFGSM(DensePGD):
    """One step of length eps from the image: `DensePGD` with steps=1, step_size=eps and random_start=False.

    With the weighting "segpgd" it looks at the pixels that are predicted right, and at no others.
    """

    steps: int = field(default=1, init=False)
    step_size: float | None = field(default=None, init=False)
    random_start: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "step_size", self.threat.eps)


class DenseOracle(Oracle):
    """An `Oracle` of logits for each pixel. top_class: the largest of the masks."""

    def __init__(self, model: Model, dtype: torch.dtype, top_class: int) -> None:
        super().__init__(model, dtype)
        self._top_class = top_class

    def __call__(self, points: Tensor) -> Tensor:
        """Return the logits (B, K, H, W), float32 or float64, of `points` (B, 3, H, W).

        Raises ValueError for logits of another shape, for fewer than two classes (whose cross-entropy is always 0), and
        for classes of the masks beyond the last one.
        """
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
