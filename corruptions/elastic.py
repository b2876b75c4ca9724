"""Elastic transform: a random affine map, and a smooth random displacement of every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .corruption import Corruption, Draws
from .filters import by_parts, smooth, to_bytes, unit, upload
from .rng import Rng


class ElasticTransform(Corruption):
    """Pixels moved along smoothed noise, bilinearly, borders mirrored with the outermost pixel; before that
    (hendrycks) an affine map that shifts three points at random.

    bethgelab: no affine map; smoothing and strength follow the image's size.

    Draws: `affine` uniform (3, 2), hendrycks only: -c + 2 c u pixels for the constant c; `dx`, `dy` uniform (H, W):
    -1 + 2 u, times the constant strength (hendrycks); -m + 2 m u, m = 0.005 H, times a strength (bethgelab).
    """

    name: ClassVar[str] = "elastic_transform"
    category: ClassVar[str] = "digital"

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
            image = unit(part, torch.float32)
            if affine:
                image = affine_warp(image, affine_inverse(affine[0].double(), shift, (height, width)))
            noise = torch.stack([dy, dx], 1).mul_(2 * largest).sub_(largest)
            shifts = smooth(noise, sigma, "reflect", 3).mul_(strength).float()
            return to_bytes(displaced(image, shifts))

        return by_parts(moved, images, draws["dx"], draws["dy"], *(draws[k] for k in ("affine",) if k in draws.numbers))


def affine_inverse(draws: Tensor, shift: float, size: tuple[int, int]) -> Tensor:
    """Return (B, 2, 3) float64: where in the image the pixel (column, row, 1) of the result comes from.

    Three corners of a square about the middle move by up to `shift`. The reference gives them to OpenCV as (row,
    column) where (column, row) is expected, which matters where the image is not square.
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
    """Return the images (B, 3, H, W) float32 at the coordinates `inverse` (B, 2, 3), bilinearly, borders mirrored
    without the outermost pixel.

    In OpenCV's fixed point, which is part of the benchmark: coordinates rounded to 1/1024 of a pixel, once for the
    column's share and once for the row's, and their sum to 1/32.
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
            total += pixels(images, r, c).mul_((vertical * horizontal)[:, None])
    return total


def displaced(images: Tensor, shifts: Tensor) -> Tensor:
    """Return the images (B, 3, H, W) float32 at each pixel's place plus `shifts` (B, 2, H, W) float32, rows first:
    bilinearly, computed in float64; borders mirrored with the outermost pixel: scipy.ndimage.map_coordinates in mode
    `reflect`.
    """
    height, width = images.shape[-2:]
    whole = shifts.floor()
    down, across = (shifts.double() - whole).unsqueeze(2).unbind(1)
    rows = mirrored(whole[:, 0] + torch.arange(height, device=images.device)[:, None], height)
    columns = mirrored(whole[:, 1] + torch.arange(width, device=images.device), width)
    lines = []
    for row in rows:
        left, right = (pixels(images, row, column).double() for column in columns)
        lines.append(torch.lerp(left, right, across))
    return torch.lerp(lines[0], lines[1], down).float()


def mirrored(first: Tensor, size: int, outermost: bool = True) -> tuple[Tensor, Tensor]:
    """Return whole positions and their successors, as float32 numbers within [0, size).

    outermost: whether the mirror repeats the outermost pixel (b a | a b c | c b), or not (c b | a b c | b a).
    """
    first = first.float()
    period, last = (2 * size, 2 * size - 1) if outermost else (2 * size - 2, 2 * size - 2)
    first = first - ((first + 0.5) * (1 / period)).floor_().mul_(period)  # in [0, period)
    second = first + 1
    return torch.minimum(first, last - first), torch.minimum(second, last - second).clamp_(min=0)


def pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return (B, 3, H, W): for each position the pixel in this row and column, both (B, H, W) whole float32 numbers."""
    index = (rows.long() * images.shape[-1] + columns.long()).flatten(1)[:, None].expand(-1, 3, -1)
    return images.flatten(2).gather(2, index).view(len(images), 3, *rows.shape[-2:])
