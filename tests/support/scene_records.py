"""Records of segmented scenes made by hand or drawn, and their figures by plain loops."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from figures import noted, said_of

from robustkit.common.figure import Figure
from robustkit.tasks.segmentation.counts import Counts, class_counts
from robustkit.tasks.segmentation.subject import SCENES

NONE = pytest.approx((math.nan, math.nan), nan_ok=True)
Found = dict[tuple[str, str], tuple[Any, ...]]


def record(sample: str, counts: Any, nll: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """counts: intersections, predicted and labelled by class."""
    intersections, predicted, labelled = (np.asarray(part).tolist() for part in counts)
    reported = {"intersections": intersections, "predicted": predicted, "labelled": labelled, "pixels": sum(labelled)}
    return {"sample_id": sample, "nll": nll, "linf": 0.0, "l2": 0.0} | reported | more


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCENES)


def counts(*rows: dict[str, Any], flags: tuple[str, ...] = ()) -> Counts:
    return Counts.of(table(rows), noted(*flags))


def random_rows(seed: int, n: int, classes: int, rare: int | None = None) -> list[dict[str, Any]]:
    """Records of random maps: the last class is nowhere, `rare` in the first image only, one image has no pixel."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(-1, classes - 1, (n, 5, 6), generator=torch.Generator().manual_seed(7))
    found = torch.where(
        torch.rand(n, 5, 6, generator=generator) < 0.5,
        truth,
        torch.randint(0, classes - 1, (n, 5, 6), generator=generator),
    )
    truth[3 % n] = -1
    if rare is not None:
        truth[1:][truth[1:] == rare], found[1:][found[1:] == rare] = -1, 0
    losses = torch.rand(n, generator=generator).tolist()
    parts = zip(*class_counts(found, truth, classes), losses, strict=True)
    return [record(f"{i:03}", part[:3], loss if sum(part[2]) else None) for i, (*part, loss) in enumerate(parts)]


def by_key(rows: Iterable[Figure]) -> Found:
    found = {}
    for row in rows:
        assert row.key not in found
        found[row.key] = row.value, row.n, row.low, row.high, said_of(row)
    return found


def slow(rows: list[dict[str, Any]], drawn: Iterable[int]) -> dict[str, float]:
    """The figures of the images drawn, image by image and class by class."""
    chosen = [rows[i] for i in drawn]
    classes = len(rows[0]["labelled"])
    ious, accuracies, right, pixels, loss = {}, [], 0, 0, 0.0
    for k in range(classes):
        hit, found, there = (sum(row[name][k] for row in chosen) for name in ("intersections", "predicted", "labelled"))
        if found + there - hit:
            ious[f"iou({k})"] = hit / (found + there - hit)
        if there:
            accuracies.append(hit / there)
        right, pixels = right + hit, pixels + there
    for row in chosen:
        loss += sum(row["labelled"]) * (row["nll"] or 0)
    means = {"miou": sum(ious.values()) / len(ious), "pixel_accuracy": right / pixels}
    return means | {"mean_accuracy": sum(accuracies) / len(accuracies), "nll": loss / pixels} | ious


def miou_slowly(rows: list[dict[str, Any]]) -> float:
    """Of all images, class by class."""
    ious = []
    for k in range(len(rows[0]["labelled"])):
        hit, found, there = (sum(row[name][k] for row in rows) for name in ("intersections", "predicted", "labelled"))
        if found + there - hit:
            ious.append(hit / (found + there - hit))
    return sum(ious) / len(ious) if ious else math.nan


def worst_slowly(every: list[list[dict[str, Any]]]) -> float:
    """Image after image the choice with which the mIoU is lowest, until a round changes nothing."""
    chosen = [0] * len(every[0])

    def figure(image: int, place: int) -> float:
        return miou_slowly([every[place if i == image else at][i] for i, at in enumerate(chosen)])

    while True:
        before = list(chosen)
        for image in range(len(chosen)):
            figures = [figure(image, place) for place in range(len(every))]
            if min(figures) < figures[chosen[image]]:
                chosen[image] = figures.index(min(figures))
        if chosen == before:
            return miou_slowly([every[at][i] for i, at in enumerate(chosen)])


def draws(n: int) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    return [generator.integers(0, n, n) for _ in range(1000)]


def share(part: float, n: int = 1, ids: str = "abcdefghijklmnop", flags: tuple[str, ...] = ()) -> Counts:
    """One class with that IoU in each of n images of 30 pixels: what is wrong is predicted as nothing."""
    hit = round(30 * part)
    return counts(*(record(ids[i], ([hit], [hit], [30]), nll=1 - part) for i in range(n)), flags=flags)
