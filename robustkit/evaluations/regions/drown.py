"""Regions of images, and the noise that drowns them: functions of images, maps, and each sample's own draws."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from ...common.randomness import SampleRng

SPREAD = {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.8}
"""Standard deviation of the noise by severity, as a share of the range of pixels; severity 5 keeps nothing."""


def extreme(maps: Tensor, share: Fraction, lowest: bool = False) -> Tensor:
    """Return the pixels (B, H, W) bool of the highest or lowest values of maps (B, H, W).

    Of each map it is the same number of pixels, the share rounded to whole ones; raster order decides among equals, so
    that the highest and lowest halves have no pixel in common.
    """
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    count = int(share * order.shape[1] + Fraction(1, 2))
    chosen = order[:, order.shape[1] - count :] if lowest else order[:, :count]
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, chosen, True).view_as(maps)


def elsewhere(regions: Tensor, rng: SampleRng) -> Tensor:
    """Return regions (B, H, W) at random places: each moved by drawn rows and columns, around the borders."""
    B, H, W = regions.shape
    drawn = rng.uniform((2,), "place").to(regions.device)
    rows, columns = (
        (torch.arange(size, device=regions.device) + (drawn[:, axis, None] * size).long()) % size
        for axis, size in ((0, H), (1, W))
    )
    return regions[torch.arange(B, device=regions.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def noised(pixels: Tensor, severity: int, rng: SampleRng) -> Tensor:
    """Return images (B, 3, H, W) uint8 with noise everywhere, rounded to whole levels."""
    if severity not in SPREAD:
        return (rng.uniform(pixels.shape[1:], "levels") * 256).to(pixels)
    noise = rng.normal(pixels.shape[1:], "noise").to(pixels.device)
    return (pixels.float() + 255 * SPREAD[severity] * noise).round_().clamp_(0, 255).to(pixels.dtype)
