"""Noise, one number per value: gaussian, shot, impulse and speckle (Hendrycks and Dietterich 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .base import Corruption, Draws, Rng
from .filters import from_bytes, to_bytes, upload


class GaussianNoise(Corruption):
    """x + c z, z standard normal. Draws: `normal` (3, H, W); computed in their dtype."""

    name, category = "gaussian_noise", "noise"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"normal": rng.normal(shape, "normal")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        noise: Tensor = draws["normal"] * self.constants(draws.severity)
        return to_bytes(noise.add_(from_bytes(images, noise.dtype)))


class SpeckleNoise(GaussianNoise):
    """x + x c z: Gaussian noise in proportion to the light. Draws: `normal` (3, H, W); computed in their dtype."""

    name, category = "speckle_noise", "extra"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        noise: Tensor = draws["normal"] * self.constants(draws.severity)
        clean = from_bytes(images, noise.dtype)
        return to_bytes(noise.mul_(clean).add_(clean))


class ImpulseNoise(Corruption):
    """Salt and pepper. Draws: `uniform` (3, H, W): 0 (pepper) below c / 2, 255 (salt) from there to c."""

    name, category = "impulse_noise", "noise"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"uniform": rng.uniform(shape, "uniform")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        share, uniform = self.constants(draws.severity), draws["uniform"]
        salt = (uniform < share).view(torch.uint8).neg()  # 255 or 0; bit operations, as a branch would be mispredicted
        spared = (uniform < share / 2).view(torch.uint8) - 1
        return images.bitwise_or(salt).bitwise_and_(spared)


class ShotNoise(Corruption):
    """Photons counted: k / c, k the exact Poisson quantile at u for mean c x. Draws: `uniform` (3, H, W), u."""

    name, category = "shot_noise", "noise"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"uniform": rng.uniform(shape, "uniform")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        photons = self.constants(draws.severity)
        counts = _photons(images.flatten(), draws["uniform"].flatten(), photons)
        levels: Tensor = (torch.arange(photons + 1, dtype=torch.float64) / photons * 255).to(torch.uint8)
        return upload(levels, images.device).index_select(0, counts).reshape(images.shape)


BINS = 1024


def _photons(values: Tensor, uniform: Tensor, photons: int) -> Tensor:
    """Return min(k, photons) of every value, (N,) int32; for most the bin of u decides, a bisection for the others."""
    table, guide, decided = _poisson_tables(photons, values.device)
    cell = values.int() * (BINS + 1) + (uniform * BINS).int()
    counts = decided.index_select(0, cell)
    rest = (counts < 0).nonzero().squeeze(1)
    first, last = guide[cell[rest]], guide[cell[rest] + 1]
    rows, uniform = values[rest].int() * (photons + 1), uniform[rest].double()
    while len(rest):
        middle = (first + last) >> 1
        more = table.index_select(0, rows + middle) <= uniform
        first, last = torch.where(more, middle + 1, first), torch.where(more, last, middle)
        counts[rest] = first  # exact where the two have met
        wide = (first < last).nonzero().squeeze(1)
        rest, rows, uniform, first, last = (kept[wide] for kept in (rest, rows, uniform, first, last))
    return counts


@lru_cache(maxsize=32)
def _poisson_tables(photons: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return F(k; v / 255 * photons), counts at bins of u, and of whole bins (-1: open); a row for each value v."""
    mean = (torch.arange(256, dtype=torch.float64) / 255 * photons)[:, None]
    steps = mean / torch.arange(1, 2 * photons + 61, dtype=torch.float64)  # beyond, terms vanish in float64
    probability = torch.cat((torch.exp(-mean), steps), dim=1).cumprod(dim=1)
    below = probability.cumsum(dim=1)[:, : photons + 1]
    above = probability.flip(1).cumsum(dim=1).flip(1)[:, 1 : photons + 2]
    table = torch.where(below < 0.5, below, 1 - above)  # each tail summed from its own end
    edges = (torch.arange(BINS + 1, dtype=torch.float64) / BINS).expand(256, -1).contiguous()
    guide = torch.searchsorted(table, edges, right=True, out_int32=True).clamp_(max=photons)
    decided = torch.where(guide == guide.roll(-1, 1), guide, -1)
    return table.flatten().to(device), guide.flatten().to(device), decided.flatten().to(device)
