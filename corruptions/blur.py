"""Blurs: Gaussian, out of focus, frosted glass, motion and zoom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .base import Corruption, Draws, Rng
from .filters import (
    Q16_HALF,
    by_parts,
    from_bytes,
    gaussian_blur,
    motion_blur,
    motion_paths,
    to_bytes,
    trim,
    zoom_in,
)


class GaussianBlur(Corruption):
    """Gaussian filter of scipy's, borders repeated. No draws."""

    name, category = "gaussian_blur", "extra"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        sigma = self.constants(draws.severity)
        return by_parts(lambda part: gaussian_blur(part, sigma), images)


class DefocusBlur(Corruption):
    """Filter with an antialiased disk, borders mirrored without the outermost pixel. No draws."""

    name, category = "defocus_blur", "blur"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        constants = self.constants(draws.severity)
        reach, (height, width) = len(disk(*constants)) // 2, images.shape[-2:]
        size = (cv2.getOptimalDFTSize(height + 2 * reach), cv2.getOptimalDFTSize(width + 2 * reach))
        response = _response(constants, size, images.device)
        rows, columns = (_mirrored(length, reach, images.device) for length in (height, width))

        def filtered(part: Tensor) -> Tensor:
            padded = from_bytes(part[..., rows[:, None], columns], torch.float64)
            blurred = torch.fft.irfft2(torch.fft.rfft2(padded, s=size) * response, s=size)
            return to_bytes(blurred[..., 2 * reach :, 2 * reach :][..., :height, :width])

        return by_parts(filtered, images)


@lru_cache(maxsize=32)
def disk(radius: float, sigma: float) -> npt.NDArray[np.float32]:
    """Return a disk of sum 1 (1.01 for a radius of 8 or 10) smoothed by a small Gaussian, odd square float32.

    Rounding shows in flat areas, where a sum just short of 1 costs a level: hence OpenCV's order of adding up, with
    fused products, whatever the version and the processor.
    """
    half, reach = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    line = np.arange(-half, half + 1)
    kernel = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    kernel /= kernel.sum()
    weights = np.exp(-(np.arange(reach + 1) ** 2) / (2 * sigma**2))
    weights = (weights / (2 * weights.sum() - weights[0])).astype(np.float32).astype(np.float64)
    for axis, order in ((1, (1, 0, 2)), (0, (0, 1, 2))):
        margin = [(reach, reach) if along == axis else (0, 0) for along in (0, 1)]
        lines = np.moveaxis(np.pad(kernel, margin, mode="reflect"), axis, 0)
        total = np.zeros((len(line), len(line)), np.float32)
        for step in order[: reach + 1]:
            term = lines[reach + step :][: len(line)]
            term = term + lines[reach - step :][: len(line)] if step else term
            total = (term * weights[step] + total).astype(np.float32)
        kernel = np.moveaxis(total, 0, axis)
    return kernel


@lru_cache(maxsize=32)
def _response(constants: tuple[float, float], size: tuple[int, int], device: torch.device) -> Tensor:
    """Return the Fourier transform of the disk, which is symmetric: convolution and correlation are one."""
    response: Tensor = torch.fft.rfft2(torch.from_numpy(disk(*constants)).double(), s=size)
    return response.to(device)


@lru_cache(maxsize=64)
def _mirrored(length: int, reach: int, device: torch.device) -> Tensor:
    """Return the source of each of length + 2 * reach positions, mirrored about the outermost: c b | a b c | b a."""
    period = 2 * length - 2
    position = torch.arange(-reach, length + reach, device=device).remainder(period)
    return torch.minimum(position, period - position)


