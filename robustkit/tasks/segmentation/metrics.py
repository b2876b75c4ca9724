"""Label maps into counts, and counts into results: mIoU, accuracies and NLL, per class and as means over corruptions.

All figures are of the data set: a class's IoU is the sum of its intersections over the sum of its unions. So a figure
of images drawn anew is that of weighted sums, and the bootstrap a matrix product.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...common.intervals import (
    Floats,
    enclosing,
    resampled_figures,
)
from ...errors import DataError, ModelError
from ...evaluations.corruptions.condition import parse_corrupted
from ...evaluations.corruptions.shares import means_of_shares, shares_of
from ...evaluations.rows import FEWEST, Parts, Reading, Row
from ...evaluations.vocabulary import kind_of, vocabulary_of

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int32]

METRICS = ("miou", "pixel_accuracy", "mean_accuracy", "nll")
COLUMNS = ("sample_id", "intersections", "predicted", "labelled", "nll", "linf", "l2", "error")
"""What of a record `Counts.of` reads."""
LEFT_OUT = "left out of the mean"  # in flags of single conditions that a mean's flags repeat
BIASED = "classes in few images bias its interval by over a quarter of a standard error; evaluate more images"
_NONE = (math.nan, math.nan)
_NAMED = 5  # classes that a flag names


def class_counts(predictions: Tensor, truth: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels predicted right, predicted as, and labelled as each class: three (B, K) int64 tensors on the same device.

    predictions, truth: (B, H, W) integers. Pixels whose truth is negative are ignored; a negative prediction is of no
    class, and wrong.

    Raises:
        DataError: a label is no class. ModelError: a prediction is none, or is not of the truth's shape.
    """
    if predictions.shape != truth.shape or truth.dim() != 3:
        shapes = f"{tuple(predictions.shape)} and {tuple(truth.shape)}"
        raise ModelError(f"predictions and truth of shapes {shapes}; expected (B, H, W) of both")
    counted = truth >= 0
    labels, found = truth[counted], predictions[counted]
    for what, given, fault, otherwise in (
        ("label", labels, DataError, "a negative number where the pixel is ignored"),
        ("prediction", found, ModelError, "a negative number for none"),
    ):
        if len(given) and (largest := int(given.max())) >= classes:
            raise fault(f"{what} {largest}: expected a class from 0 to {classes - 1}, or {otherwise}")
    images = len(truth)
    first = (torch.arange(images, device=truth.device) * classes).view(-1, 1, 1).expand_as(truth)[counted]

    def tally(bins: Tensor) -> Tensor:
        return torch.bincount(bins, minlength=images * classes).view(images, classes)

    return tally((first + labels)[labels == found]), tally((first + found)[found >= 0]), tally(first + labels)


@dataclass(frozen=True)
class Counts:
    """What a checkpoint did under one condition, a row for each image that was read, in the order of their ids.

    ids: (n,) strings. intersections, predicted, labelled: (n, K) pixels, together 3.6 MB for 2000 images and 150
    classes. nll: (n,) means over an image's pixels. flags: of the condition. largest: perturbation in each norm.
    """

    ids: pa.Array
    intersections: Ints
    predicted: Ints
    labelled: Ints
    nll: Floats
    flags: tuple[str, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pa.Table, flags: Sequence[str]) -> Counts:
        """From the records of a condition, with at least `COLUMNS`; those with an error are left out."""
        import pyarrow.compute as pc

        read = table.filter(table["error"].is_null()).sort_by("sample_id")
        intersections, predicted, labelled = (_per_class(read, name) for name in COLUMNS[1:4])
        nll = read["nll"].to_numpy(zero_copy_only=False).astype(np.float64)
        largest = {norm: pc.max(read[norm]).as_py() or 0.0 for norm in ("linf", "l2")}
        ids = read["sample_id"].combine_chunks()
        return cls(ids, intersections, predicted, labelled, nll, tuple(flags), largest)

    def of_samples(self, ids: pa.Array) -> Counts:
        """Those of the images with these ids, in the order of all."""
        if self.ids.equals(ids):
            return self
        import pyarrow.compute as pc

        rows = np.flatnonzero(pc.is_in(self.ids, value_set=ids).to_numpy(zero_copy_only=False))
        arrays = {name: getattr(self, name)[rows] for name in ("intersections", "predicted", "labelled", "nll")}
        return replace(self, ids=self.ids.take(rows), **arrays)

    def of_classes(self, judged: Sequence[int]) -> Counts:
        """Those of some of the classes; the others have no pixels."""
        if not len(self.ids):
            return self
        arrays = {name: getattr(self, name)[:, judged] for name in ("intersections", "predicted", "labelled")}
        return replace(self, **arrays)

    def figures(self, drawn: Floats) -> Floats:
        """From how often each image counts, (R, n): `METRICS` and the IoU of each class, (R, 4 + K); nan without it."""
        intersections, predicted, labelled = (
            drawn @ part.astype(np.float64) for part in (self.intersections, self.predicted, self.labelled)
        )
        own = self.labelled.sum(axis=1, dtype=np.int64)
        losses = np.where(own > 0, self.nll * own, 0.0)  # an image whose pixels are all ignored has no loss
        with np.errstate(invalid="ignore", divide="ignore"):
            pixels, ious = labelled.sum(axis=1), intersections / (predicted + labelled - intersections)
            right = intersections.sum(axis=1) / pixels
            means = (_mean_known(ious), right, _mean_known(intersections / labelled), drawn @ losses / pixels)
        return np.column_stack([*means, ious])

    @cached_property
    def seen(self) -> NDArray[np.int64]:
        """(K,) images in whose prediction or truth each class is."""
        counts: NDArray[np.int64] = np.count_nonzero((self.predicted > 0) | (self.labelled > 0), axis=0)
        return counts

    @cached_property
    def values(self) -> Floats:
        """(4 + K,): the figures of all images."""
        figures: Floats = self.figures(np.ones((1, len(self.ids))))[0]
        return figures

    @cached_property
    def _resampled(self) -> tuple[Floats, list[tuple[float, float]]]:
        every = resampled_figures(self.figures, len(self.ids))
        ends = [interval(column, value) for column, value in zip(every.T, self.values.tolist(), strict=True)]
        return every[:, : len(METRICS)].copy(), ends

    @property
    def resampled(self) -> Floats:
        """(R, 4): `METRICS` of images drawn anew; of the same draws for all counts of as many images."""
        return self._resampled[0]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """(4 + K): of the figures of all images."""
        return self._resampled[1]


