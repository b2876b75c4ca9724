"""Match detections to what is true, as COCO's evaluation does: IoU of boxes and masks, crowds, areas, ten thresholds.

A mask is (2m,) places in an image that is read column by column; its runs of pixels begin and end there in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Mask: TypeAlias = NDArray[np.int32]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""The IoU from which on a detection matches."""
MOST = 100
"""Detections of a category in an image that count: those of the highest scores, of equals the first in the file."""
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Least and largest area in pixels; what is outside is ignored."""
_STEPS, _POINTS, _DIGITS = 5, 1 << 22, 7  # steps of an outline in a pixel; in all of it; letters of a number
_FARTHEST = 1 << 17  # a corner of a polygon, in pixels
_BITS = 1 << np.arange(len(THRESHOLDS))


# Masks


def runs_of_counts(counts: str | Sequence[int], pixels: int) -> Mask:
    """Return the mask of COCO's run lengths, compressed or not. ValueError where they are not of so many pixels."""
    lengths = _decompressed(counts) if isinstance(counts, str) else np.array(counts, dtype=np.int64)
    if not len(lengths) or lengths.min() < 0 or lengths.sum() != pixels:
        raise ValueError(f"counts of {lengths.sum()} pixels; expected those of {pixels}, none negative")
    return np.cumsum(lengths)[: len(lengths) // 2 * 2].astype(np.int32)


def _decompressed(text: str) -> Ints:
    """Return the numbers of a compressed text: letters of five bits, the lowest first, and one that says whether more
    follow; from the fourth on, a number is less the one before the last."""
    letters = np.frombuffer(text.encode("ascii", "backslashreplace"), np.uint8).astype(np.int64) - 48
    ends = (letters & 32) == 0
    if not len(letters) or letters.min() < 0 or letters.max() > 63 or not ends[-1]:
        raise ValueError("counts that are no compressed run lengths")
    starts = np.flatnonzero(np.concatenate([[True], ends[:-1]]))
    sizes = np.diff(starts, append=len(letters))
    if sizes.max() > _DIGITS:
        raise ValueError(f"counts with a number of {sizes.max()} letters; expected at most {_DIGITS}")
    within = np.arange(len(letters)) - np.repeat(starts, sizes)
    numbers = np.add.reduceat((letters & 31) << 5 * within, starts)
    numbers -= np.where(letters[ends] & 16, 1 << 5 * sizes, 0)
    for first in (1, 2):
        numbers[first::2] = np.cumsum(numbers[first::2])
    return numbers


def runs_of_polygons(polygons: Sequence[Sequence[float]], height: int, width: int) -> Mask:
    """Return the mask that COCO's rasteriser makes of polygons, x and y in turn: their union. Raises ValueError."""
    if not polygons or any(len(each) < 6 or len(each) % 2 for each in polygons):
        raise ValueError("polygons that are not lists of three or more x and y")
    parts = [_runs_of_polygon(np.array(each).reshape(-1, 2), height, width) for each in polygons]
    places = np.concatenate(parts)
    steps = np.concatenate([np.tile([1, -1], len(part) // 2) for part in parts])
    order = np.lexsort((-steps, places))
    places, steps = places[order], steps[order]
    depth = np.cumsum(steps)
    union: Mask = places[np.where(steps > 0, depth == 1, depth == 0)]
    return union


def _runs_of_polygon(corners: Floats, height: int, width: int) -> Mask:
    """Return the mask of one polygon. Its outline is walked in fifths of a pixel; where it passes the middle of a
    column, inside and outside change at the next row."""
    if np.abs(corners).max() > _FARTHEST:
        raise ValueError(f"a corner at {np.abs(corners).max():g}; expected pixels of the image")
    a = np.trunc(_STEPS * corners + 0.5).astype(np.int64)
    b = np.roll(a, -1, axis=0)
    reach = np.abs(b - a)
    steps = reach.max(axis=1)
    if steps.sum() > _POINTS:
        raise ValueError(f"an outline of {steps.sum() // _STEPS} pixels; expected at most {_POINTS // _STEPS}")
    main = np.where(reach[:, 0] >= reach[:, 1], 0, 1)[:, None]  # the axis along which an edge takes its steps
    flip = np.take_along_axis(a > b, main, axis=1)
    start, end = np.where(flip, b, a), np.where(flip, a, b)
    edge = np.repeat(np.arange(len(a)), steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - steps - 1, steps + 1)
    step = np.where(flip[edge, 0], steps[edge] - step, step)
    slope = (end - start) / np.maximum(steps, 1)[:, None]
    walked = np.trunc(start[edge] + slope[edge] * step[:, None] + 0.5).astype(np.int64)
    across = np.flatnonzero(walked[1:, 0] != walked[:-1, 0])
    before, after = walked[across], walked[across + 1]
    x = (np.where(after[:, 0] < before[:, 0], after[:, 0], after[:, 0] - 1) + 0.5) / _STEPS - 0.5
    y = np.ceil(np.clip((np.minimum(before[:, 1], after[:, 1]) + 0.5) / _STEPS - 0.5, 0, height))
    inside = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    places, times = np.unique((x * height + y)[inside].astype(np.int32), return_counts=True)
    places = places[times % 2 == 1]
    return np.append(places, np.int32(height * width)) if len(places) % 2 else places


def area_of_runs(mask: Mask) -> int:
    return int((mask[1::2] - mask[::2]).sum())


# IoU


def ious_of_boxes(boxes: Floats, true: Floats, crowd: Bools) -> Floats:
    """Return (D, G) of boxes (D, 4) and true ones (G, 4), as x, y, width, height; of a crowd, over the first's area."""
    ends = np.minimum((boxes[:, :2] + boxes[:, 2:])[:, None], (true[:, :2] + true[:, 2:])[None])
    sides = np.maximum(ends - np.maximum(boxes[:, None, :2], true[None, :, :2]), 0)
    both = sides[..., 0] * sides[..., 1]
    return _over(both, boxes[:, 2] * boxes[:, 3], true[:, 2] * true[:, 3], crowd)


def ious_of_masks(masks: Sequence[Mask], true: Sequence[Mask], crowd: Bools) -> Floats:
    """Return the same of D and G masks, as runs of pixels."""
    owner = np.repeat(np.arange(len(masks)), [len(mask) // 2 for mask in masks])
    starts, ends = (np.concatenate([mask[place::2] for mask in masks]) for place in (0, 1))
    both = [np.bincount(owner, _before(mask, ends) - _before(mask, starts), len(masks)) for mask in true]
    areas, of_true = (np.array([area_of_runs(mask) for mask in some], dtype=np.float64) for some in (masks, true))
    return _over(np.stack(both, axis=1).astype(np.float64), areas, of_true, crowd)


def _before(mask: Mask, places: Mask) -> Ints:
    """Return how many pixels of a mask are before each place."""
    ones = np.zeros(len(mask) + 1, dtype=np.int64)
    ones[1:] = np.repeat(np.cumsum(mask[1::2] - mask[::2]), 2)
    ones[1::2] -= mask[1::2] - mask[::2]
    before = np.searchsorted(mask, places, side="right")
    return ones[before] + np.where(before % 2, places - np.append(0, mask)[before], 0)


def _over(both: Floats, areas: Floats, true: Floats, crowd: Bools) -> Floats:
    either = np.where(crowd[None], areas[:, None], areas[:, None] + true[None] - both)
    return np.divide(both, either, out=np.zeros_like(both), where=both > 0)


# Matching


@dataclass(frozen=True)
class Shapes:
    """Boxes or masks. images, categories: (n,) places of their image and category. outlines: (n, 4), or a mask each.
    areas: (n,)."""

    images: Ints
    categories: Ints
    outlines: Floats | tuple[Mask, ...]
    areas: Floats


@dataclass(frozen=True)
class Matches:
    """Detections that count, by image, category and falling score. outcomes: (4, n), for each of `AREAS` a number whose
    bits say, for each threshold, whether the detection is right, and then whether it is ignored."""

    images: Ints
    categories: Ints
    scores: Floats
    outcomes: Ints


def matches_of(shapes: Shapes, scores: Floats, true: Shapes, crowd: Bools) -> Matches:
    """Return the matches of D shapes that have scores (D,) with true ones (N,). crowd: (N,), which of these are one."""
    count = int(max(shapes.categories.max(initial=0), true.categories.max(initial=0))) + 1
    keys, of_true = (each.images * count + each.categories for each in (shapes, true))
    order = np.lexsort((-scores, keys))
    starts = np.searchsorted(keys[order], keys[order])
    order = order[np.arange(len(order)) - starts < MOST]
    keys = keys[order]
    outside, ignored = is_outside(shapes.areas[order]), is_outside(true.areas) | crowd
    outcomes = outside * (int(_BITS.sum()) << len(_BITS))
    by_key = np.argsort(of_true, kind="stable")
    of_true = of_true[by_key]
    for key in np.intersect1d(keys, of_true):
        rows = slice(*np.searchsorted(keys, [key, key + 1]))
        objects = by_key[slice(*np.searchsorted(of_true, [key, key + 1]))]
        ious = _ious(shapes, order[rows], true, objects, crowd[objects])
        outcomes[:, rows] = _matched(ious, ignored[:, objects], crowd[objects], outcomes[:, rows])
    return Matches(shapes.images[order], shapes.categories[order], scores[order], outcomes)


def is_outside(areas: Floats) -> Bools:
    """Return (4, n): whether an area is none of each of `AREAS`."""
    least, largest = np.array([*AREAS.values()]).T[..., None]
    outside: Bools = (areas < least) | (areas > largest)
    return outside


def _ious(shapes: Shapes, here: Ints, true: Shapes, there: Ints, crowd: Bools) -> Floats:
    if isinstance(shapes.outlines, np.ndarray) and isinstance(true.outlines, np.ndarray):
        return ious_of_boxes(shapes.outlines[here], true.outlines[there], crowd)
    return ious_of_masks([shapes.outlines[k] for k in here], [true.outlines[k] for k in there], crowd)


def _matched(ious: Floats, ignored: Bools, crowd: Bools, outcomes: Ints) -> Ints:
    """Return the outcomes (4, D) of the detections of a category in an image, by falling score. ious: (D, G). ignored:
    (4, G). outcomes: of those that match nothing. A detection takes the free one with the largest IoU, of equals the
    last; one that is ignored only where no other is left. Crowds are never taken."""
    outcomes, last = outcomes.copy(), len(crowd) - 1
    free = np.ones((len(ignored), len(THRESHOLDS), len(crowd)), dtype=bool)
    areas, levels = np.indices(free.shape[:2])
    for place in np.flatnonzero((ious >= THRESHOLDS[0]).any(axis=1)).tolist():
        may = free & (ious[place] >= THRESHOLDS[:, None])
        counts = may & ~ignored[:, None]
        may = np.where(counts.any(axis=2, keepdims=True), counts, may)
        best = last - np.where(may, ious[place], -1.0)[..., ::-1].argmax(axis=2)
        matches, passed = may.any(axis=2), ignored[areas, best]
        free[areas, levels, best] &= ~matches | crowd[best]
        bits = (matches & ~passed) * _BITS + (matches & passed) * (_BITS << len(_BITS))
        unmatched = (outcomes[:, place, None] & (_BITS << len(_BITS))) * ~matches
        outcomes[:, place] = (bits + unmatched).sum(axis=1)
    return outcomes
