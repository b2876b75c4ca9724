"""Ten coloured, textured shapes on crops of photographs: a labelled data set in one file, made on demand.

The outline always shows the class. The colour usually does: 18 of 20 samples wear their class's own colour, the others
any colour, so colour is a shortcut that is mostly right, and a model that leans on it can be found out. Position, size,
rotation, stretch, texture and background are drawn independently of the class; mask and box are known exactly.

Sample `index` of a split depends on nothing but (seed, split, index), and its bytes are meant never to change: every
draw is a hash, and pixels come from integers and from single IEEE operations on floats (no library's random stream,
no transcendental function whose last bit differs among machines). The photographs are those inside scikit-image.

A pair is one image with two shapes of different classes, which do not touch, on one photograph. A changed image is
a sample of the test split of which the colour alone, the shape alone or the background alone is another's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .images import read_image

CLASSES = ("arrow", "crescent", "cross", "disc", "heart", "hexagon", "ring", "square", "star", "triangle")
SIZES = {"train": 10_000, "test": 1_000}
SIDE = 64  # pixels
PHOTOGRAPHS = ("astronaut", "brick", "chelsea", "coffee", "grass", "gravel", "motorcycle_left")

OWN = {  # The usual colour of each class, red, green, blue; each channel is shifted by up to 20
    "arrow": (225, 45, 45),
    "crescent": (60, 205, 225),
    "cross": (235, 235, 235),
    "disc": (45, 90, 225),
    "heart": (235, 110, 190),
    "hexagon": (235, 140, 35),
    "ring": (145, 60, 210),
    "square": (40, 170, 70),
    "star": (230, 225, 60),
    "triangle": (25, 25, 25),
}

_FINE = 4  # sample points per pixel and axis, for smooth edges
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """One sample: (64, 64, 3) uint8; mask of 0 and 1; box (x0, y0, x1, y1), ends exclusive; index of CLASSES."""

    pixels: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.uint8]
    box: tuple[int, int, int, int]
    label: int


def class_of(index: int) -> int:
    """Return the class of sample `index`: classes take turns, so every run of ten samples holds each once."""
    return index % len(CLASSES)


def render(split: str, index: int, seed: int = 0) -> Shape:
    """Make one sample. Raises DataError for an unknown split or a negative index."""
    if split not in SIZES or index < 0:
        raise DataError(f"embedded shapes have no sample {split}/{index}; splits are {', '.join(SIZES)}")
    draw = draws_of(split, index, seed)
    name, canvas = CLASSES[class_of(index)], ground_of(draw)
    mask = paint(canvas, draw, name, colours_of(draw, name, canvas))
    return finish_sample(canvas, mask, class_of(index))


def draws_of(split: str, index: int, seed: int = 0) -> ShapeDraws:
    return ShapeDraws(f"robustkit shapes 2/{seed}/{split}/{index}")


def paint(canvas: Floats, draw: ShapeDraws, name: str, colours: tuple[Floats, Floats]) -> npt.NDArray[np.uint8]:
    """Paint a shape of class `name` onto a picture (64, 64, 3), and return its mask (64, 64)."""
    window, inside, u, v = _outline(draw, name)
    coverage = _pixel_sums(inside)
    first, second = colours
    weight = _pixel_sums(np.where(inside, _texture(draw, u, v), 0.0)) / np.maximum(coverage, 1)
    colour = first + (second - first) * weight[..., None]
    alpha = coverage[..., None] / (_FINE * _FINE)
    canvas[window] += (colour - canvas[window]) * alpha
    return _mask(window, coverage)


def shape_mask(draw: ShapeDraws, name: str) -> npt.NDArray[np.uint8]:
    window, inside, _, _ = _outline(draw, name)
    return _mask(window, _pixel_sums(inside))


def finish_sample(canvas: Floats, mask: npt.NDArray[np.uint8], label: int) -> Shape:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    return Shape(np.floor(canvas + 0.5).astype(np.uint8), mask, box, label)


def _mask(window: tuple[slice, slice], coverage: Floats) -> npt.NDArray[np.uint8]:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[window] = coverage * 2 >= _FINE * _FINE
    return mask


@lru_cache(maxsize=256)
def cached_render(split: str, index: int) -> Shape:
    """Return `render`'s sample, made once for image, mask and box of several checkpoints; its arrays are read-only."""
    shape = render(split, index)
    for array in (shape.pixels, shape.mask):
        array.flags.writeable = False
    return shape


