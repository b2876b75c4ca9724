"""Snow: streaks of enlarged, thresholded noise over a paler image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .corruption import Corruption, Draws
from .filters import Q16_HALF, by_parts, motion_blur, motion_paths, to_bytes, trimmed, unit, zoom_in
from .rng import Rng


class Snow(Corruption):
    """Noise, enlarged about its middle, cut off below a threshold and blurred along a line: added twice, the second
    time turned by 180 degrees, to an image that was whitened.

    hendrycks: truncates the flakes to 8 bits and has ImageMagick blur them. bethgelab: blurs the numbers themselves
    and rounds then, and enlarges about the top left corner of the middle.

    Draws: `normal` (H, W); `angle` uniform (): -135 + 90 u degrees.
    """

    name: ClassVar[str] = "snow"
    category: ClassVar[str] = "weather"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"normal": rng.normal(shape[-2:], "normal"), "angle": rng.uniform((), "angle")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        kept = self.constants(draws.severity)[6]

        def snowed(part: Tensor, layer: Tensor) -> Tensor:
            flakes, image = unit(layer, torch.float64), unit(part, torch.float32)
            red, green, blue = image.unbind(1)
            grey = (red * 0.299 + green * 0.587 + blue * 0.114)[:, None]
            pale = kept * image + (1 - kept) * torch.maximum(image, grey * 1.5 + 0.5)
            return to_bytes(pale.double() + flakes + flakes.flip(-2, -1))

        return by_parts(snowed, images, self.flakes(draws))

    def flakes(self, draws: Draws) -> Tensor:
        """Return the layer of snow, (B, 1, H, W) uint8."""
        mean, deviation, zoom, threshold, radius, sigma, _ = self.constants(draws.severity)
        exact = self.variant == "bethgelab"
        noise = draws["normal"].double()[:, None] * deviation + mean
        size = noise.shape[-2:]
        layer = zoom_in(noise, zoom)
        layer = layer if exact else trimmed(layer, size)
        layer = torch.where(layer < threshold, 0, layer).clamp_(0, 1).mul_(255)
        layer = layer if exact else layer.floor_()
        paths = motion_paths(radius, sigma, [-135 + 90 * u for u in draws["angle"].tolist()])
        layer = motion_blur(layer, paths.inside(layer.shape) if exact else paths)
        layer = layer.round_() if exact else layer.add_(Q16_HALF)
        return layer[..., : size[0], : size[1]].to(torch.uint8)
