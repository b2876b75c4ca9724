"""How far a tree of corrupted images is from corrupting the same images here.

A corruption without random numbers must give the same picture, except for changes by JPEG and another library's resize.
With random numbers two trees never agree pixel by pixel; then they must not differ by more than two draws of our own
do, and must change the clean picture as strongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...common.environment import usual_workers
from ...data.dataset import Dataset, Sample
from ...data.images import read_image
from ...errors import BadImageError, DataError
from ...evaluations.corruptions import TEXTURED, expand
from ...evaluations.corruptions.plan import check_constants, native_size
from ...evaluations.corruptions.tree import CorruptedTree, tree_pixels
from .tree import CorruptOptions, Recipe, Severities, Watch, encode, recorded_pictures, settle, unwatched

LEVELS = 1.0  # of 255, the most that JPEG and resize may change a picture that is not random
SHARE = 0.1  # of our own figure: the most by which draw or strength may differ
FEWEST = 5  # fewest images to judge a random corruption by
DRIFT_RULE = (
    f"no difference found on these images: without random numbers, released and ours are within {LEVELS:g} grey "
    "level of "
    f"each other; with them, they differ by at most {SHARE:.0%} more than two draws of our own do, and are as far from "
    f"the clean image to {SHARE:.0%} ({LEVELS / 2:g} grey levels if more), plus twice the standard error over images"
)


class Distance(NamedTuple):
    """Mean absolute differences over one image, in grey levels. apart: released and ours. own: ours with this seed and
    with the next one. released, ours: to the clean image."""

    apart: float
    own: float
    released: float
    ours: float


@dataclass
class Drift:
    """Distances by (corruption, severity), each by sample id; lines on what was assumed and what could not be compared.
    settings: of the comparison, for a file."""

    distances: dict[tuple[str, int], dict[str, Distance]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

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
            differing = [str(row["severity"]) for row in each if row["verdict"] == "differs"]
            if differing and len(differing) < len(severities):  # severities in another order have the same mean
                whole["verdict"] = f"differs at {'+'.join(differing)}"
            elif differing:
                whole["verdict"] = "differs"
            rows += [whole, *each]
        return rows


def compare_tree(root: str | Path, data_dir: str | Path, *, watch: Watch = unwatched, **options: Any) -> Drift:
    """Measure how far a tree of corrupted images is from corrupting the same images here, by `DRIFT_RULE`.

    Args:
        root: the tree, such as a released ImageNet-C.
        data_dir: the clean images that it was made of: a folder, a zip, or `embedded:shapes`.
        watch: see `Watch`; it takes no notes here, since those of the comparison come with it.
        options: fields of `CorruptOptions`. Without corruptions they are the tree's, without img_size its images'.

    Returns:
        Distances of each corruption and severity, whose `rows` have the means and a verdict.

    Raises:
        DataError: no such tree or data, or none of its images could be compared.
        ProtocolError: an unknown corruption, or a setting that is out of range.
    """
    recipe_options, tree = CorruptOptions(**options), CorruptedTree.open(Path(root))
    corruptions: Severities = tree.present if recipe_options.corruptions is None else expand(recipe_options.corruptions)
    whole = recipe_options.opened(data_dir)
    cells = [(name, severity) for name, severities in corruptions.items() for severity in severities]
    samples = [sample for sample in whole.samples if any(tree.path(sample.id, *cell) for cell in cells)]
    if not samples:
        such = f"an id is {whole.samples[0].id!r}"
        raise DataError(f"{root} holds no image of {data_dir} under {', '.join(corruptions)}; {such}")
    held = f"{root} holds {len(samples)} of {len(whole)} images" if len(samples) < len(whole) else ""
    dataset = recipe_options.chosen(replace(whole, samples=tuple(samples)))
    like = _size_of(tree, dataset) if recipe_options.img_size is None else None
    recipe, lines = settle(native_size(dataset), recipe_options, img_size=like)
    check_constants(corruptions, recipe.preset)
    corruptions, left_out = _possible(corruptions, recipe, Path(root))
    with watch((), sum(map(len, corruptions.values())) * len(dataset)) as tell:
        drift = measure(tree, dataset, corruptions, recipe, recipe_options.batch_size, recipe_options.workers, tell)
    if not any(drift.distances.values()):
        raise DataError(f"{root}: no image could be compared; {(*drift.lines, 'none was chosen')[0]}")
    drift.lines[:0] = [*tree.notes, *lines, *filter(None, (held, left_out))]
    drift.settings = {"tree": str(root), "data": str(data_dir)}
    drift.settings |= {key: getattr(recipe, key) for key in ("seed", "preset", "variant")}
    drift.settings |= {"preprocessing": asdict(recipe.preprocessing), "rule": DRIFT_RULE}
    return drift


def _possible(corruptions: Severities, recipe: Recipe, root: Path) -> tuple[Severities, str]:
    """Return what can be done without pictures that are missing, or are not those that a tree of ours records, and the
    line that says so."""
    recorded = recorded_pictures(root)
    rest, lines = dict(corruptions), list[str]()
    for name in filter(corruptions.__contains__, TEXTURED):
        try:
            if recorded.get(name, digest := recipe.digest(name)) != digest:
                raise DataError("the tree was made with other pictures; give the same --frost-dir or --tiles-dir")
        except DataError as fault:
            del rest[name]
            if not rest:
                raise
            lines.append(f"left out {name}: {fault}")
    return rest, "; ".join(lines)


def _size_of(tree: CorruptedTree, dataset: Dataset) -> int | None:
    """Return the side of the tree's images; None where they are not square, or none can be read."""
    for name, severity in tree.folders:
        for sample in dataset.samples[:20]:
            try:
                width, height = read_image(tree.read(sample.id, name, severity), sample.id).size
            except BadImageError:
                continue
            return width if width == height else None
    return None


