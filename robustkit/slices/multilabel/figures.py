"""Truths and logits of images into figures of a data set: mAP, F1 of all labels together, and figures of each label.

None of them is a mean over images, so intervals come from resampled images, for which all figures are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import Floats, basic_ends, mean_of, resampled_figures, share_of
from ...errors import DamagedRecord
from ...evaluations.aggregate import column_of
from ...runs.metadata import SampleGroups
from ...tasks.segmentation.counts import mean_known
from .labels import HELD, UNKNOWN

if TYPE_CHECKING:
    import pyarrow as pa

FIGURES = ("map", "micro_f1", "macro_f1", "exact_match", "bce")
OF_LABELS = ("ap", "precision", "recall", "f1")
COLUMNS = ("sample_id", "labelled", "predicted", "logits", "correct", "bce", "linf", "l2", "error")
"""The columns of a record that `Outcomes.of` reads."""
OVER_LABELS = ("map", "macro_f1")  # means over labels
LEFT_OUT, LEFT_EARLY, RARE = "multilabel/label-left-out", "multilabel/left-early", "multilabel/rare-labels"
_NAMED = 5  # labels that a finding names

Bools = NDArray[np.bool_]


def average_precision(has: Bools, scores: Floats, drawn: Floats) -> Floats:
    """Return the average precision (R,) of images (n,) that have a label or not, by their scores, the first image i
    counted drawn[r, i] times; nan without an image that has it. Equal scores count together, as in scikit-learn."""
    order = np.argsort(-scores, kind="stable")
    ordered, positive = -scores[order], has[order]
    of_positive = ordered[positive]
    counts = drawn[:, order]
    weights = counts[:, positive]
    above = counts.cumsum(axis=1)[:, np.searchsorted(ordered, of_positive, side="right") - 1]
    hits = weights.cumsum(axis=1)[:, np.searchsorted(of_positive, of_positive, side="right") - 1]
    precision = np.divide(hits, above, out=np.zeros_like(above), where=above > 0)
    with np.errstate(invalid="ignore"):
        figures: Floats = (weights * precision).sum(axis=1) / weights.sum(axis=1)
    return figures


@dataclass(frozen=True)
class Outcomes:
    """What came out under one condition, a row per image read, sorted by id.

    truths: (n, K) of `labels.Truth`. logits: (n, K). predicted: (n, K) which labels are. correct: (n,) whether all
    known labels are right. bce: (n,).
    """

    ids: pa.Array
    truths: NDArray[np.int8]
    logits: Floats
    predicted: Bools
    correct: Floats
    bce: Floats
    flags: tuple[Finding, ...] = ()
    sample_groups: SampleGroups | None = None
    """The groups of the run's images."""

    @classmethod
    def of(cls, table: pa.Table, flags: Sequence[Finding] = (), sample_groups: SampleGroups | None = None) -> Outcomes:
        """Return the outcomes of records with at least `COLUMNS`; those with an error are left out. Raises
        DamagedRecord where images have unlike numbers of labels."""
        import pyarrow.compute as pc

        read = table.filter(table["error"].is_null()).sort_by("sample_id")
        lists = [read[name].combine_chunks() for name in COLUMNS[1:4]]
        lengths = {length for each in lists for length in pc.unique(pc.list_value_length(each)).to_pylist()}
        if len(lengths) > 1 or None in lengths:
            raise DamagedRecord("a record has images of unlike numbers of labels; delete it and run again")
        flat = (each.flatten().to_numpy(zero_copy_only=False) for each in lists)
        truths, predicted, logits = (values.reshape(len(read), -1 if len(read) else 0) for values in flat)
        correct, bce = (column_of(read, name) for name in ("correct", "bce"))
        ids = read["sample_id"].combine_chunks()
        wide = logits.astype(np.float64)
        return cls(ids, truths.astype(np.int8), wide, predicted == HELD, correct, bce, tuple(flags), sample_groups)

    def of_samples(self, ids: pa.Array) -> Outcomes:
        """Return the outcomes of the images with these ids, in the order of all."""
        if self.ids.equals(ids):
            return self
        import pyarrow.compute as pc

        rows = np.flatnonzero(pc.is_in(self.ids, value_set=ids).to_numpy(zero_copy_only=False))
        names = ("truths", "logits", "predicted", "correct", "bce")
        return replace(self, ids=self.ids.take(rows), **{name: getattr(self, name)[rows] for name in names})

    @property
    def positives(self) -> NDArray[np.int64]:
        """(K,): the images that have each label."""
        counts: NDArray[np.int64] = np.count_nonzero(self.truths == HELD, axis=0)
        return counts

    @property
    def right(self) -> Bools:
        """(n, K): whether each label is known, and predicted right."""
        right: Bools = (self.predicted == (self.truths == HELD)) & (self.truths != UNKNOWN)
        return right

    def figures(self, drawn: Floats) -> Floats:
        """Return `FIGURES`, then each of `OF_LABELS` for all labels, (R, 5 + 4 K); nan without it. drawn: (R, n) draws
        of each image. A logit that is not a number stands on the wrong side of all others."""
        is_known, has = self.truths != UNKNOWN, self.truths == HELD
        scores = np.where(np.isnan(self.logits), np.where(has, -np.inf, np.inf), self.logits)
        areas = [
            average_precision(has[is_known[:, k], k], scores[is_known[:, k], k], drawn[:, is_known[:, k]])
            for k in range(has.shape[1])
        ]
        parts = has & self.predicted, is_known & self.predicted, has
        hits, predicted, positives = (drawn @ part.astype(np.float64) for part in parts)
        n = drawn.sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            f1, precisions, recalls = 2 * hits / (predicted + positives), hits / predicted, hits / positives
            micro = 2 * hits.sum(axis=1) / (predicted + positives).sum(axis=1)
            ap = np.stack(areas, axis=1)
            macro = mean_known(np.where(positives > 0, f1, np.nan))
            means = mean_known(ap), micro, macro, drawn @ self.correct / n, drawn @ self.bce / n
        return np.column_stack([*means, ap, precisions, recalls, f1])

    @cached_property
    def values(self) -> Floats:
        return np.asarray(self.figures(np.ones((1, len(self.ids))))[0])

    @cached_property
    def groups(self) -> Groups | None:
        """The groups of the images, which are resampled as a whole; None where each stands for itself."""
        return None if self.sample_groups is None else self.sample_groups.of(self.ids)

    @cached_property
    def resampled(self) -> Floats:
        """(R, 5 + 4 K): the figures of resampled images, with the same draws for as many images."""
        return resampled_figures(self.figures, len(self.ids), self.groups)

    def figure(self, place: int, which: Bools | None = None) -> Figure:
        """Return one of `figures` with its interval by the bootstrap. which: (n,) images that it is of, None: all."""
        groups, n = self.groups, len(self.ids)
        if which is not None:
            groups, n = chosen_groups(groups, which), int(which.sum())
        value = float(self.values[place])
        ends = basic_ends(self.resampled[:, place], value, groups, n)
        return Figure(value, n, *ends, BOOTSTRAP, groups=groups.count if groups else 0)


