"""Draw ice: dendrites, blades, grains and crumpled sheets, as heights (H, W) in float32 of no particular scale.

All are functions of a generator. Crystals wrap around the edges, so that a texture has no seam.
"""

from __future__ import annotations

from math import cos, pi, sin

import cv2
import numpy as np
import numpy.typing as npt

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
