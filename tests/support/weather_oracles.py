"""Slow replicas of weather and noise, one pixel at a time, and what the tests of all corruptions ask for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from corruptions.base import Corruption, Draws
from robustkit.common.determinism import SampleRng


def photographs(batch: int, height: int, width: int, seed: int = 0) -> Tensor:
    """(B, 3, H, W) uint8 with what makes truncation hard: flat areas, black, white, gradients and noise."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (batch, 3, height, width))
    images[:, :, : height // 2] = np.linspace(10, 230, width)
    images[:, :, :4, :5], images[:, :, :4, 5:9], images[:, :, :4, 9:12] = 0, 255, 77
    return torch.from_numpy(images.astype(np.uint8))


def rng(ids: Sequence[str], severity: int) -> SampleRng:
    return SampleRng.of(ids, seed=0, condition=f"severity {severity}", device="cpu")


def assert_each_image_stands_alone(corruption: Corruption, height: int = 17, width: int = 40) -> None:
    """The same bytes in batches of 5, 2 and 1, the inputs untouched, and something done to them."""
    images, ids = photographs(5, height, width), list("abcde")
    for severity in (1, 4, 5):
        draws = corruption.draw((3, height, width), severity, rng(ids, severity))
        before = images.clone(), {name: number.clone() for name, number in draws.numbers.items()}
        whole = corruption.apply(images, draws)
        assert whole.dtype == torch.uint8 and whole.shape == images.shape
        assert torch.equal(images, before[0])
        assert all(torch.equal(draws[name], number) for name, number in before[1].items())
        assert any(not torch.equal(image, result) for image, result in zip(images, whole, strict=True))
        for start, size in ((0, 2), (2, 2), (4, 1), (1, 1)):
            part = slice(start, start + size)
            drawn = corruption.draw((3, height, width), severity, rng(ids[part], severity))
            assert torch.equal(corruption.apply(images[part], drawn), whole[part]), (corruption.name, severity, part)


def byte(value: float) -> int:
    """A level of [0, 1] as the reference stores it: cut off, not rounded."""
    return int(min(max(value, 0.0), 1.0) * 255)


def pixels(*arrays: Tensor) -> Iterator[tuple[tuple[int, ...], list[float]]]:
    """Index and values of the arrays, one element after the other, as Python numbers."""
    for index in np.ndindex(*arrays[0].shape):
        yield index, [array[index].item() for array in arrays]


def diamond_square(numbers: Sequence[float], size: int, decay: float) -> list[list[float]]:
    """The height map of fog, one point at a time."""
    heights, numbers = [[0.0] * size for _ in range(size)], list(numbers)
    step, roughness = size, 100.0
    while step > 1:
        half, starts = step // 2, range(0, size, step)
        old = [row[:] for row in heights]

        def at(y: int, x: int, of: list[list[float]]) -> float:
            return of[y % size][x % size]

        def offset(roughness: float = roughness) -> float:
            return roughness * (-roughness + 2 * roughness * numbers.pop(0))

        for y in starts:  # the middle of four corners
            for x in starts:
                left = at(y, x, old) + at(y + step, x, old)
                right = at(y, x + step, old) + at(y + step, x + step, old)
                heights[y + half][x + half] = (left + right) / 4 + offset()
        for y in starts:  # between two corners of a row; above and below are middles
            for x in starts:
                middles = at(y + half, x + half, heights) + at(y - half, x + half, heights)
                corners = at(y, x, old) + at(y, x + step, old)
                heights[y][x + half] = (middles + corners) / 4 + offset()
        for y in starts:  # between two corners of a column
            for x in starts:
                middles = at(y + half, x + half, heights) + at(y + half, x - half, heights)
                corners = at(y, x, old) + at(y + step, x, old)
                heights[y + half][x] = (middles + corners) / 4 + offset()
        step, roughness = half, roughness / decay
    assert not numbers
    low = min(min(row) for row in heights)
    high = max(max(row) for row in heights) - low
    return [[(value - low) / high for value in row] for row in heights]


def spatter(corruption: Corruption, image: Tensor, draws: Draws) -> list[list[list[int]]]:
    """One image (3, H, W) spattered, pixel by pixel; the relief of water by OpenCV."""
    mean, deviation, sigma, threshold, strength, mud = corruption.constants(draws.severity)
    layer = gaussian_filter(draws["normal"][0].double().numpy() * deviation + mean, sigma, mode="nearest")
    layer = np.where(layer < threshold, 0, layer)
    if mud:
        stain = gaussian_filter((layer > threshold).astype(np.float32), strength, mode="nearest")
        cover = np.where(stain < np.float32(0.8), np.float32(0), stain)
        wide = np.float32 if corruption.variant == "hendrycks" else np.float64
        light = [wide(level / 255) for level in (63, 42, 20)]
    else:
        levels = ((layer * 255).astype(int) % 256).astype(np.uint8)
        edges = cv2.Canny(levels, 50, 150)
        near = np.minimum(cv2.distanceTransform(np.where(edges > 0, 0, 255).astype(np.uint8), cv2.DIST_L2, 5), 20)
        relief = cv2.equalizeHist(cv2.blur(near, (3, 3)).astype(np.uint8))
        lit = cv2.filter2D(relief, cv2.CV_8U, np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]))
        shine = levels * cv2.blur(lit, (3, 3)).astype(np.float32)
        cover = shine / shine.max() * np.float32(strength) if shine.any() else shine
        light = [np.float32(level / 255) for level in (175, 238, 238)]
    out = image.tolist()
    for (channel, y, x), (level,) in pixels(image):
        own = np.float32(level) / np.float32(255)
        value = own * (np.float32(1) - cover[y, x]) if mud else own
        value = value + light[channel] * cover[y, x]
        out[channel][y][x] = int(min(max(value, 0), 1) * type(value)(255))
    return out


def write_frost(folder: Path, sizes: Sequence[tuple[int, int]] = ((70, 90),) * 6) -> Path:
    """Six synthetic photographs of ice; the JPEGs are decoded by OpenCV as those of the package are."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    names = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
    for name, (height, width) in zip(names, sizes, strict=True):
        cv2.imwrite(str(folder / name), generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
    return folder
