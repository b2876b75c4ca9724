"""Make `corruptions/ice/`: six textures of ice for `frost` where the benchmark's photographs are missing.

    python -m scripts.frost.make [--photographs FOLDER] [--out FOLDER]

Each texture is drawn from a seed (`ice`), and then given what was measured on one of the six photographs: how its power
falls with frequency, the percentiles of its brightness, mean and spread of its colours. A drawing is even, where a
photograph has calm parts, and so hides more of an image at the same contrast. `contrast` takes that back; it was chosen
so that errors of two models come near those under the photographs (docs/results/frost.md). No pixel is taken from a
photograph.
--photographs prints the same measures of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from .ice import Heights, blades, clouds, crumpled, ferns, lit, standard

OUT = Path(__file__).parents[2] / "corruptions" / "ice"
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
LEVELS = 64  # of brightness: half the bytes of 256, and not to be seen under an image
EDGES = np.geomspace(1 / 112, 0.5, 8)  # of the bands of frequency, in cycles per pixel
RANKS = (0, 1, 10, 25, 50, 75, 90, 99, 100)
Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Measures:
    """What a photograph is like. red, green, blue: mean and standard deviation. brightness: its percentiles at RANKS.
    power: decimal logarithm of the power in each band of frequency, above the first one's.
    """

    red: tuple[float, float]
    green: tuple[float, float]
    blue: tuple[float, float]
    brightness: tuple[float, ...]
    power: tuple[float, ...]


@dataclass(frozen=True)
class Texture:
    """A drawing of its own shape, and the measures that it is given."""

    shape: tuple[int, int]
    draw: Callable[[np.random.Generator, tuple[int, int]], Heights]
    like: Measures
    contrast: float = 1.0


def measure(pixels: npt.NDArray[np.uint8]) -> Measures:
    """Return the measures of an image, (H, W, 3) uint8, RGB."""
    values = pixels.reshape(-1, 3).astype(float)
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(float)
    red, green, blue = zip(values.mean(0).round(1).tolist(), values.std(0).round(1).tolist(), strict=True)
    brightness = tuple(np.percentile(grey, RANKS).round(1).tolist())
    return Measures(red, green, blue, brightness, tuple(power(grey).round(2).tolist()))


def power(grey: Floats, side: int = 224, parts: int = 24) -> Floats:
    """Return the decimal logarithm of the power per band of windowed parts, above the first band's."""
    rng = np.random.default_rng(0)
    window = np.hanning(side)[:, None] * np.hanning(side)
    bands = np.digitize(np.hypot(*np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side))), EDGES)
    total = np.zeros(len(EDGES) - 1)
    for _ in range(parts):
        top, left = (int(rng.integers(0, length - side + 1)) for length in grey.shape)
        part = grey[top : top + side, left : left + side]
        spectrum = np.abs(np.fft.fft2((part - part.mean()) * window)) ** 2
        total += [spectrum[bands == band].mean() for band in range(1, len(EDGES))]
    return np.log10(total / total[0])


def shaped(heights: Heights, like: Measures, rounds: int = 6) -> Floats:
    """Return brightness (H, W) with the power and the percentiles of `like`, in turns: each disturbs the other."""
    rows, columns = np.fft.fftfreq(heights.shape[0])[:, None], np.fft.rfftfreq(heights.shape[1])
    frequency = np.log(np.clip(np.hypot(rows, columns), EDGES[0], 0.5))
    middles = np.log(np.sqrt(EDGES[1:] * EDGES[:-1]))
    values: Floats = ranked(heights, like)
    for _ in range(rounds):
        gain = (np.array(like.power) - power(values)) / 2
        spectrum = np.fft.rfft2(values) * 10 ** np.interp(frequency, middles, gain)
        values = ranked(np.fft.irfft2(spectrum, heights.shape), like)
    return values


def ranked(heights: Floats, like: Measures) -> Floats:
    """Return the heights as values of brightness that have these percentiles."""
    return np.interp(heights, np.percentile(heights, RANKS), like.brightness)


def texture(number: int) -> Image.Image:
    """Return a texture as an image with a palette: a tone of its colour for each level of brightness."""
    made = TEXTURES[number]
    values = shaped(standard(made.draw(np.random.default_rng([2019, number]), made.shape)), made.like)
    low, high = values.min(), values.max()
    levels = np.round((values - low) / (high - low) * (LEVELS - 1)).astype(np.uint8)
    tones = (np.linspace(low, high, LEVELS) - values.mean()) / values.std()
    colours = [
        np.clip(np.round(mean + made.contrast * spread * tones), 0, 255)
        for mean, spread in (made.like.red, made.like.green, made.like.blue)
    ]
    image = Image.fromarray(levels, "P")
    image.putpalette(np.stack(colours, axis=1).astype(np.uint8).tobytes())
    return image


