"""Gradients of the input: at the image, on the path from a baseline, and in a noisy neighbourhood."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from .explainer import (
    Explainer,
    Fill,
    Rng,
    Target,
    TorchRng,
    at_least,
    check_images,
    chosen,
    colour,
    each_target,
    parts,
    rows_of,
    wanted_targets,
)


class InputGradient(Explainer):
    """Gradient times input (Shrikumar et al. 2016, arXiv:1605.01713): |sum over channels of x * d logit / d x|.

    x is what the model takes: pixels where it normalises them itself, normalised ones otherwise, and the two maps
    differ. Any differentiable model; one forward and a backward for each target.
    """

    name = "gradient"

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        images = images.clone().requires_grad_()  # a copy, so that the caller's own tensor stays as it was
        logits = self._logits(images)
        classes = chosen(logits, wanted)
        maps = []
        for total, more in each_target(logits, classes):
            gradient = None
            if total.requires_grad:
                (gradient,) = torch.autograd.grad(total, images, retain_graph=more, allow_unused=True)
            if gradient is None:
                raise ValueError("the logits have no gradient for the images (is the model detached?); use rollout")
            maps.append((gradient.float() * images.detach().float()).sum(dim=1).abs())
        return logits, classes, torch.stack(maps, dim=1)


_ROWS = 32
"""How many go at once on a CPU: with a backward, fewer or more take longer each."""


class IntegratedGradients(Explainer):
    """Integrated gradients (Sundararajan et al., ICML 2017): |sum over channels of (x - x0) * mean gradient|.

    The mean over the straight way from x0 to x is a Gauss-Legendre sum, so that few steps are enough for attributions
    that add up to the difference of the two logits (completeness; see `attributions`).

    steps: points on the way. fill: the plain image x0, a number or one for each channel, in the unit of the images.
    batch_size: rows of a pass, where the images themselves are not more; by default 32 on a CPU, else 64.

    Any differentiable model; `steps` forwards and backwards for each image (and target), and a forward for logits.
    """

    name = "integrated-gradients"

    def __init__(self, model: nn.Module, steps: int = 32, fill: Fill = 0.0, batch_size: int | None = None) -> None:
        super().__init__(model)
        at_least(1, steps=steps, batch_size=batch_size)
        self.steps, self.fill, self.batch_size = steps, fill, batch_size

    def attributions(self, images: Tensor, target: Target = None) -> Tensor:
        """Return what each value of the images adds to the logit: (B, C, H, W), or (B, T, C, H, W) for T targets.

        Their sum is the logit of the image less that of the plain one, up to the error of the steps.
        """
        check_images(images)
        inside = nullcontext() if self._inside is not None else self
        with inside, torch.inference_mode(False), torch.enable_grad():
            wanted = wanted_targets(target, images)
            signed = self._signed(self._as_fed(images), wanted)[2]
        return signed if isinstance(target, Tensor) and target.ndim == 2 else signed[:, 0]

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes, signed = self._signed(images, wanted)
        return logits, classes, signed.sum(dim=2).abs()

    def _signed(self, images: Tensor, wanted: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes = self._answered(images, wanted)
        way = images - colour(self.fill, images)
        places, weights = (torch.from_numpy(part).to(images) for part in np.polynomial.legendre.leggauss(self.steps))
        total = torch.zeros(1, device=images.device)
        for part in parts(self.steps, len(images), rows_of(self.batch_size, images, _ROWS)):
            far = 0.5 - 0.5 * places[part]  # from the image back
            total = total + _gradients(self, images - far.view(-1, 1, 1, 1, 1) * way, classes, 0.5 * weights[part])
        return logits, classes, total * way.float()[:, None]


class SmoothGrad(Explainer):
    """SmoothGrad (Smilkov et al. 2017, arXiv:1706.03825): sum over channels of |mean gradient of noisy copies|.

    samples: noisy copies. noise: standard deviation, as a share of the range of each image's values. batch_size: rows
    of a pass, where the images themselves are not more; by default 32 on a CPU, else 64. The noise is `rng`'s, so a
    function of the sample.

    Any differentiable model; `samples` forwards and backwards for each image (and target), and a forward for logits.
    """

    name = "smooth-grad"
    draws_numbers = True

    def __init__(self, model: nn.Module, samples: int = 25, noise: float = 0.15, batch_size: int | None = None) -> None:
        super().__init__(model)
        at_least(1, samples=samples, batch_size=batch_size)
        at_least(0, noise=noise)
        self.samples, self.noise, self.batch_size = samples, noise, batch_size

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        rng = rng or TorchRng(len(images), images.device)
        logits, classes = self._answered(images, wanted)
        sigma = self.noise * (images.amax(dim=(1, 2, 3)) - images.amin(dim=(1, 2, 3))).view(-1, 1, 1, 1)
        total = torch.zeros(1, device=images.device)
        for part in parts(self.samples, len(images), rows_of(self.batch_size, images, _ROWS)):
            draws = (rng.normal(images.shape[1:], f"cam/smooth-grad/{i}") for i in range(part.start, part.stop))
            noisy = torch.stack([images + sigma * draw.to(images) for draw in draws])
            total = total + _gradients(self, noisy, classes, images.new_full((len(noisy),), 1 / self.samples))
        return logits, classes, total.abs().sum(dim=2)


def _gradients(explainer: Explainer, points: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """Return the sum, with weights (S,), of the gradients (B, T, C, H, W) float32 of the logits of (B, T) classes at
    points (S, B, C, H, W).
    """
    leaf = points.flatten(0, 1).requires_grad_()
    logits = explainer._logits(leaf)
    sums = []
    for total, more in each_target(logits, chosen(logits, classes.repeat(len(points), 1))):
        gradient = None
        if total.requires_grad:
            (gradient,) = torch.autograd.grad(total, leaf, retain_graph=more, allow_unused=True)
        if gradient is None:
            raise ValueError("the logits have no gradient for the images (is the model detached?); use rollout or rise")
        sums.append(torch.tensordot(weights.float(), gradient.float().view(points.shape), dims=1))
    return torch.stack(sums, dim=1)