def place_of(metric: str, names: Sequence[str]) -> int | None:
    """Return where `Outcomes.figures` has a metric, `ap(dog)` among them; None where it has not."""
    if metric in FIGURES:
        return FIGURES.index(metric)
    kind, _, label = metric.removesuffix(")").partition("(")
    if kind not in OF_LABELS or label not in names:
        return None
    return len(FIGURES) + OF_LABELS.index(kind) * len(names) + list(names).index(label)


def outcome_rows(condition: str, outcomes: Outcomes, names: Sequence[str], early: bool = False) -> Iterator[Figure]:
    """Yield the rows of one condition. Those of a label are of the images that have it, its precision of those where it
    is predicted: ten of them are needed for an interval. early: the attack turns one label of an image."""
    positives, flags = outcomes.positives.tolist(), list(outcomes.flags)
    left = [Finding.of(LEFT_EARLY)] if early else []
    yield share_of(outcomes.correct, outcomes.groups).of(condition, "exact_match", flags)
    with np.errstate(invalid="ignore"):
        yield mean_of(outcomes.bce, outcomes.groups).of(condition, "bce", [*flags, *left])
    for place, metric in enumerate(FIGURES[:3]):
        more = _of_means(positives, names) if metric in OVER_LABELS else []
        yield outcomes.figure(place).of(condition, metric, [*flags, *left, *more])
    for kind, word in enumerate(OF_LABELS):
        for label, name in enumerate(names):
            at = len(FIGURES) + kind * len(names) + label
            if positives[label] and np.isfinite(outcomes.values[at]):
                which = images_of(at, [outcomes], len(names))
                yield outcomes.figure(at, which).of(condition, f"{word}({name})", [*flags, *left])


