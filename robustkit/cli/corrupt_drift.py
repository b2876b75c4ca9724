"""`robustkit corrupt --drift`: how far a released tree is from what corrupting the same images here gives.

A corruption without random numbers must give the same picture, except for changes by JPEG and another library's resize.
With random numbers two trees never agree pixel by pixel; then they must not differ by more than two draws of our own
do, and must change the clean picture as strongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..common.environment import usual_workers
from ..data.dataset import Dataset, Sample
from ..data.images import read_image
from ..display.table import TextTable
from ..errors import BadImageError, DataError
from ..evaluations.corruptions.tree import CorruptedTree, pixels_of
from .corrupt_tree import Recipe, encode

LEVELS = 1.0  # of 255, the most that JPEG and resize may change a picture that is not random
SHARE = 0.1  # of our own figure: the most by which draw or strength may differ
FEWEST = 5  # fewest images to judge a random corruption by
RULE = (
    f"same, as far as these images tell: without random numbers, released and ours are within {LEVELS:g} grey level of "
    f"each other; with them, they differ by at most {SHARE:.0%} more than two draws of our own do, and are as far from "
    f"the clean image to {SHARE:.0%} ({LEVELS / 2:g} grey levels if more), plus twice the standard error over images"
)


@dataclass(frozen=True)
class Distance:
    """Mean absolute differences over one image, in grey levels.

    apart: released and ours. own: ours with this seed and with the next one. released, ours: to the clean image.
    """

    apart: float
    own: float
    released: float
    ours: float


@dataclass
class Drift:
    """Distances by (corruption, severity), each by sample id; lines on what could not be compared."""

    distances: dict[tuple[str, int], dict[str, Distance]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per corruption (severity None: each image's mean over severities), then one per severity."""
        rows = []
        for name in dict.fromkeys(name for name, _ in self.distances):
            severities = [severity for other, severity in self.distances if other == name]
            by_image: dict[str, list[Distance]] = {}
            for severity in severities:
                for sample_id, distance in self.distances[name, severity].items():
                    by_image.setdefault(sample_id, []).append(distance)
            each = [_row(name, s, [s], list(self.distances[name, s].values())) for s in severities]
            whole = _row(name, None, severities, list(map(_mean, by_image.values())))
            odd = [str(row["severity"]) for row in each if row["verdict"] == "differs"]
            if odd and len(odd) < len(severities):  # severities in another order have the same mean
                whole["verdict"] = f"differs at {'+'.join(odd)}"
            elif odd:
                whole["verdict"] = "differs"
            rows += [whole, *each]
        return rows


def measure(
    tree: CorruptedTree,
    dataset: Dataset,
    wanted: Mapping[str, Sequence[int]],
    recipe: Recipe,
    *,
    batch_size: int = 16,
    workers: int | None = None,
    tell: Callable[[int], None] = lambda files: None,
) -> Drift:
    """Compare the tree's files with the data set's images corrupted here.

    Where the tree's file is a JPEG, ours is compressed likewise first. What the tree lacks is left out and reported.

    Raises:
        DataError: the tree's images have another size than the recipe's.
    """
    drift = Drift()
    cells = [(name, severity) for name, severities in wanted.items() for severity in severities]
    for name, severity in list(cells):
        missing = set(tree.missing(dataset.samples, name, severity))
        if missing:
            count = "no files of these images" if len(missing) == len(dataset) else f"{len(missing)} files are missing"
            there = (name, severity) in tree.folders
            drift.lines.append(f"{name}, severity {severity}: {count if there else 'not in the tree'}; left out")
            tell(len(missing))
        if len(missing) == len(dataset):
            cells.remove((name, severity))
    with ThreadPoolExecutor(workers or usual_workers()) as pool:
        for start in range(0, len(dataset.samples), batch_size):
            clean: list[tuple[Sample, Tensor]] = []
            for sample, pixels in recipe.decoded(dataset, dataset.samples[start : start + batch_size], pool):
                if isinstance(pixels, BadImageError):
                    drift.lines.append(f"{pixels}; left out")
                else:
                    clean.append((sample, pixels))
            for name, severity in cells:
                distances = _compare(tree, clean, name, severity, recipe, drift.lines)
                drift.distances.setdefault((name, severity), {}).update(distances)
                tell(len(distances))
    return drift


