"""Explainers of any model: gradients of the input, random masks, and controls that do not look at the image.

The score of a map must beat those of the controls to mean anything.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from .explainer import (
    Explainer,
    Fill,
    Rng,
    TorchRng,
    at_least,
    check_images,
    chosen,
    fill_values,
    gradients,
    rows_of,
    split_by_batch,
    wanted_targets,
)


class InputGradient(Explainer):
    """Gradient times input (Shrikumar et al. 2016, arXiv:1605.01713): |sum over channels of x * d logit / d x|.

    x is what the model takes: pixels where it normalises them itself, normalised ones otherwise, and the two maps
    differ. Any differentiable model; one forward and a backward for each target.

    Args:
        model: any differentiable one, images (B, 3, H, W) to logits (B, K).

    Example:
        >>> InputGradient(model)(images).shape
        torch.Size([2, 64, 64])
    """

    name = "gradient"

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        images = images.clone().requires_grad_()  # a copy, so that the caller's own tensor stays as it was
        logits = self._logits(images)
        classes = chosen(logits, targets)
        lost, plain = _LOST.format("rollout"), images.detach().float()
        maps = [(each.float() * plain).sum(dim=1).abs() for each in gradients(logits, classes, images, lost)]
        return logits, classes, torch.stack(maps, dim=1)


_LOST = "the logits have no gradient for the images (is the model detached?); use {}"
_ROWS = 32  # how many go at once on a CPU: with a backward, fewer or more take longer each


class IntegratedGradients(Explainer):
    """Integrated gradients (Sundararajan et al., ICML 2017): |sum over channels of (x - x0) * mean gradient|.

    The mean over the straight way from x0 to x is a Gauss-Legendre sum, so that few steps are enough for attributions
    that add up to the difference of the two logits (completeness; see `attributions`).

    Any differentiable model; `steps` forwards and backwards for each image (and target), and a forward for logits.

    Args:
        model: images (B, 3, H, W) to logits (B, K).
        steps: points on the way.
        fill: the plain image x0, a number or one for each channel, in the unit of the images.
        batch_size: rows of a pass, where the images themselves are not more; None: 32 on a CPU, else 64.

    Example:
        >>> attributions = IntegratedGradients(model, steps=16).attributions(images, target=3)
        >>> difference = model(images)[:, 3] - model(torch.zeros_like(images))[:, 3]
        >>> torch.allclose(attributions.sum(dim=(1, 2, 3)), difference, atol=0.05)
        True
    """

    name = "integrated-gradients"

    def __init__(self, model: nn.Module, steps: int = 32, fill: Fill = 0.0, batch_size: int | None = None) -> None:
        super().__init__(model)
        at_least(1, steps=steps, batch_size=batch_size)
        self.steps, self.fill, self.batch_size = steps, fill, batch_size

    def attributions(self, images: Tensor, target: int | Tensor | None = None) -> Tensor:
        """Return what each value of the images adds to the logit: (B, C, H, W), or (B, T, C, H, W) for T targets.
        Their sum is the logit of the image less that of the plain one, up to the error of the steps.
        """
        check_images(images)
        inside = nullcontext() if self._inside is not None else self
        with inside, torch.inference_mode(False), torch.enable_grad():
            signed = self._signed(self._as_fed(images), wanted_targets(target, images))[2]
        return signed if isinstance(target, Tensor) and target.ndim == 2 else signed[:, 0]

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes, signed = self._signed(images, targets)
        return logits, classes, signed.sum(dim=2).abs()

    def _signed(self, images: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes = self._answered(images, targets)
        way = images - fill_values(self.fill, images)
        places, weights = (torch.from_numpy(part).to(images) for part in np.polynomial.legendre.leggauss(self.steps))
        total = torch.zeros(1, device=images.device)
        for part in split_by_batch(self.steps, len(images), rows_of(self.batch_size, images, _ROWS)):
            far = 0.5 - 0.5 * places[part]  # from the image back
            total = total + _gradients(self, images - far.view(-1, 1, 1, 1, 1) * way, classes, 0.5 * weights[part])
        return logits, classes, total * way.float()[:, None]


class SmoothGrad(Explainer):
    """SmoothGrad (Smilkov et al. 2017, arXiv:1706.03825): sum over channels of |mean gradient of noisy copies|.

    Any differentiable model; `samples` forwards and backwards for each image (and target), and a forward for logits.
    The noise is `rng`'s, so a function of the sample.

    Args:
        model: images (B, 3, H, W) to logits (B, K).
        samples: noisy copies.
        noise: standard deviation, as a share of the range of each image's values.
        batch_size: rows of a pass, where the images themselves are not more; None: 32 on a CPU, else 64.

    Example:
        >>> SmoothGrad(model, samples=5)(images, rng=TorchRng(batch=2)).shape
        torch.Size([2, 64, 64])
    """

    name = "smooth-grad"
    draws_numbers = True

    def __init__(self, model: nn.Module, samples: int = 25, noise: float = 0.15, batch_size: int | None = None) -> None:
        super().__init__(model)
        at_least(1, samples=samples, batch_size=batch_size)
        at_least(0, noise=noise)
        self.samples, self.noise, self.batch_size = samples, noise, batch_size

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        rng = rng or TorchRng(len(images), images.device)
        logits, classes = self._answered(images, targets)
        sigma = self.noise * (images.amax(dim=(1, 2, 3)) - images.amin(dim=(1, 2, 3))).view(-1, 1, 1, 1)
        total = torch.zeros(1, device=images.device)
        for part in split_by_batch(self.samples, len(images), rows_of(self.batch_size, images, _ROWS)):
            draws = (rng.normal(images.shape[1:], f"cam/smooth-grad/{i}") for i in range(part.start, part.stop))
            noisy = torch.stack([images + sigma * draw.to(images) for draw in draws])
            total = total + _gradients(self, noisy, classes, images.new_full((len(noisy),), 1 / self.samples))
        return logits, classes, total.abs().sum(dim=2)


def _gradients(explainer: Explainer, points: Tensor, classes: Tensor, weights: Tensor) -> Tensor:
    """Return the sum (B, T, C, H, W), with weights (S,), of gradients of (B, T) logits at points (S, B, C, H, W)."""
    leaf = points.flatten(0, 1).requires_grad_()
    logits = explainer._logits(leaf)
    slopes = gradients(logits, chosen(logits, classes.repeat(len(points), 1)), leaf, _LOST.format("rollout or rise"))
    return torch.stack([torch.tensordot(weights.float(), g.float().view(points.shape), dims=1) for g in slopes], dim=1)


class RISE(Explainer):
    """RISE (Petsiuk et al., BMVC 2018): the mean of random masks, weighed by the class's probability behind each.

    A mask is a grid of cells that are 1 with the probability `share`, else 0, enlarged bilinearly to a cell more than
    the image and cut at a random place. It is drawn by `rng` for each image, so a function of the sample.

    `masks` forwards for each image, and one for logits; further targets cost nothing. No backward.

    Args:
        model: images (B, 3, H, W) to logits (B, K), of two classes or more.
        masks: how many; published are 4000 and 8000.
        cells: of a side of the grid.
        share: of cells that show the image.
        fill: what hidden places become, a number or one for each channel, in the unit of the images; published is the
            mean that the model normalises with.
        batch_size: rows of a pass, where the images themselves are not more; None: 16 on a CPU, else 64.

    Raises:
        ValueError: a share that is not between 0 and 1; when called, a model of one class.

    Example:
        >>> RISE(model, masks=20)(images, target=torch.tensor([[0, 3], [0, 3]])).shape
        torch.Size([2, 2, 64, 64])
    """

    name = "rise"
    draws_numbers = True

    def __init__(
        self,
        model: nn.Module,
        masks: int = 1000,
        cells: int = 7,
        share: float = 0.5,
        fill: Fill = 0.0,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(model)
        at_least(1, masks=masks, batch_size=batch_size)
        at_least(2, cells=cells)
        if not 0 < share < 1:
            raise ValueError(f"share is {share}; expected the share of cells that show the image, between 0 and 1")
        self.masks, self.cells, self.share = masks, cells, share
        self.fill, self.batch_size = fill, batch_size

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        logits, classes = self._answered(images, targets)
        with torch.no_grad():
            draws = self.draws(images, rng)
            back, total = fill_values(self.fill, images), torch.zeros(0)
            for part in split_by_batch(self.masks, len(images), rows_of(self.batch_size, images)):
                masks = self.drawn(draws[:, part], (images.shape[2], images.shape[3]))
                covered = torch.lerp(back, images[:, None], masks[:, :, None].to(images.dtype))
                answers = self._probabilities(covered.flatten(0, 1)).view(*masks.shape[:2], -1)
                if answers.shape[2] == 1:
                    raise ValueError("the model has one class, whose probability is always 1; expected two or more")
                weights = answers.gather(2, chosen(answers[:, 0], classes)[:, None].expand(-1, masks.shape[1], -1))
                term = torch.einsum("bmt,bmhw->bthw", weights, masks)
                total = term if part.start == 0 else total + term
        return logits, classes, total

    def draws(self, images: Tensor, rng: Rng | None = None) -> Tensor:
        """Return the random numbers of all masks of each image: (B, masks, cells * cells + 2) in [0, 1)."""
        rng = rng or TorchRng(len(images), images.device)
        return rng.uniform((self.masks, self.cells**2 + 2), "cam/rise").to(images.device).float()

    def drawn(self, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the masks (B, M, H, W) float32 in [0, 1] of some of the random numbers (B, M, cells * cells + 2)."""
        grids = (draws[..., :-2] < self.share).float().view(*draws.shape[:-1], self.cells, self.cells)
        rows, columns = (self._enlarging(draws[..., axis - 2], side) for axis, side in enumerate(size))
        return torch.einsum("bmyi,bmij,bmxj->bmyx", rows, grids, columns)

    def _enlarging(self, draws: Tensor, side: int) -> Tensor:
        """Return what enlarges a grid along an axis and cuts it at a random pixel: (..., side, cells)."""
        cell = -(-side // self.cells)  # pixels of a cell
        pixel = (draws * cell).floor()[..., None] + torch.arange(side, device=draws.device)
        place = (pixel + 0.5) * self.cells / ((self.cells + 1) * cell) - 0.5
        last = self.cells - 1
        place = last - (last - place.abs()).abs()  # mirrored at both ends
        return (1 - (place[..., None] - torch.arange(self.cells, device=draws.device)).abs()).relu()


class Control(Explainer):
    """An explainer that uses only the size of the images; every target of an image has the same map.

    Args:
        model: asked for logits and predicted classes in one forward. None: no forward is made, the logits are (B, 0),
            and the target is the one given, or -1.

    Example:
        >>> [name for name in CONTROLS if issubclass(METHODS[name], Control)]
        ['random', 'centre', 'full']
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__(nn.Identity() if model is None else model)
        self._asks = model is not None

    def _raw(self, images: Tensor, targets: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        if self._asks:
            with torch.no_grad():
                logits = self._logits(images)
            classes = chosen(logits, targets)
        else:
            logits = images.new_zeros(len(images), 0)
            classes = torch.full_like(images[:, :1, 0, 0], -1, dtype=torch.int64) if targets is None else targets
        return logits, classes, self._grid(images, rng)[:, None].expand(-1, classes.shape[1], -1, -1)

    @abstractmethod
    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        """Return (B, h, w) raw maps."""


class RandomMap(Control):
    """Uniform random numbers on a grid x grid, upsampled as a ViT's map is: a map with a map's smoothness.

    Args:
        model: as of `Control`.
        grid: numbers along a side, 2 or more.

    Example:
        >>> RandomMap(grid=7)(images).amax(dim=(1, 2))
        tensor([1., 1.])
    """

    name = "random"
    draws_numbers = True

    def __init__(self, model: nn.Module | None = None, grid: int = 14) -> None:
        super().__init__(model)
        if grid < 2:
            raise ValueError(f"grid is {grid}; expected 2 or more: one number makes no map")
        self.grid = grid

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        rng = rng or TorchRng(len(images), images.device)
        return rng.uniform((self.grid, self.grid), "cam/random").to(images.device)


class CentredGaussian(Control):
    """A hill in the middle of the image, where objects mostly are; 1 at the centre, and not stretched down to 0.

    Args:
        model: as of `Control`.
        sigma: standard deviation as a share of the shorter side; 64/224 is 64 pixels at 224.

    Example:
        >>> CentredGaussian()(torch.zeros(1, 3, 65, 65))[0, 32, 32]
        tensor(1.)
    """

    name = "centre"

    def __init__(self, model: nn.Module | None = None, sigma: float = 64 / 224) -> None:
        super().__init__(model)
        if not 0 < sigma < math.inf:
            raise ValueError(f"sigma is {sigma}; expected a share of the shorter side above 0, such as 0.29")
        self.sigma = sigma

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        B, _, H, W = images.shape
        y = torch.arange(H, dtype=torch.float32, device=images.device) - (H - 1) / 2
        x = torch.arange(W, dtype=torch.float32, device=images.device) - (W - 1) / 2
        squares = (y * y)[:, None] + (x * x)[None, :]
        return torch.exp(squares / (-2 * (self.sigma * min(H, W)) ** 2)).expand(B, H, W)

    def _finish(self, grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return grids.clone(), torch.zeros_like(grids[..., 0, 0], dtype=torch.bool)


class FullImage(Control):
    """1 everywhere, and by definition not degenerate: what marking all of the image is worth.

    Example:
        >>> bool((FullImage()(images) == 1).all())
        True
    """

    name = "full"

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        return torch.ones_like(images[:, 0], dtype=torch.float32)

    def _finish(self, grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return torch.ones_like(grids, dtype=torch.float32), torch.zeros_like(grids[..., 0, 0], dtype=torch.bool)
