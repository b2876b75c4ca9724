"""Fog: a plasma fractal laid over the image (Hendrycks and Dietterich 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .corruption import Corruption, Draws
from .filters import by_parts, to_bytes, unit
from .rng import Rng


class Fog(Corruption):
    """x plus a height map in [0, c0], scaled so that the largest value stays what it was.

    Draws: `uniform` (size * size - 1,), size the power of two from the longer side on: every number of the height map
    but its corner, in the order in which `height_map` uses them.
    """

    name: ClassVar[str] = "fog"
    category: ClassVar[str] = "weather"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"uniform": rng.uniform((_map_size(shape) ** 2 - 1,), "uniform")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        weight, decay = self.constants(draws.severity)
        height, width = images.shape[2:]

        def fogged(images: Tensor, uniform: Tensor) -> Tensor:
            heights = height_map(uniform, _map_size(images.shape), decay)
            pixels = unit(images, torch.float64)
            brightest = pixels.amax((1, 2, 3), keepdim=True)
            pixels.add_(heights[:, None, :height, :width].mul_(weight))
            return to_bytes(pixels.mul_(brightest).div_(brightest + weight))

        return by_parts(fogged, images, draws["uniform"])


def _map_size(shape: Sequence[int]) -> int:
    return 1 << (max(shape[-2:]) - 1).bit_length()


def height_map(uniform: Tensor, size: int, decay: float) -> Tensor:
    """Return (B, size, size) float64 in [0, 1]: the diamond-square algorithm on a torus (Fournier et al. 1982).

    uniform: (B, size * size - 1) in [0, 1). From the coarsest step on, each level takes the middles of its squares,
    then those of their upper edges, then of their left edges; each set row by row. A new height is the mean of four
    known ones and a number in (-roughness^2, roughness^2): 100 at first, divided by `decay` at every level.
    """
    heights = torch.zeros(len(uniform), size, size, dtype=torch.float64, device=uniform.device)
    step, roughness, used = size, 100.0, 0
    while step >= 2:
        half, count = step // 2, (size // step) ** 2
        numbers = uniform[:, used : used + 3 * count].double() * (2 * roughness)
        numbers.sub_(roughness).mul_(roughness)
        middle, upper, left = numbers.reshape(-1, 3, size // step, size // step).unbind(1)
        corners = heights[:, ::step, ::step]
        sides = corners + corners.roll(-1, 1)
        middles = heights[:, half::step, half::step]
        middles.copy_((sides + sides.roll(-1, 2)).div_(4).add_(middle))
        above = (middles + middles.roll(1, 1)).add_(corners + corners.roll(-1, 2))
        heights[:, ::step, half::step] = above.div_(4).add_(upper)
        beside = (middles + middles.roll(1, 2)).add_(corners + corners.roll(-1, 1))
        heights[:, half::step, ::step] = beside.div_(4).add_(left)
        step, roughness, used = half, roughness / decay, used + 3 * count
    heights -= heights.amin((1, 2), keepdim=True)
    return heights.div_(heights.amax((1, 2), keepdim=True))