def _of_means(positives: Sequence[int], names: Sequence[str]) -> list[Finding]:
    """Return what a mean over labels leaves out, and which of its labels few images have."""
    absent = [name for name, count in zip(names, positives, strict=True) if not count]
    rare, findings = sum(0 < count < FEWEST for count in positives), [_left_out(absent, names)] if absent else []
    return findings + ([Finding.of(RARE, count=rare, of=len(names) - len(absent))] if rare else [])


def _left_out(absent: Sequence[str], names: Sequence[str]) -> Finding:
    more = f" or {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    text = ", ".join(absent[:_NAMED]) + more
    return Finding.of(LEFT_OUT, left=len(names) - len(absent), labels=len(names), names=text)


def images_of(place: int, every: Sequence[Outcomes], labels: int) -> Bools:
    """Return which images (n,) a figure is of: all; of a label those that have it, for its precision those where one of
    the outcomes of the same images predicts it."""
    kind, label = divmod(place - len(FIGURES), labels)
    if place < len(FIGURES):
        return np.ones(len(every[0].ids), np.bool_)
    is_known, has = every[0].truths[:, label] != UNKNOWN, every[0].truths[:, label] == HELD
    predicted: Bools = np.any([each.predicted[:, label] for each in every], axis=0) & is_known
    return predicted if OF_LABELS[kind] == "precision" else has


def weighted(parts: Sequence[tuple[float, Outcomes]], place: int) -> tuple[float, Floats]:
    """Return a figure's mean over conditions, of the same images under each, and that of resampled images, (R,)."""
    value = sum(share * float(each.values[place]) for share, each in parts)
    return value, np.sum([share * each.resampled[:, place] for share, each in parts], axis=0)


def mean_rows(mean: str, parts: Sequence[tuple[float, Outcomes]], flags: Sequence[Finding]) -> Iterator[Figure]:
    """Yield the rows of a mean over conditions, of the same images under each."""
    first = parts[0][1]
    for place, metric in enumerate(FIGURES):
        value, drawn = weighted(parts, place)
        ends = basic_ends(drawn, value, first.groups, len(first.ids), math.inf if metric == "bce" else 1.0)
        count = first.groups.count if first.groups else 0
        yield Figure(value, len(first.ids), *ends, BOOTSTRAP, groups=count).of(mean, metric, flags)


def flip_shares(first: Outcomes, second: Outcomes, label: int | None = None) -> dict[str, Figure]:
    """Return the shares of images whose prediction changed from the first to the second, of the same images: of a
    label, where it is known, else of all labels together."""
    right, is_known = [each.correct == 1 for each in (first, second)], np.ones(len(first.ids), np.bool_)
    changed = (first.predicted != second.predicted).any(axis=1)
    if label is not None:
        is_known = first.truths[:, label] != UNKNOWN
        right = [each.right[is_known, label] for each in (first, second)]
        changed = right[0] != right[1]
    kinds = {"negative flips": right[0] & ~right[1], "positive flips": ~right[0] & right[1], "churn": changed}
    groups = chosen_groups(first.groups, is_known)
    return {kind: share_of(which, groups) for kind, which in kinds.items()}