def averaged(parts: Iterable[tuple[float, Counts]]) -> tuple[int, Floats, Floats]:
    """The number of images, `values` (4 + K,) and `resampled` (R, 4) of a weighted mean over conditions of the same.

    parts: weights and counts, which need not be held together.
    """
    weighted = ((len(one.ids), weight * one.values, weight * one.resampled) for weight, one in parts)
    return reduce(lambda total, part: (part[0], total[1] + part[1], total[2] + part[2]), weighted)


def interval(resampled: Floats, value: float) -> tuple[float, float]:
    """The percentile 95 % interval of a figure from (R,) resamples, those without the figure left out; it holds the
    value of the samples themselves.
    """
    known = resampled[np.isfinite(resampled)]
    if not len(known):  # so it is where the figure itself is not finite
        return _NONE
    low, high = np.percentile(known, [2.5, 97.5])
    return enclosing(value, float(low), float(high))


def biased(value: float, resampled: Floats) -> bool:
    """Whether resamples are off by what cannot be ignored on average (Efron and Tibshirani 1993, section 10.3).

    Classes that are in few images do that to a mean over classes. Where they are many, a 95 % interval covers far less.
    """
    known = resampled[np.isfinite(resampled)]
    return len(known) > 0 and bool(abs(known.mean() - value) > max(0.25 * known.std(), 1e-9))


def scene_rows(condition: str, counts: Counts, names: Sequence[str]) -> Iterator[Row]:
    """Condition, metric, value, n, interval and flags of every figure of one condition.

    `iou(pole)` is given of each class that is in prediction or truth of some image; n is the number of those. As of all
    scores of maps, there is no interval of a few. names: of the K classes.
    """
    n = len(counts.ids)
    if n == 0:
        return
    flags, notes = list(counts.flags), _notes([counts], names)
    values = counts.values.tolist()
    for place, metric in enumerate(METRICS):
        bounds = counts.intervals[place] if n >= FEWEST else _NONE
        told = [BIASED] * (n >= FEWEST and biased(values[place], counts.resampled[:, place]))
        yield condition, metric, values[place], n, *bounds, [*flags, *notes.get(metric, []), *told]
    for place, (name, seen) in enumerate(zip(_distinct(names), counts.seen.tolist(), strict=True), len(METRICS)):
        if seen:
            bounds = counts.intervals[place] if seen >= FEWEST else _NONE
            yield condition, f"iou({name})", values[place], seen, *bounds, flags
    for norm, largest in counts.largest.items():
        if largest > 0:
            yield condition, f"{norm}_max", largest, n, *_NONE, flags


def scene_mean_rows(found: Mapping[str, Counts], expected: int, names: Sequence[str]) -> Iterator[Row]:
    """Condition, metric, value, n, interval and flags of every mean that the conditions of one checkpoint allow.

    Of each corruption at the severities that some set has of it, and of each set: `METRICS`, means over severities and
    then over corruptions; `retention`, that mIoU over the clean one; of sets also the IoU of each class, without an
    interval. Only images count that could be read under all of its conditions, and clean; without any, there is none.

    found: by the text of the condition, `clean` among them if it was evaluated. expected: images of the data set.
    """
    parts = [part for text in found if (part := parse_corrupted(text)) is not None]
    for example in {part.definition: part for part in parts}.values():
        own = [(part.name, part.severity) for part in parts if part.definition == example.definition]
        for mean in means_of_shares(example, own):
            shares = shares_of(mean)
            if all(text in found for text in shares):
                texts = [*shares, *(["clean"] if "clean" in found else [])]
                yield from _mean(mean, shares, {text: found[text] for text in texts}, expected, names)


