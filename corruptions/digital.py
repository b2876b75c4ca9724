"""Brightness, contrast and saturation, and what Pillow does: pixelation and JPEG (Hendrycks and Dietterich 2019).

None draws random numbers. Everything is float64 in the reference's order of operations: flat areas lie exactly on a
level of 8 bits, and truncation turns an error of the last bit into one grey level.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BytesIO
from typing import ClassVar

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .corruption import Deterministic, Draws
from .filters import to_bytes, unit, upload


class Brightness(Deterministic):
    """A constant added to the value of hue, saturation and value."""

    name: ClassVar[str] = "brightness"
    category: ClassVar[str] = "weather"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        hue, saturation, value = _to_hsv(images)
        value.add_(self.constants(draws.severity)).clamp_(0, 1)
        return _from_hsv(hue, saturation, value)


class Saturate(Deterministic):
    """The saturation of hue, saturation and value, times a factor, plus a constant that turns greys red."""

    name: ClassVar[str] = "saturate"
    category: ClassVar[str] = "extra"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        factor, addend = self.constants(draws.severity)
        hue, saturation, value = _to_hsv(images)
        saturation.mul_(factor).add_(addend).clamp_(0, 1)
        return _from_hsv(hue, saturation, value)


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in sixths of the circle, [0, 6), saturation, and value in [0, 1]; each (B, H, W) float64.

    The hue went through [0, 1) as in skimage.color.rgb2hsv, whose rounding decides ties.
    """
    red, green, blue = unit(images, torch.float64).unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    delta = value - torch.minimum(torch.minimum(red, green), blue)
    grey = delta == 0
    safe = delta.masked_fill(grey, 1)
    saturation = delta / value.masked_fill(grey, 1)
    # Where two channels are largest, the later one decides.
    is_blue, is_green = blue == value, green == value
    left = torch.where(is_blue, red, torch.where(is_green, blue, green))
    right = torch.where(is_blue, green, torch.where(is_green, red, blue))
    sector = torch.where(is_blue, 4.0, torch.where(is_green, 2.0, 0.0).double())
    hue = left.sub(right).div_(safe).add_(sector).div_(value.new_full((), 6.0))
    hue = torch.where(hue < 0, hue + 1, hue)
    return hue.mul_(6).masked_fill_(grey, 0), saturation, value


_SECTORS = ((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2))
"""Which of value, p, q, t red, green and blue are in each sixth of the circle (Smith 1978)."""


def _from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return the images (B, 3, H, W) uint8 of what `_to_hsv` gives."""
    sector = hue.floor()
    fraction = hue - sector
    p = value * (1 - saturation)
    q = value * (1 - fraction * saturation)
    t = value * (1 - (1 - fraction) * saturation)
    levels = torch.stack((value, p, q, t), 1).mul_(255).to(torch.uint8)
    chosen = upload(torch.tensor(_SECTORS), hue.device)[sector.to(torch.int64)]
    return levels.gather(1, chosen.movedim(-1, 1))


class Contrast(Deterministic):
    """Closer to the mean of each channel."""

    name: ClassVar[str] = "contrast"
    category: ClassVar[str] = "digital"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        pixels, factor = unit(images, torch.float64), self.constants(draws.severity)
        total = images.sum((2, 3), keepdim=True)  # a sum of whole numbers: exact in any order
        area = total.new_full((), images.shape[2:].numel())
        means = unit(total.double() / area, torch.float64)
        return to_bytes(pixels.sub_(means).mul_(factor).add_(means))


class Pixelate(Deterministic):
    """Made smaller by averaging boxes, and larger again.

    hendrycks enlarges by boxes too, bethgelab by the nearest pixel: the same at 224x224, but not where the edge of a
    coarse pixel falls on the middle of a fine one.
    """

    name: ClassVar[str] = "pixelate"
    category: ClassVar[str] = "digital"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        scale = self.constants(draws.severity)
        height, width = images.shape[2:]
        small = (int(width * scale), int(height * scale))
        nearest = self.variant == "bethgelab" or all(map(_boxes_are_nearest, small, (width, height)))
        enlarge = Image.Resampling.NEAREST if nearest else Image.Resampling.BOX

        def pixelate(image: Image.Image) -> Image.Image:
            return image.resize(small, Image.Resampling.BOX).resize(image.size, enlarge)

        return _with_pillow(images, pixelate)


@lru_cache(maxsize=256)
def _boxes_are_nearest(small: int, size: int) -> bool:
    """Whether a line enlarged by boxes is the line enlarged by the nearest pixel, which is twice as fast."""
    line = Image.fromarray(np.arange(small, dtype=np.float32)[None])
    boxes, nearest = (line.resize((size, 1), kind) for kind in (Image.Resampling.BOX, Image.Resampling.NEAREST))
    return bool(np.array_equal(np.asarray(boxes), np.asarray(nearest)))


class JpegCompression(Deterministic):
    """Saved as JPEG and read again. The encoder is Pillow's: another libjpeg may give slightly other pixels."""

    name: ClassVar[str] = "jpeg_compression"
    category: ClassVar[str] = "digital"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        quality = self.constants(draws.severity)

        def compress(image: Image.Image) -> Image.Image:
            file = BytesIO()
            image.save(file, "JPEG", quality=quality)
            return Image.open(file, formats=("JPEG",))

        return _with_pillow(images, compress)


def _with_pillow(images: Tensor, function: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply `function` to each image, (B, 3, H, W) uint8, in as many threads as torch may use.

    Threads help where images are large, since Pillow releases Python's lock.
    """
    arrays = images.cpu().numpy()
    results = np.empty(arrays.shape, np.uint8)  # rows together, however those of the input lie

    def through(index: int) -> None:
        cv2.split(np.asarray(function(Image.fromarray(cv2.merge(arrays[index])))), list(results[index]))

    threads = min(torch.get_num_threads(), len(arrays)) if arrays[0].size > 1 << 15 else 1
    if threads == 1:
        list(map(through, range(len(arrays))))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(through, range(len(arrays))))
    return upload(torch.from_numpy(results), images.device)