def _sheet(rng: np.random.Generator, shape: tuple[int, int]) -> Heights:
    return clouds(rng, shape, 3.4) + 0.7 * crumpled(rng, shape, 2.8) + 0.15 * clouds(rng, shape, 1.5)


def _blades(rng: np.random.Generator, shape: tuple[int, int]) -> Heights:
    return standard(blades(rng, shape, 420, 46)) + 0.5 * crumpled(rng, shape) + 0.6 * clouds(rng, shape, 2.6)


def _grains(rng: np.random.Generator, shape: tuple[int, int]) -> Heights:
    crystals = ferns(rng, shape, 110, 16, 6) * np.clip(0.4 + clouds(rng, shape, 3.4), 0, 2)
    drops = lit(clouds(rng, shape, 1.9, stretch=0.55), 0.8)
    return 0.5 * standard(crystals) + 0.5 * lit(crystals, 0.8) + 0.8 * drops + 0.5 * clouds(rng, shape, 3.2)


def _stars(rng: np.random.Generator, shape: tuple[int, int]) -> Heights:
    crystals = ferns(rng, shape, 620, 24, 5)
    return 1.3 * standard(crystals) + 0.6 * lit(crystals, 0.8) + 0.7 * clouds(rng, shape, 3.4)


def _feathers(rng: np.random.Generator, shape: tuple[int, int]) -> Heights:
    crystals = ferns(rng, shape, 46, 105, 3)
    return 1.1 * standard(crystals) + 0.5 * lit(crystals, 0.9) + 0.9 * clouds(rng, shape, 3.2)


_WHITE = Measures(
    (200.8, 21.4),
    (205.4, 22.1),
    (214.5, 22.6),
    (56, 140, 176, 193, 208, 220, 230, 244, 254),
    (0, -0.4, -0.74, -1.06, -1.6, -2.0, -2.64),
)
TEXTURES = (
    Texture(
        (480, 720),
        _sheet,
        Measures(
            (77.7, 26.9),
            (149.1, 16.5),
            (165.7, 15.3),
            (81, 95, 107, 116, 128, 141, 155, 177, 220),
            (0, -0.79, -1.55, -2.02, -2.24, -2.42, -2.91),
        ),
    ),
    Texture((320, 560), _blades, _WHITE, 0.76),
    Texture((320, 560), _blades, _WHITE, 0.76),  # the benchmark's second and third photograph are the same
    Texture(
        (352, 528),
        _grains,
        Measures(
            (137.6, 28.5),
            (152.8, 28.5),
            (165.2, 29.9),
            (22, 81, 114, 132, 150, 167, 183, 231, 254),
            (0, -0.29, -0.54, -0.87, -1.14, -1.49, -2.05),
        ),
        0.85,
    ),
    Texture(
        (480, 640),
        _stars,
        Measures(
            (112.4, 44.4),
            (123.4, 43.3),
            (134.8, 41.7),
            (23, 43, 68, 89, 117, 149, 181, 237, 255),
            (0, -0.28, -0.76, -1.26, -1.72, -2.2, -2.66),
        ),
        0.75,
    ),
    Texture(
        (320, 480),
        _feathers,
        Measures(
            (71.4, 35.2),
            (95.4, 42.7),
            (104.5, 47.4),
            (1, 17, 37, 56, 87, 119, 145, 185, 252),
            (0, -0.96, -1.43, -1.88, -2.32, -2.72, -3.35),
        ),
        0.8,
    ),
)
"""Measured with --photographs on those of imagecorruptions 1.1.2."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=Path, help="folder of the six photographs, to compare with")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(PHOTOGRAPHS):
        if options.photographs:
            with Image.open(options.photographs / name) as photograph:
                print(f"photograph {number + 1}: {measure(np.asarray(photograph.convert('RGB')))}")
        if number < len(TEXTURES):
            made = texture(number)
            made.save(options.out / f"ice{number + 1}.png", optimize=True)
            print(f"texture    {number + 1}: {measure(np.asarray(made.convert('RGB')))}")


if __name__ == "__main__":
    main()