def _compare(
    tree: CorruptedTree,
    clean: Sequence[tuple[Sample, Tensor]],
    name: str,
    severity: int,
    recipe: Recipe,
    lines: list[str],
) -> dict[str, Distance]:
    released: list[tuple[Sample, Tensor, Tensor, str]] = []
    for sample, pixels in clean:
        path = tree.path(sample.id, name, severity)
        if path is None:
            continue
        try:
            image = read_image(tree.read(sample.id, name, severity), path)
        except BadImageError as fault:
            lines.append(f"{fault}; left out")
            continue
        height, width = recipe.preprocessing.input_size
        if image.size != (width, height):
            raise DataError(f"{path} is {image.size[1]}x{image.size[0]}; give --img-size {image.size[1]}")
        image_format = "jpeg" if path.lower().endswith((".jpeg", ".jpg")) else "png"
        released.append((sample, pixels, pixels_of(image, recipe.preprocessing), image_format))
    if not released:
        return {}
    ids = [sample.id for sample, *_ in released]
    batch = torch.stack([pixels for _, pixels, *_ in released])
    ours, other = (recipe.corrupt(batch, ids, name, severity, seed=recipe.seed + more) for more in (0, 1))
    distances = {}
    for (sample, pixels, theirs, image_format), first, second in zip(released, ours, other, strict=True):
        mine, again = (_saved(picture, image_format) for picture in (first, second))
        distances[sample.id] = Distance(
            _apart(theirs, mine), _apart(mine, again), _apart(theirs, pixels), _apart(mine, pixels)
        )
    return distances


def _saved(pixels: Tensor, image_format: str) -> Tensor:
    """Return the pixels after saving them in this format."""
    if image_format != "jpeg":
        return pixels
    return torch.from_numpy(np.array(read_image(encode(pixels, image_format), "our own"))).permute(2, 0, 1)


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first.int() - second.int()).abs().double().mean())


def _mean(distances: Sequence[Distance]) -> Distance:
    return Distance(*(sum(column) / len(distances) for column in zip(*map(_values, distances), strict=True)))


def _values(distance: Distance) -> Iterable[float]:
    return (distance.apart, distance.own, distance.released, distance.ours)


def _row(name: str, severity: int | None, severities: Sequence[int], images: Sequence[Distance]) -> dict[str, Any]:
    return {
        "corruption": name,
        "severity": severity,
        "severities": list(severities),
        "images": len(images),
        **(asdict(_mean(images)) if images else {}),
        "verdict": verdict(images),
    }


def verdict(images: Sequence[Distance]) -> str:
    """Return `same`, `differs` or `too few images`, by `RULE`."""
    if not images:
        return "too few images"
    mean = _mean(images)
    if mean.own == 0:
        return "same" if mean.apart <= LEVELS else "differs"
    if len(images) < FEWEST:
        return "too few images"
    excess = [image.apart - image.own for image in images]
    strength = [image.released - image.ours for image in images]
    drawn = mean.apart - mean.own - 2 * _standard_error(excess) <= max(SHARE * mean.own, LEVELS / 2)
    strong = abs(mean.released - mean.ours) - 2 * _standard_error(strength) <= max(SHARE * mean.ours, LEVELS / 2)
    return "same" if drawn and strong else "differs"


def _standard_error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def table(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return the rows of whole corruptions, for a terminal."""
    shown = [
        (
            row["corruption"],
            "1-5" if len(row["severities"]) == 5 else "+".join(map(str, row["severities"])),
            str(row["images"]),
            f"{row['apart']:.2f}",
            f"{row['own']:.2f}" if row["own"] else "not random",
            f"{row['released']:.2f}",
            f"{row['ours']:.2f}",
            row["verdict"],
        )
        for row in rows
        if row["severity"] is None and row["images"]
    ]
    means = ("released − ours", "ours, two draws", "released − clean", "ours − clean")
    return TextTable("", ("corruption", "severities", "images", *means, "verdict"), tuple(shown), spare=("images",))
