"""Linear filters on planes, (B, C, H, W) floating, image by image, so that a result does not depend on the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional


@lru_cache(maxsize=64)
def _gaussian(sigma: float, truncate: float) -> npt.NDArray[Any]:
    reach = int(truncate * sigma + 0.5)
    places = np.arange(-reach, reach + 1)
    kernel: npt.NDArray[Any] = np.exp(-0.5 / (sigma * sigma) * places**2) if reach else np.ones(1)
    kernel /= kernel.sum()
    return kernel


def _beyond(size: int, reach: int, mode: str) -> npt.NDArray[Any]:
    """Return which of `size` positions stands at -reach, ..., size - 1 + reach."""
    position = np.arange(-reach, size + reach)
    if mode == "nearest":
        return position.clip(0, size - 1)
    position %= 2 * size
    return np.where(position < size, position, 2 * size - 1 - position)


@lru_cache(maxsize=64)
def gaussian_operator(
    size: int, sigma: float, mode: str, truncate: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return (size, size): scipy.ndimage.gaussian_filter1d of a line, its border repeated or mirrored, as a matrix."""
    kernel = _gaussian(sigma, truncate)
    reach = len(kernel) // 2
    source = np.lib.stride_tricks.sliding_window_view(_beyond(size, reach, mode), 2 * reach + 1)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], source), np.broadcast_to(kernel, source.shape))
    return torch.from_numpy(matrix).to(device, dtype)


def smooth(planes: Tensor, sigma: tuple[float, float] | float, mode: str = "nearest", truncate: float = 4.0) -> Tensor:
    """Apply scipy's Gaussian filter of one sigma, or those of rows and columns; short kernels give its very bits."""
    for dim, width in zip((-2, -1), (sigma, sigma) if isinstance(sigma, (int, float)) else sigma, strict=True):
        if not width:
            continue
        kernel, size = _gaussian(float(width), float(truncate)), planes.shape[dim]
        if _is_short(kernel, size):
            planes = _correlate(planes, kernel, mode, dim)
            continue
        matrix = gaussian_operator(size, float(width), mode, float(truncate), planes.dtype, planes.device)
        planes = torch.stack([matrix @ image if dim == -2 else image @ matrix.T for image in planes])
    return planes


def _is_short(kernel: npt.NDArray[Any], size: int) -> bool:
    return len(kernel) // 2 <= max(6, size // 32)


def _correlate(planes: Tensor, kernel: npt.NDArray[Any], mode: str, dim: int) -> Tensor:
    reach, size = len(kernel) // 2, planes.shape[dim]
    source, weights = upload(torch.from_numpy(_beyond(size, reach, mode)), planes.device), kernel.tolist()

    def filtered(part: Tensor) -> Tensor:
        padded = part.index_select(dim, source)
        total: Tensor = padded.narrow(dim, reach, size) * weights[reach]
        pair = torch.empty_like(total)
        for i in range(reach):  # from the outside in
            torch.add(padded.narrow(dim, i, size), padded.narrow(dim, 2 * reach - i, size), out=pair)
            total += pair.mul_(weights[i])
        return total

    return by_parts(filtered, planes.flatten(0, 1)).view_as(planes)


def by_parts(function: Callable[..., Tensor], *batch: Tensor, pixels: int = 1 << 16) -> Tensor:
    """Compute function(*batch) in parts of the batch that stay in a CPU's cache, elsewhere in some 400 MB."""
    images = batch[0]
    together = (pixels if images.device.type == "cpu" else 1 << 24) // (images.shape[-2] * images.shape[-1])
    parts = zip(*(torch.split(tensor, max(1, together)) for tensor in batch), strict=True)
    return torch.cat([function(*part) for part in parts])


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for what the device is doing."""
    return values.to(device, non_blocking=device.type == "cuda")


def from_bytes(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale 8-bit images to [0, 1]."""  # by a tensor, since CUDA turns a number into a product, rounded otherwise
    return images.to(dtype) / images.new_full((), 255, dtype=dtype)


