"""Average precision from records alone, of all images and of resampled ones.

A resample draws an image several times or not at all; its detections then count as often. Precision, made monotone, is
largest where a detection is right, so that it is computed there only, for many resamples at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.groups import Groups
from ...errors import DamagedRecord
from ...runs.metadata import SampleGroups
from ...tasks.segmentation.counts import mean_known
from .matching import AREAS, THRESHOLDS, Bools, Floats, Ints

if TYPE_CHECKING:
    import pyarrow as pa

FIGURES = ("map", "map50", "map75", "ar100")
"""Means over categories: of average precision over all thresholds, at two of them, and of recall."""
DETECTED, TRUE = ("category[]", "score[]", *(f"{area}[]" for area in AREAS)), ("true category[]", "true area[]")
"""Columns of a record that have a list for each image: of its detections, and of what is true of it."""
COLUMNS = ("sample_id", "coco_id", *DETECTED, *TRUE, "error")
"""The columns of a record that `Detections.of` reads."""
_RECALLS = np.linspace(0, 1, 101)
_LEVELS = len(THRESHOLDS)
_CELLS = 1 << 20  # numbers held at once
_SPACING = np.spacing(1)
EMPTY = (np.nan, np.nan)


@dataclass(frozen=True)
class Detections:
    """The records under one condition, of n images in the order of COCO's ids. owners, categories, scores: (D,) of
    detections; outcomes: (4, D), as of `Matches`. true_owners, true_categories, true_areas: (G,) of what is true and
    no crowd; the last says by bits in which of `AREAS` it is."""

    ids: pa.Array
    classes: int
    owners: Ints
    categories: Ints
    scores: Floats
    outcomes: Ints
    true_owners: Ints
    true_categories: Ints
    true_areas: Ints
    sample_groups: SampleGroups | None = None

    @classmethod
    def of(cls, table: pa.Table, classes: int, where: str, sample_groups: SampleGroups | None = None) -> Detections:
        """Return the detections of rows with `COLUMNS`. classes: K. Raises DamagedRecord where they do not
        fit."""
        read = table.filter(table["error"].is_null()).sort_by("coco_id")
        lists = {name: read[name].combine_chunks() for name in (*DETECTED, *TRUE)}
        sizes = {name: each.value_lengths().fill_null(-1).to_numpy() for name, each in lists.items()}
        flat = {name: each.flatten() for name, each in lists.items()}
        alike = all((sizes[name] == sizes[some[0]]).all() for some in (DETECTED, TRUE) for name in some)
        sound = alike and not any((size < 0).any() or flat[name].null_count for name, size in sizes.items())
        values = {name: each.to_numpy(zero_copy_only=False) for name, each in flat.items()} if sound else {}
        kinds = [values[name] for name in ("category[]", "true category[]") if sound]
        if not sound or any(((kind < 0) | (kind >= classes)).any() for kind in kinds):
            raise DamagedRecord(f"{where}: lists that do not fit each other; make the run again")
        rows = np.arange(len(read))
        return cls(
            read["sample_id"].combine_chunks(),
            classes,
            np.repeat(rows, sizes["category[]"]),
            values["category[]"].astype(np.int64),
            values["score[]"].astype(np.float64),
            np.stack([values[f"{area}[]"] for area in AREAS]).astype(np.int64),
            np.repeat(rows, sizes["true category[]"]),
            values["true category[]"].astype(np.int64),
            values["true area[]"].astype(np.int64),
            sample_groups,
        )

    def of_samples(self, ids: pa.Array) -> Detections:
        """Return those of the images with these ids, in the order of all."""
        if self.ids.equals(ids):
            return self
        import pyarrow.compute as pc

        chosen = pc.is_in(self.ids, value_set=ids).to_numpy(zero_copy_only=False)
        place, mine, true = np.cumsum(chosen) - 1, chosen[self.owners], chosen[self.true_owners]
        return Detections(
            self.ids.filter(chosen),
            self.classes,
            place[self.owners[mine]],
            self.categories[mine],
            self.scores[mine],
            self.outcomes[:, mine],
            place[self.true_owners[true]],
            self.true_categories[true],
            self.true_areas[true],
            self.sample_groups,
        )

    @property
    def groups(self) -> Groups | None:
        return None if self.sample_groups is None else self.sample_groups.of(self.ids)

    @property
    def has(self) -> Bools:
        """(K, n): whether an image has each category."""
        has = np.zeros((self.classes, len(self.ids)), np.bool_)
        has[self.true_categories, self.true_owners] = True
        return has

    def figures(self, drawn: Floats, area: str = "all") -> Floats:
        """Return `FIGURES` and the average precision of each category, (R, 4 + K); nan without it. drawn: (R, n)."""
        place = [*AREAS].index(area)
        counting = (self.true_areas >> place) & 1 == 1
        weights = np.ascontiguousarray(drawn.T, dtype=np.int64)
        order = np.argsort(-self.scores, kind="stable")
        order = order[np.argsort(self.categories[order], kind="stable")]
        ends = np.searchsorted(self.categories[order], np.arange(self.classes + 1))
        precision, recall = np.full((2, self.classes, _LEVELS, len(drawn)), np.nan)
        for category in np.unique(self.true_categories[counting]):
            mine = order[ends[category] : ends[category + 1]]
            true = self.true_owners[counting & (self.true_categories == category)]
            parts = self.owners[mine], self.outcomes[place, mine], true
            step = max(1, _CELLS // max(len(mine), len(true), 1))
            for start in range(0, len(drawn), step):
                some = slice(start, start + step)
                precision[category, :, some], recall[category, :, some] = _curve(weights[:, some], *parts)
        with np.errstate(invalid="ignore"):
            by_level, means = (mean_known(each.swapaxes(0, 1)) for each in (precision, recall))
            each = precision.mean(axis=1)
        middle = int(np.flatnonzero(np.isclose(THRESHOLDS, 0.75))[0])
        return np.column_stack([by_level.mean(axis=0), by_level[0], by_level[middle], means.mean(axis=0), each.T])


def _curve(weights: Ints, owners: Ints, outcomes: Ints, true: Ints) -> tuple[Floats, Floats]:
    """Return average precision and recall of a category at each threshold, (10, R) each; nan where nothing is true.

    weights: (n, R). owners, outcomes: (D,) of its detections by falling score. true: (G,) images of what is true.
    """
    positives = weights[true].sum(axis=0)
    reached = _Reached.of(positives)
    counts = np.cumsum(weights[owners], axis=0)
    precision, recall = np.zeros((2, _LEVELS, weights.shape[1]))
    for level in range(_LEVELS):
        right = np.flatnonzero(outcomes >> level & 1)
        if not len(right):
            continue
        ignored = np.flatnonzero(outcomes >> (_LEVELS + level) & 1)
        hits, all_of = np.cumsum(weights[owners[right]], axis=0), counts[right]
        if len(ignored):
            left_out = np.cumsum(weights[owners[ignored]], axis=0)
            before = np.searchsorted(ignored, right)
            all_of = all_of - np.where(before[:, None] > 0, left_out[before - 1], 0)
        sharp = np.maximum.accumulate((hits / (all_of + _SPACING))[::-1], axis=0)[::-1]
        levels = reached.by(hits)
        levels[1:] -= levels[:-1].copy()
        precision[level] = (sharp * levels).sum(axis=0) / len(_RECALLS)
        recall[level] = hits[-1] / np.maximum(positives, 1)
    nothing = positives == 0
    precision[:, nothing] = recall[:, nothing] = np.nan
    return precision, recall


@dataclass(frozen=True)
class _Reached:
    """How many of the 101 recalls so many hits reach, by the number of positives. starts: (R,), of its part."""

    table: Ints
    starts: Ints

    @classmethod
    def of(cls, positives: Ints) -> _Reached:
        sizes, places = np.unique(positives, return_inverse=True)
        parts = [np.searchsorted(_RECALLS, np.arange(size + 1) / max(size, 1), side="right") for size in sizes]
        starts = np.cumsum([0, *sizes + 1])[:-1]
        return cls(np.concatenate(parts), starts[places])

    def by(self, hits: Ints) -> Ints:
        levels: Ints = self.table[self.starts + hits]
        return levels
