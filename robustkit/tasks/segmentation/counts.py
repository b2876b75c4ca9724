"""Turn label maps into counts, and counts into figures of a data set: mIoU, accuracies, NLL, IoU of each class.

A class's IoU is the sum of its intersections over the sum of its unions. So a figure of resampled images is computed
from weighted sums, and the bootstrap is a matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.figure import BOOTSTRAP, Figure
from ...common.finding import Finding
from ...common.groups import Groups, effective_units
from ...common.intervals import NO_INTERVAL, Floats, include_estimate, percentiles, resampled_figures
from ...errors import DataError, ModelError
from ...runs.metadata import SampleGroups

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

Ints = NDArray[np.int32]

METRICS = ("miou", "pixel_accuracy", "mean_accuracy", "nll")
BY_RUN = ("intersections", "predicted")  # the columns that an attack has of each of its runs, too
COLUMNS = ("sample_id", "intersections", "predicted", "labelled", "nll", "linf", "l2", "error")
"""The columns of a record that `Counts.of` reads."""


def class_counts(predictions: Tensor, truth: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return pixels predicted right, predicted as, and labelled as each class: (B, K) int64 each, from (B, H, W).
    Pixels of negative truth are ignored; a negative prediction is wrong. Raises DataError or ModelError where one is no
    class.
    """
    import torch  # only where pixels are counted, not where results are shown

    if predictions.shape != truth.shape or truth.dim() != 3:
        shapes = f"{tuple(predictions.shape)} and {tuple(truth.shape)}"
        raise ModelError(f"predictions and truth of shapes {shapes}; expected (B, H, W) of both")
    counted = truth >= 0
    labels, predicted = truth[counted], predictions[counted]
    for what, numbers, fault, otherwise in (
        ("label", labels, DataError, "a negative number where the pixel is ignored"),
        ("prediction", predicted, ModelError, "a negative number for none"),
    ):
        if len(numbers) and (largest := int(numbers.max())) >= classes:
            raise fault(f"{what} {largest}: expected a class from 0 to {classes - 1}, or {otherwise}")
    images = len(truth)
    first = (torch.arange(images, device=truth.device) * classes).view(-1, 1, 1).expand_as(truth)[counted]

    def tally(bins: Tensor) -> Tensor:
        return torch.bincount(bins, minlength=images * classes).view(images, classes)

    right = tally((first + labels)[labels == predicted])
    return right, tally((first + predicted)[predicted >= 0]), tally(first + labels)


