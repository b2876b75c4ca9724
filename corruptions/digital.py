"""Brightness, contrast, saturation, pixelation, JPEG and elastic transform (Hendrycks and Dietterich 2019).

None draws random numbers. Everything is float64 in the reference's order of operations: flat areas lie exactly on a
level of 8 bits, and truncation turns an error of the last bit into one grey level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BytesIO

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .base import Corruption, Draws, Rng
from .filters import by_parts, from_bytes, smooth, to_bytes, upload


class Brightness(Corruption):
    """A constant added to the value of hue, saturation and value."""

    name, category = "brightness", "weather"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        hue, saturation, value = _to_hsv(images)
        value.add_(self.constants(draws.severity)).clamp_(0, 1)
        return _from_hsv(hue, saturation, value)


class Saturate(Corruption):
    """The saturation of hue, saturation and value, times a factor, plus a constant that turns greys red."""

    name, category = "saturate", "extra"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        factor, addend = self.constants(draws.severity)
        hue, saturation, value = _to_hsv(images)
        saturation.mul_(factor).add_(addend).clamp_(0, 1)
        return _from_hsv(hue, saturation, value)


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in sixths of the circle, [0, 6), saturation, and value in [0, 1]; each (B, H, W) float64."""
    red, green, blue = from_bytes(images, torch.float64).unbind(1)
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
    # Through [0, 1) as in skimage.color.rgb2hsv, whose rounding decides ties.
    hue = left.sub(right).div_(safe).add_(sector).div_(value.new_full((), 6.0))
    hue = torch.where(hue < 0, hue + 1, hue)
    return hue.mul_(6).masked_fill_(grey, 0), saturation, value


# Which of value, p, q, t red, green and blue are in each sixth of the circle (Smith 1978).
_SECTORS = ((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2))


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


class Contrast(Corruption):
    """Closer to the mean of each channel."""

    name, category = "contrast", "digital"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        pixels, factor = from_bytes(images, torch.float64), self.constants(draws.severity)
        total = images.sum((2, 3), keepdim=True)  # a sum of whole numbers: exact in any order
        area = total.new_full((), images.shape[2:].numel())
        means = from_bytes(total.double() / area, torch.float64)
        return to_bytes(pixels.sub_(means).mul_(factor).add_(means))


class Pixelate(Corruption):
    """Made smaller by averaging boxes, and larger again, by boxes (hendrycks) or the nearest pixel (bethgelab).

    Both are the same at 224x224, but not where the edge of a coarse pixel falls on the middle of a fine one.
    """

    name, category = "pixelate", "digital"

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


class JpegCompression(Corruption):
    """Saved as JPEG and read again. The encoder is Pillow's: another libjpeg may give slightly other pixels."""

    name, category = "jpeg_compression", "digital"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        quality = self.constants(draws.severity)

        def compress(image: Image.Image) -> Image.Image:
            file = BytesIO()
            image.save(file, "JPEG", quality=quality)
            return Image.open(file, formats=("JPEG",))

        return _with_pillow(images, compress)