class ShapeDraws:
    """Integers that are a pure function of (key, purpose)."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __call__(self, purpose: str, low: int, high: int) -> int:
        digest = hashlib.blake2b(f"{self.key}/{purpose}".encode(), digest_size=8).digest()
        return low + int.from_bytes(digest, "big") % (high - low + 1)


@lru_cache(maxsize=len(PHOTOGRAPHS))
def photograph(name: str) -> npt.NDArray[np.uint8]:
    """Return a photograph of the scikit-image wheel, (H, W, 3) uint8, without importing scikit-image."""
    spec = importlib.util.find_spec("skimage")
    places = (spec.submodule_search_locations or []) if spec else []
    try:
        data = Path(places[0], "data", f"{name}.png").read_bytes()
    except (IndexError, OSError):
        raise DataError(f"scikit-image's photograph {name}.png is not installed; install scikit-image>=0.22") from None
    return np.asarray(read_image(data, name))


def ground_of(draw: ShapeDraws) -> Floats:
    photo = photograph(PHOTOGRAPHS[draw("photo", 0, len(PHOTOGRAPHS) - 1)])
    shrink = draw("shrink", 1, 4)
    side = SIDE * shrink
    top = draw("top", 0, photo.shape[0] - side)
    left = draw("left", 0, photo.shape[1] - side)
    crop = photo[top : top + side, left : left + side].astype(np.int64)
    mean = crop.reshape(SIDE, shrink, SIDE, shrink, 3).sum(axis=(1, 3)) // (shrink * shrink)
    flipped = mean[:, ::-1] if draw("flip", 0, 1) else mean
    middle = flipped.sum(axis=(0, 1)) // (SIDE * SIDE)
    softened: Floats = (middle + (flipped - middle) * 3 // 4).astype(np.float64)  # so that shapes stand out
    return softened


def shape_place(draw: ShapeDraws) -> tuple[float, int, float, float]:
    """Return a shape's radius, how far it may reach from its centre, and the centre's x and y, in pixels."""
    radius = draw("radius", 48, 96) / 4  # 12 to 24 pixels
    reach = math.ceil(radius * 1.18) + 1  # so that the whole shape is in the picture
    x, y = (draw(axis, 4 * reach, 4 * (SIDE - reach) - 4) / 4 for axis in "xy")
    return radius, reach, x, y


def _outline(draw: ShapeDraws, name: str) -> tuple[tuple[slice, slice], Bools, Floats, Floats]:
    """Return a window of the picture, which of its fine points are inside, and where those are in the shape's frame."""
    stretch = draw("stretch", 85, 118) / 100
    radius, reach, x0, y0 = shape_place(draw)
    angle = math.radians(draw("angle", -30, 30))
    cos, sin = round(math.cos(angle), 6), round(math.sin(angle), 6)
    window = (slice(int(y0) - reach, int(y0) + reach + 1), slice(int(x0) - reach, int(x0) + reach + 1))
    points = (np.arange((2 * reach + 1) * _FINE) + 0.5) / _FINE
    x, y = points[None, :] + (int(x0) - reach - x0), points[:, None] + (int(y0) - reach - y0)
    u = (x * cos + y * sin) / (radius * stretch)
    v = (y * cos - x * sin) * stretch / radius
    return window, _INSIDE[name](u, v), u * radius, v * radius


def wears_its_own(draw: ShapeDraws) -> bool:
    """Whether a shape has the colour of its class."""
    return draw("usual", 1, 20) <= 18


def colours_of(draw: ShapeDraws, name: str, background: Floats) -> tuple[Floats, Floats]:
    """Return two related colours: the first usually near the class's own, else the farthest from the ground of four."""
    if wears_its_own(draw):
        first = np.array([OWN[name][c] + draw(f"shift {c}", -20, 20) for c in range(3)], np.float64)
    else:
        mean = background.sum(axis=(0, 1)) // (SIDE * SIDE)
        drawn = [np.array([draw(f"colour {i}{c}", 0, 255) for c in "rgb"], np.float64) for i in range(4)]
        first = max(drawn, key=lambda colour: float(np.abs(colour - mean).sum()))
    step = draw("contrast", 20, 60)
    return first, np.where(first < 128, first + step, first - step)