@dataclass(frozen=True)
class Counts:
    """The counts under one condition, a row per image read, sorted by id: (n, K) pixels, 3.6 MB for 2000 images of 150
    classes; nll: (n,) means over pixels. largest: perturbation by norm.
    """

    ids: pa.Array
    intersections: Ints
    predicted: Ints
    labelled: Ints
    nll: Floats
    flags: tuple[Finding, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    sample_groups: SampleGroups | None = None
    """The groups of the run's images."""

    @classmethod
    def of(cls, table: pa.Table, flags: Sequence[Finding], sample_groups: SampleGroups | None = None) -> Counts:
        """Return the counts of records with at least `COLUMNS`; those with an error are left out."""
        import pyarrow.compute as pc

        read = table.filter(table["error"].is_null()).sort_by("sample_id")
        flat = (read[name].combine_chunks().flatten().to_numpy(zero_copy_only=False) for name in COLUMNS[1:4])
        intersections, predicted, labelled = (
            values.astype(np.int32).reshape(len(read), len(values) // max(len(read), 1)) for values in flat
        )
        nll = read["nll"].to_numpy(zero_copy_only=False).astype(np.float64)
        largest = {norm: pc.max(read[norm]).as_py() or 0.0 for norm in ("linf", "l2")}
        ids = read["sample_id"].combine_chunks()
        return cls(ids, intersections, predicted, labelled, nll, tuple(flags), largest, sample_groups)

    def of_samples(self, ids: pa.Array) -> Counts:
        """Return the counts of the images with these ids, in the order of all."""
        if self.ids.equals(ids):
            return self
        import pyarrow.compute as pc

        rows = np.flatnonzero(pc.is_in(self.ids, value_set=ids).to_numpy(zero_copy_only=False))
        arrays = {name: getattr(self, name)[rows] for name in ("intersections", "predicted", "labelled", "nll")}
        return replace(self, ids=self.ids.take(rows), **arrays)

    def of_classes(self, judged: Sequence[int]) -> Counts:
        if not len(self.ids):
            return self
        arrays = {name: getattr(self, name)[:, judged] for name in ("intersections", "predicted", "labelled")}
        return replace(self, **arrays)

    def figures(self, drawn: Floats) -> Floats:
        """Return `METRICS` and the IoU of each class, (R, 4 + K); nan without it. drawn: (R, n) draws of each."""
        intersections, predicted, labelled = (
            drawn @ part.astype(np.float64) for part in (self.intersections, self.predicted, self.labelled)
        )
        weights = self.labelled.sum(axis=1, dtype=np.int64)
        losses = np.where(weights > 0, self.nll * weights, 0.0)  # an image whose pixels are all ignored has no loss
        with np.errstate(invalid="ignore", divide="ignore"):
            pixels, ious = labelled.sum(axis=1), intersections / (predicted + labelled - intersections)
            right = intersections.sum(axis=1) / pixels
            means = (mean_known(ious), right, mean_known(intersections / labelled), drawn @ losses / pixels)
        return np.column_stack([*means, ious])

    @cached_property
    def seen(self) -> NDArray[np.int64]:
        """(K,): the number of images with each class in their prediction or truth."""
        counts: NDArray[np.int64] = np.count_nonzero((self.predicted > 0) | (self.labelled > 0), axis=0)
        return counts

    def groups_with(self, place: int) -> int:
        """Return in how many groups the images with a class are; 0 where images stand for themselves."""
        mine = (self.predicted[:, place] > 0) | (self.labelled[:, place] > 0)
        return 0 if self.groups is None else len({*self.groups.codes[mine].tolist()})

    @property
    def accuracies(self) -> Floats:
        """The share of pixels that are right, of each image; nan without any that counts. (n,)"""
        pixels = self.labelled.sum(axis=1).astype(np.float64)
        accuracies: Floats = self.intersections.sum(axis=1) / np.where(pixels > 0, pixels, np.nan)
        return accuracies

    @cached_property
    def values(self) -> Floats:
        return np.asarray(self.figures(np.ones((1, len(self.ids))))[0])

    @cached_property
    def groups(self) -> Groups | None:
        """The groups of the images, which are resampled as a whole; None where each stands for itself."""
        return None if self.sample_groups is None else self.sample_groups.of(self.ids)

    @property
    def units(self) -> int:
        """How many images, or groups of them, are independent."""
        return len(self.ids) if self.groups is None else self.groups.count

    @cached_property
    def effects(self) -> Floats:
        """(4 + K,): the design effect of each figure; nan where images are independent."""
        if self.groups is None:
            return np.full(len(self.values), math.nan)
        every = (resampled_figures(self.figures, len(self.ids), groups) for groups in (self.groups, None))
        together, alone = (np.array([_variance(column) for column in drawn.T]) for drawn in every)
        effects: Floats = np.divide(together, alone, out=np.full(len(alone), math.nan), where=alone > 0)
        return effects

    @cached_property
    def _resampled(self) -> tuple[Floats, list[tuple[float, float]]]:
        every = resampled_figures(self.figures, len(self.ids), self.groups)
        values, effective = self.values.tolist(), effective_units(self.groups, len(self.ids))
        ends = [bootstrap_ends(column, effective, value) for column, value in zip(every.T, values, strict=True)]
        return every[:, : len(METRICS)].copy(), ends

    def figure(self, value: float, n: int, ends: tuple[float, float], effect: float = math.nan) -> Figure:
        """Return a figure of the images, or of the n that have it, with an interval by the bootstrap."""
        return Figure(value, n, *ends, BOOTSTRAP, groups=self.groups.count if self.groups else 0, effect=effect)

    @property
    def resampled(self) -> Floats:
        """(R, 4): `METRICS` of resampled images, with the same draws for all counts of as many images."""
        return self._resampled[0]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """(4 + K): the intervals of the figures of all images."""
        return self._resampled[1]


def weighted_mean(parts: Iterable[tuple[float, Any]]) -> tuple[int, Floats, Floats]:
    """Return n, `values` (4 + K,) and `resampled` (R, 4) of a weighted mean of counts, read one after the other."""
    weighted = ((len(counts.ids), weight * counts.values, weight * counts.resampled) for weight, counts in parts)
    return reduce(lambda total, part: (part[0], total[1] + part[1], total[2] + part[2]), weighted)


def bootstrap_ends(resampled: Floats, n: float, value: float) -> tuple[float, float]:
    """Return the 95 % interval of a figure of n images from (R,) resamples that have it; it contains `value`."""
    finite = resampled[np.isfinite(resampled)]
    if not len(finite):  # so it is where the figure itself is not finite
        return NO_INTERVAL
    low, high = np.percentile(finite, percentiles(n))
    return include_estimate(value, float(low), float(high))


def _variance(resampled: Floats) -> float:
    finite = resampled[np.isfinite(resampled)]
    return float(finite.var()) if len(finite) else math.nan


def is_biased(value: float, resampled: Floats) -> bool:
    """Whether the bootstrap's bias matters (Efron and Tibshirani 1993, 10.3), as classes in few images cause it."""
    finite = resampled[np.isfinite(resampled)]
    return len(finite) > 0 and bool(abs(finite.mean() - value) > max(0.25 * finite.std(), 1e-9))


def mean_known(figures: Floats) -> Floats:
    present = ~np.isnan(figures)
    means: Floats = np.where(present, figures, 0).sum(axis=1) / present.sum(axis=1)
    return means