def to_bytes(images: Tensor) -> Tensor:
    """Clip images to [0, 1] and truncate to uint8, as numpy does where the benchmark stores its floats."""
    return images.clamp(0, 1).mul_(255).to(torch.uint8)


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Smooth 8-bit images, and truncate; flat areas, where a last bit may cost a level, are given scipy's result."""
    smoothed = smooth(from_bytes(images, torch.float64), sigma)
    if all(_is_short(_gaussian(float(sigma), 4.0), size) for size in images.shape[-2:]):
        return to_bytes(smoothed)
    high = smoothed.mul_(255).add_(1e-9).to(torch.uint8)
    low = smoothed.sub_(2e-9).to(torch.uint8)
    if torch.equal(low, high):
        return high
    return torch.where(_short(sigma, images.device)[high.int()], low, high)


@lru_cache(maxsize=64)
def _short(sigma: float, device: torch.device) -> Tensor:
    """Return (256,) bool: whether scipy's Gaussian filter, truncated, takes a level off a flat area of this level."""
    kernel, value = _gaussian(float(sigma), 4.0), np.arange(256) / 255
    for _ in range(2):
        total = value * kernel[len(kernel) // 2]
        for weight in kernel[: len(kernel) // 2]:
            total += (value + value) * weight
        value = total
    return torch.from_numpy(np.floor(value * 255) < np.arange(256)).to(device)


def zoom_in(planes: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of (B, C, H, W) float64 to at least their size, as scipy.ndimage.zoom of order 1."""
    height, width = planes.shape[-2:]
    crop = [math.ceil(size / factor) for size in (height, width)]
    top, left = (height - crop[0]) // 2, (width - crop[1]) // 2
    sides = [round(size * factor) for size in crop]
    middle = planes[..., top : top + crop[0], left : left + crop[1]]
    enlarged = functional.interpolate(middle, size=sides, mode="bilinear", align_corners=True)
    # Where rounding takes the last coordinate past the last pixel (36, 160; not 224), that line is 0, as in scipy.
    for line, before, after in ((enlarged[..., -1, :], crop[0], sides[0]), (enlarged[..., -1], crop[1], sides[1])):
        if after > 1 and (before - 1) / (after - 1) * (after - 1) > before - 1:
            line.zero_()
    return enlarged


def trim(planes: Tensor, size: Sequence[int]) -> Tensor:
    """Drop the rows and columns that `zoom_in` made in excess, as many at the start as at the end."""
    top, left = ((now - wanted) // 2 for now, wanted in zip(planes.shape[-2:], size, strict=True))
    return planes[..., top : top + size[0], left : left + size[1]]


Q16_HALF = 1 / 514  # added before truncation: ImageMagick rounds to 16 bits (65535 = 255 * 257), then truncates to 8


@dataclass(frozen=True)
class Paths:
    """The pixels that a motion blur mixes in, for each of B images: half a Gaussian from the pixel onwards."""

    weights: npt.NDArray[Any]  # (K,), the same for all
    rows: npt.NDArray[Any]  # (B, K), places relative to the pixel, as `columns`
    columns: npt.NDArray[Any]
    lengths: npt.NDArray[Any]  # (B,), how many count

    def inside(self, shape: Sequence[int]) -> Paths:
        """Cut each path where it would be as long as the image; the weights stay, so that the rest goes dark."""
        height, width = shape[-2:]
        beyond = (np.abs(self.rows) >= height) | (np.abs(self.columns) >= width)
        first = np.where(beyond.any(1), beyond.argmax(1), beyond.shape[1])
        return replace(self, lengths=np.minimum(self.lengths, first))


def motion_paths(radius: int, sigma: float, degrees: Sequence[float]) -> Paths:
    """Return the paths of ImageMagick's motion blur, in whole pixels, one for each angle."""
    width = 2 * radius + 1
    weights = np.array([math.exp(-(i**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma) for i in range(width)])
    steps = np.arange(width)[None]
    down, across = (
        width * np.array([[function(math.radians(angle))] for angle in degrees]) for function in (math.sin, math.cos)
    )
    length = np.array([[math.hypot(*both)] for both in zip(down[:, 0], across[:, 0], strict=True)])
    rows, columns = (np.ceil(steps * way / length - 0.5).astype(np.int64) for way in (down, across))
    return Paths(weights / weights.sum(), rows, columns, np.full(len(rows), width))


def motion_blur(
    images: Tensor, paths: Paths, finish: Callable[[Tensor], Tensor] = lambda mixed: mixed, fused: bool = True
) -> Tensor:
    """Mix (B, C, H, W) along `paths`, in float64, borders repeated; `finish` (..., H, W) while they are in the cache.

    fused: whether a product may be rounded together with the sum: faster, and seen only in truncated flat areas.
    """
    if images.device.type != "cpu":
        return finish(_gathered(images, paths, fused))
    weights, each = paths.weights.tolist(), zip(images, paths.rows, paths.columns, paths.lengths.tolist(), strict=True)
    mixed = []
    for image, rows, columns, count in each:
        path = weights[:count], rows[:count].tolist(), columns[:count].tolist()
        mixed.append(finish(_slid(image.double(), *path, fused)))
    return torch.stack(mixed)


def _slid(image: Tensor, weights: list[float], rows: list[int], columns: list[int], fused: bool) -> Tensor:
    """Mix (C, H, W) along one path: the image slides, which a CPU does fastest."""
    height, width = image.shape[-2:]
    top, left = max(0, -min(rows)), max(0, -min(columns))
    reach = (left, max(0, *columns, 0), top, max(0, *rows, 0))
    padded = functional.pad(image[None], reach, mode="replicate")[0]

    def mixed(part: Tensor) -> Tensor:
        total = part.new_zeros(len(part), height, width)
        for weight, row, column in zip(weights, rows, columns, strict=True):
            term = part[:, top + row : top + row + height, left + column : left + column + width]
            total.add_(term, alpha=weight) if fused else total.add_(term * weight)
        return total

    return by_parts(mixed, padded)


def _gathered(images: Tensor, paths: Paths, fused: bool) -> Tensor:
    """Mix (B, C, H, W) along a path for each: all images at once, which an accelerator does fastest."""
    counting = np.arange(len(paths.weights)) < paths.lengths[:, None]
    tables = (paths.rows, paths.columns, counting.astype(np.float64))
    rows, columns, mask = (upload(torch.from_numpy(table), images.device) for table in tables)
    return by_parts(partial(_mixed, paths.weights.tolist(), bool(counting.all()), fused), images, rows, columns, mask)


def _mixed(
    weights: list[float], whole: bool, fused: bool, images: Tensor, rows: Tensor, columns: Tensor, mask: Tensor
) -> Tensor:
    """Mix (b, C, H, W) along paths, (b, K) each; all of a path counts if `whole`, otherwise where `mask` is 1."""
    channels, height, width = images.shape[1:]
    down, across = (torch.arange(size, device=images.device) for size in (height, width))
    lines = (rows[:, :, None] + down).clamp_(0, height - 1).mul_(width)  # (b, K, H)
    places = (columns[:, :, None] + across).clamp_(0, width - 1)  # (b, K, W)
    planes = images.double().flatten(2)
    total = torch.zeros_like(planes).view(images.shape)
    for step, weight in enumerate(weights):
        source = (lines[:, step, :, None] + places[:, step, None, :]).flatten(1)
        term = planes.gather(2, source[:, None].expand(-1, channels, -1)).view(images.shape)
        term = term if whole else term * mask[:, step, None, None, None]
        total.add_(term, alpha=weight) if fused else total.add_(term * weight)
    return total
