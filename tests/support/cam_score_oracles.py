"""Slow replicas of the scores of maps: loops over pixels, thresholds and steps, and scikit-image's components."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, product

import numpy as np
import torch
from skimage.measure import label, regionprops
from torch import Tensor

Box = tuple[int, int, int, int]


def smooth_maps(count: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Maps of a few blobs, in [0, 1], both ends reached."""
    coarse = torch.rand(count, 1, 4, 5, generator=torch.Generator().manual_seed(seed))
    maps = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")[:, 0]
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low)


def component_boxes(mask: Tensor, nested: bool) -> list[Box]:
    """Boxes of the 8-connected components; without `nested`, of those that the outside of the image touches."""
    padded = np.pad(mask.numpy(), 1)
    background = label(~padded, connectivity=1)
    outside = background == background[0, 0]
    reached = outside.copy()
    for axis, step in product((0, 1), (-1, 1)):
        reached |= np.roll(outside, step, axis)
    parts = label(padded, connectivity=2)
    boxes = []
    for part in regionprops(parts):
        if nested or reached[parts == part.label].any():
            top, left, bottom, right = part.bbox
            boxes.append((left - 1, top - 1, right - 1, bottom - 1))
    return sorted(boxes)


def union(boxes: Sequence[Box], height: int, width: int) -> Tensor:
    mask = torch.zeros(height, width, dtype=torch.bool)
    for (x0, y0, x1, y1), y, x in product(boxes, range(height), range(width)):
        if x0 <= x < x1 and y0 <= y < y1:
            mask[y, x] = True
    return mask


def scores(predicted: Tensor, truth: Tensor) -> tuple[float, float, float, float, float]:
    """Pixel accuracy, IoU, Dice, precision and recall of one image, both masks non-empty."""
    table = dict.fromkeys(product((True, False), repeat=2), 0)
    for guess, answer in zip(predicted.flatten().tolist(), truth.flatten().tolist(), strict=True):
        table[guess, answer] += 1
    tp, fp, fn, tn = table[True, True], table[True, False], table[False, True], table[False, False]
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    return (tp + tn) / sum(table.values()), tp / (tp + fp + fn), 2 * tp / (2 * tp + fp + fn), precision, recall


def pxap(maps: Tensor, truth: Tensor, bins: int) -> float:
    values = list(zip(maps.double().flatten().tolist(), truth.flatten().tolist(), strict=True))
    area, before, positives = 0.0, 0.0, sum(inside for _, inside in values)
    for k in range(bins, -1, -1):
        above = [inside for value, inside in values if value >= k / bins]
        if above:
            recall = sum(above) / positives
            area += sum(above) / len(above) * (recall - before)
            before = recall
    return area


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    across = max(0, min(a[2], b[2]) - max(a[0], b[0]))
    down = max(0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in (a, b)]
    return across * down / (sum(areas) - across * down)


def max_box_acc(maps: Tensor, boxes: Sequence[Sequence[Box]], thresholds: Sequence[float]) -> float:
    best = []
    for delta in (0.3, 0.5, 0.7):
        shares = []
        for threshold in thresholds:
            hits = 0
            for one, truth in zip(maps, boxes, strict=True):
                found = component_boxes(one.double() >= threshold, nested=True)
                hits += any(iou(a, b) >= delta for a in found for b in truth)
            shares.append(hits / len(maps))
        best.append(max(shares))
    return sum(best) / 3


def probability(model: Callable[[Tensor], Tensor], image: Tensor, target: int) -> float:
    with torch.no_grad():
        logits = model(image[None])[0].tolist()
    top = max(logits)
    return math.exp(logits[target] - top) / sum(math.exp(value - top) for value in logits)


def imputed(image: Tensor, removed: Tensor) -> Tensor:
    """The image (C, H, W), in float64, whose removed pixels are means of their neighbours: one dense system."""
    channels, height, width = image.shape
    places = [tuple(place) for place in removed.nonzero().tolist()]
    matrix, right = torch.zeros(len(places), len(places)).double(), torch.zeros(len(places), channels).double()
    for i, (y, x) in enumerate(places):
        for down, across in product((-1, 0, 1), repeat=2):
            there = (y + down, x + across)
            if (down, across) == (0, 0) or not (0 <= there[0] < height and 0 <= there[1] < width):
                continue
            weight = 1 / 12 if down and across else 1 / 6
            matrix[i, i] += weight
            if there in places:
                matrix[i, places.index(there)] -= weight
            else:
                right[i] += weight * image[:, there[0], there[1]]
    filled = image.double().clone()
    for (y, x), colour in zip(places, torch.linalg.solve(matrix, right), strict=True):
        filled[:, y, x] = colour
    return filled


def removal_curve(
    model: Callable[[Tensor], Tensor],
    front: Tensor,
    back: Tensor,
    one: Tensor,
    target: int,
    steps: int,
    highest_first: bool,
) -> list[float]:
    """Probability while the pixels of `front`, one after the other, give way to those of `back`; (3, H, W) each."""
    height, width = one.shape
    places = list(product(range(height), range(width)))  # in raster order, which a stable sort keeps among equals
    places.sort(key=lambda place: -float(one[place]) if highest_first else float(one[place]))
    curve = []
    for step in range(steps):
        image = front.clone()
        for y, x in places[: int(step * height * width / (steps - 1))]:
            image[:, y, x] = back[:, y, x]
        curve.append(probability(model, image, target))
    return curve


def trapezoid(curve: Sequence[float]) -> float:
    return sum((a + b) / 2 for a, b in pairwise(curve)) / (len(curve) - 1)
