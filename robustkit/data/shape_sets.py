"""Further sets of the embedded shapes, made on demand: two shapes in one image, and images of which one thing changes.

A pair is one image with two shapes of different classes, which do not touch, on one photograph. A changed image is
a sample of the test split of which the colour alone, the shape alone or the background alone is another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .shapes import (
    CLASSES,
    SIZES,
    Draws,
    Shape,
    colours_of,
    draws_of,
    finished,
    ground_of,
    label,
    mask_of,
    paint,
    place_of,
    wears_its_own,
)

CHANGES = ("colour", "shape", "background")
PAIRS = 10 * len(CLASSES) * (len(CLASSES) - 1)
"""The number of pairs: ten of each first and second class."""
_SPLIT = "test"
_TRIES = 10_000


@dataclass(frozen=True)
class Changed:
    """A changed sample. other: the class whose colour or outline was put in; -1 where it is a background."""

    shape: Shape
    other: int


@dataclass(frozen=True)
class Pair:
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
def rendered_pair(index: int) -> Pair:
    """Make a pair from the shapes of two samples of the test split, on the photograph of the first.

    Both are drawn until they do not touch. Raises DataError for an index that is none.
    """
    if not 0 <= index < PAIRS:
        raise DataError(f"embedded pairs of shapes have no sample {index}; expected 0 to {PAIRS - 1}")
    draw, labels = Draws(f"robustkit shape pairs 1/{index}"), pair_labels(index)
    names = [CLASSES[place] for place in labels]
    each = SIZES[_SPLIT] // len(CLASSES)
    for attempt in range(_TRIES):
        drawn = [
            draws_of(_SPLIT, len(CLASSES) * draw(f"{which} {attempt}", 0, each - 1) + place)
            for which, place in zip(("first", "second"), labels, strict=True)
        ]
        if _overlap(*drawn):
            continue
        masks = np.stack([mask_of(one, name) for one, name in zip(drawn, names, strict=True)])
        if not (_grown(masks[0]) & masks[1]).any():
            break
    else:
        raise DataError(f"embedded pairs of shapes: none of {_TRIES} draws of pair {index} fits")
    canvas = ground_of(drawn[0])
    colours = [colours_of(one, name, canvas) for one, name in zip(drawn, names, strict=True)]
    for one, name, colour in zip(drawn, names, colours, strict=True):
        paint(canvas, one, name, colour)
    return Pair(np.floor(canvas + 0.5).astype(np.uint8), masks, labels)


def _overlap(first: Draws, second: Draws) -> bool:
    """Whether two shapes are so near each other that their masks need not be compared."""
    (radius, _, x, y), (other, _, right, down) = place_of(first), place_of(second)
    return (x - right) ** 2 + (y - down) ** 2 < (0.8 * (radius + other)) ** 2


def _grown(mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a mask with two more pixels on each side, so that smooth edges do not meet."""
    grown = mask.copy()
    for axis in (0, 1):
        grown |= np.maximum.reduce([np.roll(grown, step, axis) for step in (-2, -1, 1, 2)])
    return grown


def changeable() -> tuple[int, ...]:
    """Return the test samples whose shapes wear the colour of their class: those that can be changed."""
    return tuple(index for index in range(SIZES[_SPLIT]) if wears_its_own(draws_of(_SPLIT, index)))


def other_label(index: int) -> int:
    """Return the class whose colour or outline a changed sample takes."""
    return (label(index) + 1 + draws_of(_SPLIT, index)("other class", 0, len(CLASSES) - 2)) % len(CLASSES)


@lru_cache(maxsize=256)
def changed(index: int, change: str) -> Changed:
    """Return a test sample with one thing changed, and all else the same to the bit where it is not painted over.

    colour: that of `other_label`'s class, with the same shifts. shape: that class's outline, in the same place, size,
    rotation, colour and texture; it is the new label. background: another photograph.
    """
    if change not in CHANGES or not (0 <= index < SIZES[_SPLIT] and wears_its_own(draws_of(_SPLIT, index))):
        raise DataError(
            f"embedded shapes have no change {change} of {_SPLIT}/{index}; changes are {', '.join(CHANGES)}"
        )
    draw, own, other = draws_of(_SPLIT, index), label(index), other_label(index)
    canvas = ground_of(Draws(f"{draw.key}/other ground") if change == "background" else draw)
    colours = colours_of(draw, CLASSES[other if change == "colour" else own], canvas)
    shown = other if change == "shape" else own
    shape = finished(canvas, paint(canvas, draw, CLASSES[shown], colours), shown)
    return Changed(shape, -1 if change == "background" else other)
