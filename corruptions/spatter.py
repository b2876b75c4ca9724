"""Spatter: drops of water or mud on the lens (Hendrycks and Dietterich 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import cv2
import numpy as np
import torch
from torch import Tensor

from .corruption import Corruption, Draws
from .filters import smooth, to_bytes, unit
from .rng import Rng

WATER = (175, 238, 238)
MUD = (63, 42, 20)
SHADING = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # light from the upper left


class Spatter(Corruption):
    """Smoothed noise above a threshold is liquid: pale water that lights up its edges, or mud that covers.

    Where noise leaves no water at all, as on small images, the image stays as it is; the reference divides by zero.

    Draws: `normal` (H, W).
    """

    name: ClassVar[str] = "spatter"
    category: ClassVar[str] = "extra"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"normal": rng.normal(shape[-2:], "normal")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        mean, deviation, sigma, threshold, strength, is_mud = self.constants(draws.severity)
        noise = draws["normal"].double().mul(deviation).add_(mean)
        layer = smooth(noise[:, None], sigma)[:, 0]
        liquid = layer.masked_fill_(layer < threshold, 0)
        pixels = unit(images, torch.float32)
        if is_mud:
            # float32 here in hendrycks, float64 in bethgelab
            color = _color(MUD, images.device, torch.float32 if self.variant == "hendrycks" else torch.float64)
            cover = _stain(liquid > threshold, strength)[:, None]
            pixels = pixels.mul_(1 - cover) + color * cover
        else:
            wet = _gloss(liquid).mul_(strength)[:, None]
            pixels = pixels.add_(wet * _color(WATER, images.device, torch.float32))
        return to_bytes(pixels)


def _color(levels: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor([level / 255 for level in levels], dtype=dtype, device=device)[:, None, None]


def _stain(muddy: Tensor, sigma: float) -> Tensor:
    """Return how much mud covers, (B, H, W) float32, 0 where it is less than 0.8."""
    planes = muddy.double()[:, None]
    # float32 also between the two directions, as scipy does for float32 images.
    down = smooth(planes, (sigma, 0)).float().double()
    cover = smooth(down, (0, sigma))[:, 0].float()
    return cover.masked_fill_(cover < 0.8, 0)


def _gloss(liquid: Tensor) -> Tensor:
    """Return how thick liquid shines near its edges, (B, H, W) float32 in [0, 1]. On the CPU, image by image."""
    # Large images have values above 1; they wrap around, as numpy's conversion does.
    levels = (liquid * 255).to(torch.int32).to(torch.uint8).cpu().numpy()
    shine = np.stack([plane * _shading(plane) for plane in levels])
    brightest = shine.max((1, 2), keepdims=True)
    shine /= np.where(brightest > 0, brightest, np.float32(1))
    return torch.from_numpy(shine).to(liquid.device)


def _shading(levels: np.ndarray) -> np.ndarray:
    """Return the distance to the liquid's edges as a relief lit from one side, (H, W) float32."""
    distance = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    distance = np.minimum(distance, np.float32(20))
    relief = cv2.equalizeHist(cv2.blur(distance, (3, 3)).astype(np.uint8))
    lit = cv2.filter2D(relief, cv2.CV_8U, SHADING)
    return cv2.blur(lit, (3, 3)).astype(np.float32)