def _texture(draw: ShapeDraws, u: Floats, v: Floats) -> Floats:
    """Return each fine point's share of the second colour, in eighths, so that sums are exact."""
    period = draw("period", 4, 9)
    kind = draw("texture", 0, 5)
    a: Floats = np.floor(u * 2 / period)
    b: Floats = np.floor(v * 2 / period)
    if kind == 0:
        return np.zeros_like(u)
    if kind == 1:  # stripes
        return a % 2
    if kind == 2:  # checks
        return (a + b) % 2
    if kind == 3:  # dots
        du, dv = u / period - np.floor(u / period) - 0.5, v / period - np.floor(v / period) - 0.5
        return np.asarray(du * du + dv * dv <= 0.1, np.float64)
    if kind == 4:  # a gradient across the shape
        return np.clip(np.floor(u / 5 + 4), 0, 8) / 8
    bits = hashlib.shake_256(f"{draw.key}/patches".encode()).digest(64 * 64)  # random patches
    grid = np.frombuffer(bits, np.uint8).reshape(64, 64) % 9 / 8
    patches: Floats = grid[a.astype(np.int64) % 64, b.astype(np.int64) % 64]
    return patches


def _pixel_sums(fine: npt.NDArray[np.generic]) -> Floats:
    side = len(fine) // _FINE
    sums: Floats = fine.astype(np.float64).reshape(side, _FINE, side, _FINE).sum(axis=(1, 3))
    return sums


def _polygon(*corners: tuple[float, float]) -> Callable[[Floats, Floats], Bools]:
    """Apply the even-odd rule, multiplied out so that nothing is divided."""

    def inside(u: Floats, v: Floats) -> Bools:
        result = np.zeros(u.shape, bool)
        for (x1, y1), (x2, y2) in zip(corners, corners[1:] + corners[:1], strict=True):
            side = (x2 - x1) * (v - y1) - (u - x1) * (y2 - y1)
            result ^= ((y1 > v) != (y2 > v)) & ((side > 0) == (y2 > y1))
        return result

    return inside


def _regular(*radii: float, corners: int) -> tuple[tuple[float, float], ...]:
    """Return corners at equal angles from the top, whose radii alternate."""
    turn = [(radii[i % len(radii)], 2 * math.pi * i / corners) for i in range(corners)]
    return tuple((round(r * math.sin(t), 6), round(-r * math.cos(t), 6)) for r, t in turn)


def _heart(u: Floats, v: Floats) -> Bools:
    side, low = 0.8, 0.88
    x = abs(u)
    square = x + abs(v - (low - side)) <= side
    dx, dy = x - side / 2, v - (low - 1.5 * side)
    return square | (dx * dx + dy * dy <= side * side / 2)


_INSIDE: dict[str, Callable[[Floats, Floats], Bools]] = {
    "arrow": _polygon((0, -1), (0.75, -0.1), (0.27, -0.1), (0.27, 0.95), (-0.27, 0.95), (-0.27, -0.1), (-0.75, -0.1)),
    "crescent": lambda u, v: (u * u + v * v <= 1) & ((u - 0.5) * (u - 0.5) + v * v > 0.64),
    "cross": lambda u, v: (np.maximum(abs(u), abs(v)) <= 0.95) & (np.minimum(abs(u), abs(v)) <= 0.3),
    "disc": lambda u, v: u * u + v * v <= 1,
    "heart": _heart,
    "hexagon": _polygon(*_regular(1.0, corners=6)),
    "ring": lambda u, v: (u * u + v * v <= 1) & (u * u + v * v > 0.3),
    "square": _polygon((0.8, 0.8), (-0.8, 0.8), (-0.8, -0.8), (0.8, -0.8)),
    "star": _polygon(*_regular(1.0, 0.42, corners=10)),
    "triangle": _polygon(*_regular(1.0, corners=3)),
}