def _mean(
    mean: str, shares: Mapping[str, float], found: Mapping[str, Counts], expected: int, names: Sequence[str]
) -> Iterator[Row]:
    ids = common_ids([counts.ids for counts in found.values()])
    n, same = len(ids), {text: counts.of_samples(ids) for text, counts in found.items()}
    if n == 0:
        return
    own, clean = [same[text] for text in shares], same.get("clean")
    lack = f"{expected - n} of {expected} samples lack some of its conditions; left out"
    flags = _merged(own) + [lack] * (n < expected)
    _, values, resampled = averaged(zip(shares.values(), own, strict=True))
    figures = {metric: (values[place], resampled[:, place]) for place, metric in enumerate(METRICS)}
    notes = _notes(own, names)
    if clean is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            figures["retention"] = values[0] / clean.values[0], resampled[:, 0] / clean.resampled[:, 0]
        notes["retention"] = [flag for flag in _merged([clean]) if flag not in flags]
        notes["retention"] += _notes([*own, clean], names)["miou"]
    for metric, (value, drawn) in figures.items():
        bounds = interval(drawn, float(value)) if n >= FEWEST else _NONE
        told = [BIASED] * (n >= FEWEST and biased(value, drawn))
        yield mean, metric, float(value), n, *bounds, [*flags, *notes.get(metric, []), *told]
    if mean.startswith("corruption("):
        return
    fewest = np.min([counts.seen for counts in own], axis=0).tolist()
    for name, iou, seen in zip(_distinct(names), values[len(METRICS) :].tolist(), fewest, strict=True):
        if seen:
            yield mean, f"iou({name})", iou, seen, *_NONE, flags


def common_ids(ids: Sequence[pa.Array]) -> pa.Array:
    """The ids that are in all of these, in the order of the first."""
    import pyarrow.compute as pc

    return reduce(lambda kept, other: kept if kept.equals(other) else kept.filter(pc.is_in(kept, value_set=other)), ids)


def _merged(conditions: Sequence[Counts]) -> list[str]:
    """The flags of conditions, each once; but for images that are lacking, which are counted over all of them."""
    every = dict.fromkeys(flag for counts in conditions for flag in counts.flags)
    return [flag for flag in every if not flag.startswith("incomplete") and "could not be read" not in flag]


def _notes(conditions: Sequence[Counts], names: Sequence[str]) -> dict[str, list[str]]:
    """By metric, which classes its means over classes leave out, under all of the conditions or under some."""
    absent = np.sum([counts.seen == 0 for counts in conditions], axis=0)
    unlabelled, where = conditions[0].labelled.max(axis=0) == 0, "in neither prediction nor truth"
    sometimes = _naming((absent > 0) & (absent < len(conditions)), names, f"{where} under some of its conditions")
    return {
        "miou": _naming(absent == len(conditions), names, where) + sometimes,
        "mean_accuracy": _naming(unlabelled, names, "without labelled pixels"),
    }


def _naming(which: NDArray[np.bool_], names: Sequence[str], where: str) -> list[str]:
    """`2 of 11 classes are in neither prediction nor truth, left out of the mean: pole, sign`; nothing of none."""
    said = [name for name, yes in zip(_distinct(names), which.tolist(), strict=True) if yes]
    if not said:
        return []
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    verb = "is" if len(said) == 1 else "are"
    return [f"{len(said)} of {len(names)} classes {verb} {where}, {LEFT_OUT}: {', '.join(said[:_NAMED])}{more}"]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with the number of the class where several have the same."""
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} {place}" for place, name in enumerate(names)]


def _mean_known(figures: Floats) -> Floats:
    """(R, K) to (R,): over what is not nan."""
    known = ~np.isnan(figures)
    means: Floats = np.where(known, figures, 0).sum(axis=1) / known.sum(axis=1)
    return means


def _per_class(read: pa.Table, name: str) -> Any:
    values = read[name].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.int32)
    return values.reshape(len(read), len(values) // max(len(read), 1))


def segmentation_rows(reading: Reading, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint: of single conditions, and of means over corruptions."""
    data = reading.manifest.data
    every, expected = data.class_names, data.n
    judged = [place for place in range(len(every)) if place not in (data.unjudged or ())]
    names = [every[place] for place in judged]
    rows: list[dict[str, Any]] = []
    found: dict[str, Counts] = {}
    for condition in conditions:
        table, _ = reading.joined(reading.shards(condition, COLUMNS))
        counts = Counts.of(table, reading.flags(condition, table)).of_classes(judged)
        rows += reading.rows(scene_rows(condition, counts, names))
        if vocabulary_of(kind_of(condition)).in_means:
            found[condition] = counts
    return rows, reading.rows(scene_mean_rows(found, expected, names)), []