def measure(
    tree: CorruptedTree,
    dataset: Dataset,
    corruptions: Severities,
    recipe: Recipe,
    batch_size: int,
    workers: int | None,
    tell: Callable[[int], None],
) -> Drift:
    """Compare the tree's files with the images corrupted here, saved as JPEG first where the tree's are; what it lacks
    is left out and reported. Raises DataError where the tree's images have another size than the recipe's."""
    drift = Drift()
    cells = [(name, severity) for name, severities in corruptions.items() for severity in severities]
    for name, severity in list(cells):
        missing = set(tree.missing(dataset.samples, name, severity))
        if missing:
            count = "no files of these images" if len(missing) == len(dataset) else f"{len(missing)} files are missing"
            in_tree = (name, severity) in tree.folders
            drift.lines.append(f"{name}, severity {severity}: {count if in_tree else 'not in the tree'}; skipped")
            tell(len(missing))
        if len(missing) == len(dataset):
            cells.remove((name, severity))
    with ThreadPoolExecutor(workers or usual_workers()) as pool:
        for start in range(0, len(dataset.samples), batch_size):
            clean, unread = recipe.decoded(dataset, dataset.samples[start : start + batch_size], pool)
            drift.lines += (f"{why}; excluded" for why in unread.values())
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
            lines.append(f"{fault}; excluded")
            continue
        height, width = recipe.preprocessing.input_size
        if image.size != (width, height):
            raise DataError(f"{path} is {image.size[1]}x{image.size[0]}; give --img-size {image.size[1]}")
        image_format = "jpeg" if path.lower().endswith((".jpeg", ".jpg")) else "png"
        released.append((sample, pixels, tree_pixels(image, recipe.preprocessing), image_format))
    if not released:
        return {}
    ids = [sample.id for sample, *_ in released]
    batch = torch.stack([pixels for _, pixels, *_ in released])
    ours, other = (recipe.corrupt(batch, ids, name, severity, seed=recipe.seed + more) for more in (0, 1))
    distances = {}
    for (sample, pixels, theirs, image_format), first, second in zip(released, ours, other, strict=True):
        mine, again = first, second
        if image_format == "jpeg":  # after saving them likewise
            saved = (read_image(encode(picture, image_format), "our own") for picture in (first, second))
            mine, again = (torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in saved)
        pairs = ((theirs, mine), (mine, again), (theirs, pixels), (mine, pixels))
        distances[sample.id] = Distance(*(float((a.int() - b.int()).abs().double().mean()) for a, b in pairs))
    return distances


def _mean(distances: Sequence[Distance]) -> Distance:
    return Distance(*(sum(column) / len(distances) for column in zip(*distances, strict=True)))


def _row(name: str, severity: int | None, severities: Sequence[int], images: Sequence[Distance]) -> dict[str, Any]:
    return {
        "corruption": name,
        "severity": severity,
        "severities": list(severities),
        "images": len(images),
        **(_mean(images)._asdict() if images else {}),
        "verdict": verdict(images),
    }


def verdict(images: Sequence[Distance]) -> str:
    """Return `same`, `differs` or `too few images`, by `DRIFT_RULE`."""
    if not images:
        return "too few images"
    mean = _mean(images)
    if mean.own == 0:
        return "same" if mean.apart <= LEVELS else "differs"
    if len(images) < FEWEST:
        return "too few images"
    excess = [image.apart - image.own for image in images]
    strength = [image.released - image.ours for image in images]
    errors = [float(np.std(values, ddof=1)) / math.sqrt(len(values)) for values in (excess, strength)]
    drawn = mean.apart - mean.own - 2 * errors[0] <= max(SHARE * mean.own, LEVELS / 2)
    strong = abs(mean.released - mean.ours) - 2 * errors[1] <= max(SHARE * mean.ours, LEVELS / 2)
    return "same" if drawn and strong else "differs"
