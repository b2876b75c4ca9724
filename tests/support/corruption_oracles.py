"""Slow replicas of blurs, snow and elastic transform: one (H, W, 3) image and one pixel at a time, or by scipy, OpenCV
and scikit-image. Random numbers are the raw ones of `Draws`, in float64."""

from __future__ import annotations

import math

import cv2
import numpy as np
from scipy.ndimage import map_coordinates, zoom
from skimage.filters import gaussian

Array = np.ndarray


def truncated(image: Array) -> Array:
    """An image in [0, 1] as the benchmark stores it."""
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def gaussian_blur(image: Array, sigma: float) -> Array:
    return truncated(gaussian(image / 255, sigma=sigma, channel_axis=-1))


def defocus_blur(image: Array, radius: float, sigma: float) -> Array:
    half, width = (8, 3) if radius <= 8 else (radius, 5)
    line = np.arange(-half, half + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (width, width), sigmaX=sigma)
    return truncated(cv2.filter2D(image / 255, -1, kernel))


def glass_blur(image: Array, offsets: Array, sigma: float, reach: int) -> Array:
    """Walk over the pixels, from the bottom right to the top left, one after the other."""
    shown = gaussian_blur(image, sigma)
    height, width = shown.shape[:2]
    for one_pass in offsets:
        for row, line in zip(range(height - reach, reach, -1), one_pass, strict=True):
            for column, (u, v) in zip(range(width - reach, reach, -1), line, strict=True):
                across, down = math.floor(2 * reach * u) - reach, math.floor(2 * reach * v) - reach
                shown[row, column] = shown[row + down, column + across]
    return gaussian_blur(shown, sigma)


def along_line(plane: Array, radius: int, sigma: float, degrees: float, stops: bool) -> Array:
    """Motion blur of a plane (H, W), pixel by pixel; `stops`: where the line is as long as the plane."""
    height, width = plane.shape
    count = 2 * radius + 1
    weights = np.array([math.exp(-(i**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma) for i in range(count)])
    weights /= weights.sum()
    blurred = np.zeros(plane.shape)
    for i, weight in enumerate(weights):
        down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        across = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        if stops and (abs(down) >= height or abs(across) >= width):
            break
        for row, column in np.ndindex(height, width):
            at = min(max(row + down, 0), height - 1), min(max(column + across, 0), width - 1)
            blurred[row, column] += weight * plane[at]
    return blurred


def sixteen_bits(levels: Array) -> Array:
    """Levels as ImageMagick stores them: rounded to 16 bits, of which the upper 8 are kept."""
    return (np.floor(levels * 257 + 0.5) // 257).astype(np.uint8)


def enlarged(image: Array, factor: float) -> Array:
    """The middle of a square or oblong image, enlarged by scipy to at least its size."""
    crop = [math.ceil(size / factor) for size in image.shape[:2]]
    top, left = ((size - part) // 2 for size, part in zip(image.shape[:2], crop, strict=True))
    return zoom(image[top : top + crop[0], left : left + crop[1]], (factor, factor, 1), order=1)


def middle(image: Array, size: tuple[int, ...]) -> Array:
    top, left = ((now - wanted) // 2 for now, wanted in zip(image.shape[:2], size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


def zoom_blur(image: Array, end: float, step: float) -> Array:
    plain = (image / 255).astype(np.float32)
    layers = [middle(enlarged(plain, factor), plain.shape[:2]) for factor in np.arange(1, end, step)]
    total = np.zeros_like(plain)
    for layer in layers:
        total += layer
    return truncated((plain + total) / np.float32(len(layers) + 1))


def snow(image: Array, normal: Array, u: float, constants: tuple[float, ...], variant: str) -> Array:
    mean, deviation, factor, threshold, radius, sigma, kept = constants
    size, degrees = image.shape[:2], -135 + 90 * u
    layer = enlarged((normal * deviation + mean)[..., None], factor)
    layer[layer < threshold] = 0
    layer = np.clip(layer, 0, 1)
    if variant == "hendrycks":
        flakes = np.floor(middle(layer, size)[..., 0] * 255)
        flakes = sixteen_bits(along_line(flakes, int(radius), sigma, degrees, stops=False))
    else:
        flakes = np.round(along_line(layer[..., 0], int(radius), sigma, degrees, stops=True) * 255).astype(np.uint8)
        flakes = flakes[: size[0], : size[1]]
    flakes = flakes[..., None] / 255
    plain = image.astype(np.float32) / np.float32(255)
    grey = cv2.cvtColor(plain, cv2.COLOR_RGB2GRAY)[..., None]
    pale = np.float32(kept) * plain + np.float32(1 - kept) * np.maximum(plain, grey * np.float32(1.5) + np.float32(0.5))
    return truncated(pale + flakes + flakes[::-1, ::-1])


def fixed_point_warp(image: Array, matrix: Array) -> Array:
    """An image (float32) moved by an affine map: cv2.warpAffine, bilinear, BORDER_REFLECT_101, pixel by pixel."""
    inverse = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    height, width = image.shape[:2]
    moved = np.empty_like(image)
    for row, column in np.ndindex(height, width):
        x, y = (
            (int(np.rint((line[1] * row + line[2]) * 1024)) + 16 + int(np.rint(line[0] * column * 1024))) // 32
            for line in inverse[:2]
        )
        total = np.zeros(3, np.float32)
        for at_row, down in ((y // 32, 32 - y % 32), (y // 32 + 1, y % 32)):
            for at_column, across in ((x // 32, 32 - x % 32), (x // 32 + 1, x % 32)):
                source = image[bounced(at_row, height), bounced(at_column, width)]
                total += source * np.float32(down * across / 1024)
        moved[row, column] = total
    return moved


def bounced(index: int, size: int) -> int:
    while not 0 <= index < size:
        index = -index if index < 0 else 2 * size - 2 - index
    return index


def elastic_transform(image: Array, numbers: dict[str, Array], constants: tuple[float, ...], variant: str) -> Array:
    plain = image.astype(np.float32) / np.float32(255)
    height, width = plain.shape[:2]
    strength, sigma, *shift = constants
    spread, width_of = 1.0, sigma
    if variant == "hendrycks":
        row, column, half = height // 2, width // 2, min(height, width) // 3
        before = np.array([[row + half, column + half], [row + half, column - half], [row - half, column - half]])
        after = before.astype(np.float32) + ((2 * numbers["affine"] - 1) * shift[0]).astype(np.float32)
        plain = fixed_point_warp(plain, cv2.getAffineTransform(before.astype(np.float32), after))
    else:
        spread, width_of = height * 0.005, (height * 0.01, width * 0.01)
    dx, dy = (
        (gaussian((2 * numbers[name] - 1) * spread, width_of, mode="reflect", truncate=3) * strength).astype(np.float32)
        for name in ("dx", "dy")
    )
    rows, columns = np.arange(height)[:, None] + dy, np.arange(width) + dx
    planes = [map_coordinates(plane, (rows, columns), order=1, mode="reflect") for plane in np.moveaxis(plain, -1, 0)]
    return truncated(np.stack(planes, -1))