def _with_pillow(images: Tensor, function: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Apply `function` to each image, (B, 3, H, W) uint8, in as many threads as torch may use; of another number of
    channels to each channel."""
    if images.shape[1] not in (1, 3):
        return _with_pillow(images.flatten(0, 1)[:, None], function).view(images.shape)
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


class ElasticTransform(Corruption):
    """Pixels moved along smoothed noise, bilinearly, borders mirrored with the outermost pixel; before that
    (hendrycks) an affine map that shifts three points at random.

    bethgelab: no affine map; smoothing and strength follow the image's size.

    Draws: `affine` uniform (3, 2), hendrycks only: -c + 2 c u pixels for the constant c; `dx`, `dy` uniform (H, W):
    -1 + 2 u, times the constant strength (hendrycks); -m + 2 m u, m = 0.005 H, times a strength (bethgelab).
    """

    name, category = "elastic_transform", "digital"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        numbers = {"affine": rng.uniform((3, 2), "affine")} if self.variant == "hendrycks" else {}
        return Draws(severity, numbers | {name: rng.uniform(shape[-2:], name) for name in ("dx", "dy")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = images.shape[-2:]
        sigma: float | tuple[float, float]
        if self.variant == "hendrycks":
            strength, sigma, shift = self.constants(draws.severity)
            largest = 1.0
        else:
            strength = (12.5, 16.25, 21.25, 25.0, 30.0)[draws.severity - 1]
            sigma, largest = (height * 0.01, width * 0.01), height * 0.005

        def moved(part: Tensor, dx: Tensor, dy: Tensor, *affine: Tensor) -> Tensor:
            image = from_bytes(part, torch.float32)
            if affine:
                image = affine_warp(image, affine_inverse(affine[0].double(), shift, (height, width)))
            noise = torch.stack([dy, dx], 1).mul_(2 * largest).sub_(largest)
            shifts = smooth(noise, sigma, "reflect", 3).mul_(strength).float()
            return to_bytes(sample_displaced(image, shifts))

        return by_parts(moved, images, draws["dx"], draws["dy"], *(draws[k] for k in ("affine",) if k in draws.numbers))


def affine_inverse(draws: Tensor, shift: float, size: tuple[int, int]) -> Tensor:
    """Return (B, 2, 3) float64: where in the image the pixel (column, row, 1) of the result comes from.

    Corners of a square move by up to `shift`, given to OpenCV as (row, column) where (column, row) is expected.
    """
    middle = upload(torch.tensor([size[0] // 2, size[1] // 2], dtype=torch.float64), draws.device)
    half = min(size) // 3
    corner = upload(torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64), draws.device)
    moved = (middle + half * corner).float() + (2 * shift * draws - shift).float()
    first, second, third = moved.double().unbind(1)
    side = middle.new_full((), 2 * half)
    a, c = ((second - third) / side).unbind(1)
    b, d = ((first - second) / side).unbind(1)
    x, y = middle - half
    e, f = third[:, 0] - a * x - b * y, third[:, 1] - c * x - d * y
    determinant = a * d - b * c
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    return torch.stack([a, b, -(a * e + b * f), c, d, -(c * e + d * f)], 1).view(-1, 2, 3)


def affine_warp(images: Tensor, inverse: Tensor) -> Tensor:
    """Return images (B, 3, H, W) float32 at coordinates `inverse` (B, 2, 3), bilinearly, in OpenCV's fixed point:
    coordinates rounded to 1/1024 of a pixel, once for the column's share and once for the row's, and their sum to 1/32.
    """
    height, width = images.shape[-2:]
    column = torch.arange(width, dtype=torch.float64, device=images.device)
    row = torch.arange(height, dtype=torch.float64, device=images.device)[:, None]
    near, shares = [], []
    for size, line in ((width, inverse[:, 0]), (height, inverse[:, 1])):
        a, b, c = line.view(-1, 3, 1, 1).unbind(1)
        across, down = (a * column * 1024).round_().int(), ((b * row + c) * 1024).round_().int()
        fixed = (across + (down + 16)) >> 5
        near.append(mirrored(fixed >> 5, size, outermost=False))
        shares.append((fixed & 31).float().div_(32))
    total = torch.zeros_like(images)
    (columns, rows), (across, down) = near, shares
    for r, vertical in zip(rows, (1 - down, down), strict=True):
        for c, horizontal in zip(columns, (1 - across, across), strict=True):
            total += pixels_at(images, r, c).mul_((vertical * horizontal)[:, None])
    return total


def sample_displaced(images: Tensor, shifts: Tensor) -> Tensor:
    """Return images (B, 3, H, W) at places plus `shifts` (B, 2, H, W), as map_coordinates, bilinearly, in float64."""
    height, width = images.shape[-2:]
    whole = shifts.floor()
    down, across = (shifts.double() - whole).unsqueeze(2).unbind(1)
    rows = mirrored(whole[:, 0] + torch.arange(height, device=images.device)[:, None], height)
    columns = mirrored(whole[:, 1] + torch.arange(width, device=images.device), width)
    lines = []
    for row in rows:
        left, right = (pixels_at(images, row, column).double() for column in columns)
        lines.append(torch.lerp(left, right, across))
    return torch.lerp(lines[0], lines[1], down).float()


def mirrored(first: Tensor, size: int, outermost: bool = True) -> tuple[Tensor, Tensor]:
    """Return whole positions and their successors as float32 in [0, size), mirrored with or without the `outermost`."""
    first = first.float()
    period, last = (2 * size, 2 * size - 1) if outermost else (2 * size - 2, 2 * size - 2)
    first = first - ((first + 0.5) * (1 / period)).floor_().mul_(period)  # in [0, period)
    second = first + 1
    return torch.minimum(first, last - first), torch.minimum(second, last - second).clamp_(min=0)


def pixels_at(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return (B, 3, H, W): for each position the pixel in this row and column, both (B, H, W) whole float32 numbers."""
    index = (rows.long() * images.shape[-1] + columns.long()).flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).view(*images.shape[:2], *rows.shape[-2:])