CHANGES = ("colour", "shape", "background")
PAIRS = 10 * len(CLASSES) * (len(CLASSES) - 1)  # The number of pairs: ten of each first and second class
_SPLIT = "test"
_TRIES = 10_000


@dataclass(frozen=True)
class Changed:
    """A changed sample. other: the class whose colour or outline was put in; -1 where it is a background."""

    shape: Shape
    other: int


@dataclass(frozen=True)
class ShapePair:
    """Two shapes in one image. pixels: (64, 64, 3) uint8. masks: of the first and the second, (2, 64, 64) uint8."""

    pixels: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.uint8]
    labels: tuple[int, int]


def pair_labels(index: int) -> tuple[int, int]:
    """Return the classes of a pair; every 90 pairs hold each first and second class once."""
    K = len(CLASSES)
    first = index % K
    return first, (first + 1 + index // K % (K - 1)) % K


@lru_cache(maxsize=256)
def rendered_pair(index: int) -> ShapePair:
    """Make a pair of two test samples' shapes, drawn until they do not touch, on the first one's photograph."""
    if not 0 <= index < PAIRS:
        raise DataError(f"embedded pairs of shapes have no sample {index}; expected 0 to {PAIRS - 1}")
    draw, labels = ShapeDraws(f"robustkit shape pairs 1/{index}"), pair_labels(index)
    names = [CLASSES[place] for place in labels]
    each = SIZES[_SPLIT] // len(CLASSES)
    for attempt in range(_TRIES):
        turns = [draw(f"{which} {attempt}", 0, each - 1) for which in ("first", "second")]
        drawn = [draws_of(_SPLIT, len(CLASSES) * k + place) for k, place in zip(turns, labels, strict=True)]
        (radius, _, x, y), (other, _, right, down) = map(shape_place, drawn)
        if (x - right) ** 2 + (y - down) ** 2 < (0.8 * (radius + other)) ** 2:  # so near that they surely touch
            continue
        masks = np.stack([shape_mask(one, name) for one, name in zip(drawn, names, strict=True)])
        if not (_grown(masks[0]) & masks[1]).any():
            break
    else:
        raise DataError(f"embedded pairs of shapes: none of {_TRIES} draws of pair {index} fits")
    canvas = ground_of(drawn[0])
    colours = [colours_of(one, name, canvas) for one, name in zip(drawn, names, strict=True)]
    for one, name, colour in zip(drawn, names, colours, strict=True):
        paint(canvas, one, name, colour)
    return ShapePair(np.floor(canvas + 0.5).astype(np.uint8), masks, labels)


def _grown(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    grown = mask.copy()
    for axis in (0, 1):
        grown |= np.maximum.reduce([np.roll(grown, step, axis) for step in (-2, -1, 1, 2)])
    return grown


def changeable_samples() -> tuple[int, ...]:
    """Return the test samples whose shapes wear the colour of their class: those that can be changed."""
    return tuple(index for index in range(SIZES[_SPLIT]) if wears_its_own(draws_of(_SPLIT, index)))


def other_label(index: int) -> int:
    return (class_of(index) + 1 + draws_of(_SPLIT, index)("other class", 0, len(CLASSES) - 2)) % len(CLASSES)


@lru_cache(maxsize=256)
def change_sample(index: int, change: str) -> Changed:
    """Return a test sample with one thing changed, and all else the same to the bit where it is not painted over.
    colour, shape: those of `other_label`'s class, all else of it kept; a shape is the new label. background: another
    photograph.
    """
    if change not in CHANGES or not (0 <= index < SIZES[_SPLIT] and wears_its_own(draws_of(_SPLIT, index))):
        choices = ", ".join(CHANGES)
        raise DataError(f"embedded shapes have no change {change} of {_SPLIT}/{index}; changes are {choices}")
    draw, original, other = draws_of(_SPLIT, index), class_of(index), other_label(index)
    canvas = ground_of(ShapeDraws(f"{draw.key}/other ground") if change == "background" else draw)
    colours = colours_of(draw, CLASSES[other if change == "colour" else original], canvas)
    shape_class = other if change == "shape" else original
    shape = finish_sample(canvas, paint(canvas, draw, CLASSES[shape_class], colours), shape_class)
    return Changed(shape, -1 if change == "background" else other)
