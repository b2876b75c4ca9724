"""Make `corruptions/ice/`: six textures of ice for `frost` where the benchmark's photographs are missing.

    python -m scripts.studies.frost.make [--photographs FOLDER] [--out FOLDER]

Each texture is drawn from a seed (`ice`), and then given what was measured on one of the six photographs: how its power
falls with frequency, the percentiles of its brightness, mean and spread of its colours. A drawing is even, where a
photograph has calm parts, and so hides more of an image at the same contrast. `contrast` takes that back; it was chosen
so that errors of two models come near those under the photographs (README.md). No pixel is taken from a photograph.
--photographs prints the same measures of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi, sin
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

Heights = npt.NDArray[np.float32]
FINE = 2  # crystals are drawn on a canvas this many times larger


def clouds(rng: np.random.Generator, shape: tuple[int, int], exponent: float, stretch: float = 1.0) -> Heights:
    """Return noise whose power falls with frequency**-exponent, mean 0 and variance 1. stretch: how much longer than
    wide its grains are, downwards.
    """
    noise = np.fft.rfft2(rng.standard_normal(shape))
    rows, columns = np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])
    frequency = np.hypot(rows * stretch, columns)
    frequency[0, 0] = 1
    noise *= frequency ** (-exponent / 2)
    noise[0, 0] = 0
    return standard(np.fft.irfft2(noise, shape))


def standard(heights: npt.NDArray[np.floating]) -> Heights:
    """Return the same with mean 0 and variance 1."""
    return np.asarray((heights - heights.mean()) / heights.std(), dtype=np.float32)


class Canvas:
    """A torus on which crystals are drawn, each over or under what is there by its brightness."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = (shape[0] * FINE, shape[1] * FINE)
        self.heights = np.zeros(self.shape, dtype=np.float32)

    def line(self, x: float, y: float, angle: float, length: float, width: int, brightness: float) -> None:
        """Draw a line from (x, y); what is brighter than it stays."""
        ends = np.array([[x, y], [x + length * cos(angle), y + length * sin(angle)]])
        layer = np.zeros_like(self.heights[: 2 * int(length) + 8, : 2 * int(length) + 8], dtype=np.uint8)
        offset = np.floor(ends.min(axis=0)) - 3
        near = tuple(tuple(round(float(value) * 16) for value in point) for point in ends - offset)
        cv2.line(layer, near[0], near[1], 255, width, cv2.LINE_AA, 4)
        rows = (np.arange(len(layer)) + int(offset[1])) % self.shape[0]
        columns = (np.arange(layer.shape[1]) + int(offset[0])) % self.shape[1]
        place = np.ix_(rows, columns)
        self.heights[place] = np.maximum(self.heights[place], layer * np.float32(brightness / 255))

    def reduced(self) -> Heights:
        """Return the heights at the size asked for."""
        size = (self.shape[1] // FINE, self.shape[0] // FINE)
        return np.asarray(cv2.resize(self.heights, size, interpolation=cv2.INTER_AREA), dtype=np.float32)


def branch(
    canvas: Canvas, rng: np.random.Generator, x: float, y: float, angle: float, length: float, brightness: float
) -> None:
    """Draw an arm with side arms at 60 degrees, which shorten towards its tip and have side arms of their own."""
    width = 1 if length < 40 else 2
    canvas.line(x, y, angle, length, width, brightness)
    if length < 9:
        return
    gap = max(5.0, length / 14)
    for place in np.arange(gap, length, gap):
        for side in (-1, 1):
            arm = (1 - place / length) * 0.42 * length * rng.uniform(0.5, 1.1) + 2
            turn = side * (pi / 3 + rng.normal(0, 0.06))
            root = (x + place * cos(angle), y + place * sin(angle))
            if arm > 12:
                branch(canvas, rng, *root, angle + turn, arm, brightness * rng.uniform(0.75, 1))
            else:
                canvas.line(*root, angle + turn, arm, 1, brightness * rng.uniform(0.6, 1))


def ferns(rng: np.random.Generator, shape: tuple[int, int], count: int, length: float, arms: int) -> Heights:
    """Return `count` dendrites of up to `arms` arms of about `length` pixels."""
    canvas = Canvas(shape)
    for _ in range(count):
        x, y = rng.uniform(0, shape[1] * FINE), rng.uniform(0, shape[0] * FINE)
        start, size = rng.uniform(0, 2 * pi), FINE * length * rng.lognormal(0, 0.35)
        fan = pi / 3 if arms > 3 else pi / 5
        for arm in range(int(rng.integers(max(1, arms - 3), arms + 1))):
            angle = start + arm * fan + rng.normal(0, 0.08)
            branch(canvas, rng, x, y, angle, size * rng.uniform(0.6, 1), rng.uniform(0.35, 1))
    return canvas.reduced()


def blades(rng: np.random.Generator, shape: tuple[int, int], count: int, length: float) -> Heights:
    """Return bundles of flat pointed crystals, bright on one edge and dark on the other."""
    heights = np.zeros((shape[0] * FINE, shape[1] * FINE), dtype=np.float32)
    for _ in range(count):
        centre = np.array([rng.uniform(0, shape[1] * FINE), rng.uniform(0, shape[0] * FINE)])
        angle, tone = rng.uniform(0, pi), rng.normal(0, 0.25)
        for _ in range(int(rng.integers(2, 7))):
            size, thin = FINE * length * rng.lognormal(0, 0.4), rng.uniform(0.04, 0.12)
            turned = angle + rng.normal(0, 0.22)
            along = np.array([cos(turned), sin(turned)]) * size / 2
            across = np.array([-sin(turned), cos(turned)]) * size * thin
            middle = centre + rng.normal(0, size / 6, 2)
            shift = rng.uniform(-0.4, 0.4) * along
            for edge, light in ((across, 0.5), (-across, -0.5)):
                corners = np.array([middle - along, middle + shift + edge, middle + along])
                cv2.fillConvexPoly(
                    heights, np.round(corners * 16).astype(np.int32), tone + light * rng.uniform(0.3, 1), cv2.LINE_8, 4
                )
    size = (shape[1], shape[0])
    return np.asarray(cv2.resize(heights, size, interpolation=cv2.INTER_AREA), dtype=np.float32)


def crumpled(rng: np.random.Generator, shape: tuple[int, int], exponent: float = 3.0) -> Heights:
    """Return creases: where warped noise crosses zero, lit from the side."""
    rows, columns = np.indices(shape).astype(np.float32)
    warp = [clouds(rng, shape, 3.2) * 18 for _ in range(2)]
    noise = clouds(rng, shape, exponent, stretch=1.4)
    warped = cv2.remap(noise, columns + warp[0], rows + warp[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    return lit(-np.abs(standard(warped)), 1.0)


def lit(heights: Heights, sigma: float, angle: float = -0.9) -> Heights:
    """Return how bright a surface is in light from the side."""
    smooth = cv2.GaussianBlur(heights, (0, 0), sigma)
    slope = np.gradient(smooth)
    return standard(slope[1] * cos(angle) + slope[0] * sin(angle))


OUT = Path(__file__).parents[3] / "corruptions" / "ice"
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