class GlassBlur(Corruption):
    """Gaussian filter, then every inner pixel takes the value of one nearby, then the filter again.

    The reference means to swap two pixels, but copies: the neighbour keeps its value. It walks from the bottom right
    to the top left, so that a pixel may take what its neighbour has only just taken.

    Draws: `offsets` uniform (passes, rows, columns, 2) in the order of the walk, last axis across and down: floor(2du)
    - d for the largest displacement d.
    """

    name, category = "glass_blur", "blur"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        _, reach, passes = self.constants(severity)
        rows, columns = (size - 2 * reach for size in shape[-2:])
        return Draws(severity, {"offsets": rng.uniform((passes, rows, columns, 2), "offsets")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        sigma, reach, _ = self.constants(draws.severity)

        def shuffled(part: Tensor, offsets: Tensor) -> Tensor:
            start = gaussian_blur(part, sigma)
            source = glass_walk(offsets, reach, (part.shape[-2], part.shape[-1]))[:, None].expand(-1, part.shape[1], -1)
            return gaussian_blur(start.flatten(2).gather(2, source).view_as(start), sigma)

        return by_parts(shuffled, images, draws["offsets"])


def glass_walk(offsets: Tensor, reach: int, size: tuple[int, int]) -> Tensor:
    """Return the pixel (B, H * W) that each one shows after all passes, from `offsets`, without a loop over pixels.

    Within a pass a pixel copies one that was visited before, and then shows what that one shows, or one that was not,
    and then shows its value before the pass. Chains of the first kind are followed to their ends by doubling.
    """
    height, width = size
    device = offsets.device
    across, down = offsets.mul(2 * reach).floor_().unbind(-1)
    step = (down * width + across - reach * (width + 1)).flip(-2, -1).long()
    here = torch.arange(height * width, device=device)
    walked = torch.zeros(height, width, dtype=torch.bool, device=device)
    inner = (..., slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    walked[inner] = True
    origins = here.expand(len(offsets), -1)
    for steps in step.unbind(1):
        taken = here.expand_as(origins).clone()
        taken.view(-1, height, width)[inner] += steps
        last = torch.where(walked.flatten()[taken] & (taken > here), taken, here)
        while not torch.equal(further := last.gather(1, last), last):
            last = further
        origins = origins.gather(1, taken.gather(1, last))
    return origins


class MotionBlur(Corruption):
    """Half a Gaussian along a line, in whole pixels, borders repeated. Draws: `angle` uniform (): -45 + 90 u degrees.

    hendrycks: ImageMagick's, which rounds to 16 bits and truncates to 8. bethgelab: truncates, and stops where the
    line is as long as the image, which darkens an image smaller than the line.
    """

    name, category = "motion_blur", "blur"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"angle": rng.uniform((), "angle")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        radius, sigma = self.constants(draws.severity)
        paths = motion_paths(radius, sigma, [-45 + 90 * u for u in draws["angle"].tolist()])
        if self.variant == "hendrycks":
            return motion_blur(images, paths, lambda mixed: mixed.add_(Q16_HALF).to(torch.uint8))
        return motion_blur(images, paths.inside(images.shape), lambda mixed: mixed.to(torch.uint8), fused=False)


class ZoomBlur(Corruption):
    """Mean of the image and ever larger versions of it, in float32 as the reference sums them. No draws."""

    name, category = "zoom_blur", "blur"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        end, step = self.constants(draws.severity)
        factors = np.arange(1, end, step).tolist()  # its rounding decides whether the end is one of them
        return by_parts(lambda part: self._blurred(part, factors), images, pixels=1 << 19)

    @staticmethod
    def _blurred(images: Tensor, factors: list[float]) -> Tensor:
        # The images of a batch as channels of one, stored last: enlarging is several times faster in that order.
        plain = from_bytes(images, torch.float32).flatten(0, 1)[None].contiguous(memory_format=torch.channels_last)
        exact, layer, total = plain.double(), torch.empty_like(plain), torch.zeros_like(plain)
        for factor in factors:
            total += layer.copy_(trim(zoom_in(exact, factor), images.shape[-2:]))
        count = plain.new_full((), len(factors) + 1)
        return to_bytes((plain + total) / count).contiguous().view_as(images)
