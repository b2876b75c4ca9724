"""Compare two segmenters on the same images: figures of a whole data set, and their differences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.differences import Difference, of_resamples
from ...common.intervals import Floats
from ...evaluations.kinds import shares_of
from ...evaluations.recorded import Recorded, common_ids, nothing_common
from ...evaluations.rows import FEWEST
from .counts import COLUMNS, METRICS, Counts

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Scenes:
    """What was read from a record of scenes: (n,) ids, (4 + K,) figures and (R, 4) of resampled images (`Counts`)."""

    ids: pa.Array
    values: Floats
    resampled: Floats

    @classmethod
    def of(cls, counts: Counts) -> Scenes:
        """Return the figures of counts, which need not be kept."""
        if not len(counts.ids):
            return cls(counts.ids, np.empty(0), np.empty((0, 0)))
        return cls(counts.ids, counts.values, counts.resampled)


def scene_ids(side: Recorded, condition: str) -> pa.Array:
    """Return the images that could be read under a condition, in their order. Raises RunError without records."""
    if ("ids", condition) not in side.memo:
        scenes = side.memo["scenes", condition] = Scenes.of(_counts(side, condition))
        side.memo["ids", condition] = scenes.ids
    return side.memo["ids", condition]


def scenes_of(side: Recorded, condition: str, ids: pa.Array) -> Scenes:
    """Return the figures under a condition of the images with these ids, all of which it has."""
    kept: Scenes | None = side.memo.get(("scenes", condition))
    if kept is None or not kept.ids.equals(ids):
        kept = side.memo["scenes", condition] = Scenes.of(_counts(side, condition).of_samples(ids))
    return kept


def _counts(side: Recorded, condition: str) -> Counts:
    return Counts.of(side.table(condition, list(COLUMNS)), ())


def recorded_difference(first: Recorded, second: Recorded, condition: str, metric: str) -> Difference:
    """Return how the second's figure differs from the first's under a condition, or a mean over conditions.

    Raises:
        RunError: there are no records, or no image is in common.
    """
    shares = shares_of(condition)
    ids = common_ids([scene_ids(side, text) for side in (first, second) for text in shares])
    if not len(ids):
        raise nothing_common(first, second, condition)
    before, after = (
        [(share, scenes_of(side, text, ids)) for text, share in shares.items()] for side in (first, second)
    )
    return scene_difference(before, after, metric)


def scene_difference(
    first: Iterable[tuple[float, Counts | Scenes]],
    second: Iterable[tuple[float, Counts | Scenes]],
    metric: str = "miou",
) -> Difference:
    """Return how the second's figure of a data set differs from the first's.

    first, second: shares and counts of the conditions that the figure is a mean over, all of the same images; for one
    condition `[(1.0, counts)]`. They need not be in memory together. metric: miou, pixel_accuracy, mean_accuracy or
    nll.
    """
    place = METRICS.index(metric)
    (n, before, drawn_before), (_, after, drawn_after) = _averaged(first, place), _averaged(second, place)
    with np.errstate(invalid="ignore"):
        resampled = drawn_after - drawn_before
    return of_resamples(before, after, resampled, n, FEWEST)


def _averaged(parts: Iterable[tuple[float, Counts | Scenes]], place: int) -> tuple[int, float, Floats]:
    """Return the number of images, the figure and that of each resample, (R,), of a weighted mean over conditions."""
    n, value, drawn = 0, 0.0, np.zeros(1)
    for weight, scenes in parts:
        n, value = len(scenes.ids), value + weight * float(scenes.values[place])
        drawn = drawn + weight * scenes.resampled[:, place]
    return n, value, drawn


def other_mask(first: Recorded, second: Recorded, condition: str) -> tuple[int, str]:
    """Return how many images both have, and which of them has another mask; empty if none."""
    tables = [side.table(condition, ["sample_id", "labelled", "error"]) for side in (first, second)]
    read = [table.filter(table["error"].is_null()) for table in tables]
    ids = common_ids([table["sample_id"].combine_chunks() for table in read]).to_pylist()
    masks = [dict(zip(t["sample_id"].to_pylist(), t["labelled"].to_pylist(), strict=True)) for t in read]
    if first.described.preprocessing != second.described.preprocessing:
        masks = masks[:1] * 2  # counts at other image sizes say nothing
    return len(ids), next((f"the mask of {name} differs" for name in ids if masks[0][name] != masks[1][name]), "")
