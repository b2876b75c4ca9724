"""Two checkpoints on the same samples: differences with intervals that know of the pairing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.intervals import Floats, Z, bootstrap
from ..errors import RunError, unknown
from ..evaluations.attention.condition import under_of
from ..evaluations.attention.layer import METRICS as OF_ATTENTION
from ..evaluations.corruptions.shares import shares_of
from ..evaluations.maps.condition import PLAIN, SCORES, parts_of
from ..evaluations.maps.measures import STABILITY
from ..evaluations.rows import FEWEST
from ..tasks.measures import METRICS
from ..tasks.segmentation.metrics import COLUMNS as SCENE_COLUMNS
from ..tasks.segmentation.metrics import METRICS as SCENE_METRICS
from ..tasks.segmentation.metrics import Counts, common_ids

if TYPE_CHECKING:
    import pyarrow as pa

    from ..runs.folder import RunFolder
    from ..runs.manifest import CheckpointEntry, Manifest

COLUMNS = {"top1": "correct", "top5": "top5", "nll": "nll"}
_IDENTITY = ("sha256", "arch", "code_sha256", "attention", "preprocessing", "weights", "windows")
COLUMN_OF = {metric: column for column, metric in PLAIN.items()}


@dataclass(frozen=True)
class Difference:
    """The second checkpoint's figure minus the first's, over the n samples that both have.

    ci_low, ci_high: 95 %, by drawing samples anew, each with both of its outcomes; of a few samples it is too narrow.
    p_value: two-sided, of no difference: McNemar's exact test for right against wrong, else the normal approximation;
    for figures of a whole data set with the standard error of samples drawn anew.
    first, second: the two figures, of the same n samples.
    """

    value: float
    n: int
    ci_low: float
    ci_high: float
    p_value: float
    first: float = math.nan
    second: float = math.nan


@dataclass(frozen=True)
class Samples:
    """What was read of a record: (n,) ids in their order, and (n,) figures by column; samples with an error are not."""

    ids: pa.Array
    columns: Mapping[str, Floats]

    def of(self, name: str, ids: pa.Array) -> Floats:
        """A column of the samples with these ids, all of which are there."""
        return _aligned(self.ids, self.columns[name], ids)


@dataclass(frozen=True)
class Scenes:
    """What was read of a record of scenes: (n,) ids, (4 + K,) figures and (R, 4) of images drawn anew (`Counts`)."""

    ids: pa.Array
    values: Floats
    resampled: Floats

    @classmethod
    def of(cls, counts: Counts) -> Scenes:
        if not len(counts.ids):
            return cls(counts.ids, np.empty(0), np.empty((0, 0)))
        return cls(counts.ids, counts.values, counts.resampled)


@dataclass(frozen=True)
class Side:
    """A checkpoint of a run. What was read of its records is kept, so that each is read once."""

    run: RunFolder
    checkpoint: str
    _samples: dict[str, Samples] = field(default_factory=dict, init=False, repr=False, compare=False)
    _scenes: dict[str, Scenes] = field(default_factory=dict, init=False, repr=False, compare=False)
    _absent: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _ids: dict[str, pa.Array] = field(default_factory=dict, init=False, repr=False, compare=False)
    _order: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        """Its run's run.json."""
        return self.run.manifest

    @cached_property
    def described(self) -> CheckpointEntry:
        """The checkpoint as run.json has it."""
        return self.manifest.checkpoint(self.checkpoint)

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """Its rows of summary.json, from the records where that is not there or not what was written."""
        from .summary import summarise  # which needs torch

        try:
            rows = self.run.summary()
        except RunError:
            rows = summarise(self.run)
        return [row for row in rows if row["checkpoint"] == self.checkpoint]

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Those that it has records of, in the order of the run."""
        return tuple(condition for name, condition in self.run.units() if name == self.checkpoint)

    def forget(self) -> None:
        """Let go of what was read."""
        for kept in (self._samples, self._absent, self._scenes, self._ids, self._order):
            kept.clear()

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        """Its rows under a condition. RunError where there are none."""
        return self.run.table(self.checkpoint, condition, columns)

    def samples(self, condition: str, columns: Sequence[str]) -> Samples:
        """At least these columns under a condition.

        Raises:
            RunError: there are no records, or they lack a column.
        """
        kept, absent = self._samples.get(condition), self._absent.setdefault(condition, set())
        wanted = dict.fromkeys(columns)
        missing = [name for name in wanted if name not in absent and (kept is None or name not in kept.columns)]
        if missing or kept is None:
            table = self.table(condition, ["sample_id", *missing, "error"])
            absent.update(name for name in missing if name not in table.column_names)
            table = table.filter(table["error"].is_null())
            ids, order = self._sorted(table["sample_id"].combine_chunks())
            there = [name for name in missing if name not in absent]
            read = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)[order] for name in there}
            kept = self._samples[condition] = Samples(ids, read if kept is None else {**kept.columns, **read})
        if lacking := [name for name in wanted if name in absent]:
            raise RunError(
                f"{self.run.path}: the records of {self.checkpoint} under {condition} have no {', '.join(lacking)}; "
                "compare another figure, or run the audit again with it"
            )
        return kept

    def scene_ids(self, condition: str) -> pa.Array:
        """The images that could be read under a condition, in their order. RunError without records."""
        if condition not in self._ids:
            self._scenes[condition] = Scenes.of(self._counts(condition))
            self._ids[condition] = self._scenes[condition].ids
        return self._ids[condition]

    def scenes(self, condition: str, ids: pa.Array) -> Scenes:
        """Figures under a condition of the images with these ids, all of which are there."""
        kept = self._scenes.get(condition)
        if kept is None or not kept.ids.equals(ids):
            kept = self._scenes[condition] = Scenes.of(self._counts(condition).of_samples(ids))
        return kept

    def _counts(self, condition: str) -> Counts:
        return Counts.of(self.table(condition, list(SCENE_COLUMNS)), ())

    def _sorted(self, ids: pa.Array) -> tuple[pa.Array, Any]:
        """The ids in their order, and the places they had; conditions mostly share both."""
        import pyarrow.compute as pc

        if not (self._order and self._order[0].equals(ids)):
            order = pc.sort_indices(ids).to_numpy()
            self._order[:] = [ids, ids.take(order), order]
        return self._order[1], self._order[2]


def paired_difference(first: Side, second: Side, condition: str, metric: str = "top1") -> Difference:
    """How `second` differs from `first` under a condition that both runs name alike.

    Whether the two runs may be compared (same protocol, seed, labels) is for the caller to say.

    metric: top1, top5 or nll; mean_error of a set of corruptions, with `in-c(preset=cifar)` as condition; a score of
    maps that is a mean over samples, with `cam(agcam,mode=box)` or `stability(…)` as condition, of samples whose clean
    images both predict right; of `attention(…)` a figure of `attention_metrics.METRICS`; of segmentation miou,
    pixel_accuracy or mean_accuracy, of a condition or a mean over corruptions. Infinite losses (logits that are not
    finite) make a difference of losses nan.

    Raises:
        RunError: the records of one of them are missing, they have no sample in common, or there is no such metric.
    """
    if metric in SCENE_METRICS[:3]:
        return _scene_difference(first, second, condition, metric)
    (own_ids, own), (other_ids, other) = (_figures(side, condition, metric) for side in (first, second))
    ids = common_ids([own_ids, other_ids])
    n = len(ids)
    if not n:
        raise nothing_common(first, second, condition)
    before, after = _aligned(own_ids, own, ids), _aligned(other_ids, other, ids)
    with np.errstate(invalid="ignore"):
        differences: Floats = after - before
        means = float(before.mean()), float(after.mean())
    if not np.isfinite(differences).all():
        return Difference(math.nan, n, math.nan, math.nan, math.nan, *means)
    value = float(differences.mean())
    ((low, high),) = bootstrap(lambda counts: counts @ differences / n, n, [value])
    p_value = _p_value(differences, binary=METRICS[metric].binary)
    return Difference(value, n, low, high, p_value, *means)


def scene_difference(
    first: Iterable[tuple[float, Counts | Scenes]],
    second: Iterable[tuple[float, Counts | Scenes]],
    metric: str = "miou",
) -> Difference:
    """How the second's figure of a data set differs from the first's.

    first, second: shares and counts of the conditions that the figure is a mean over, all of the same images; of one
    condition `[(1.0, counts)]`. They need not be held together. metric: miou, pixel_accuracy, mean_accuracy or nll.
    Interval and p-value are of the normal approximation, with the standard error of images drawn anew; of fewer than 10
    images there is neither.
    """
    place = SCENE_METRICS.index(metric)
    (n, before, drawn_before), (_, after, drawn_after) = _averaged(first, place), _averaged(second, place)
    with np.errstate(invalid="ignore"):
        value, drawn = after - before, drawn_after - drawn_before
    if not math.isfinite(value):
        return Difference(math.nan, n, math.nan, math.nan, math.nan, before, after)
    if n < FEWEST:
        return Difference(value, n, math.nan, math.nan, math.nan, before, after)
    error = float(drawn[np.isfinite(drawn)].std(ddof=1))
    p_value = _of_normal(value, error) if value or error else 1.0
    return Difference(value, n, value - Z * error, value + Z * error, p_value, before, after)


def _averaged(parts: Iterable[tuple[float, Counts | Scenes]], place: int) -> tuple[int, float, Floats]:
    """The number of images, the figure and that of each resample, (R,), of a weighted mean over conditions."""
    n, value, drawn = 0, 0.0, np.zeros(1)
    for weight, one in parts:
        n, value = len(one.ids), value + weight * float(one.values[place])
        drawn = drawn + weight * one.resampled[:, place]
    return n, value, drawn


def _scene_difference(first: Side, second: Side, condition: str, metric: str) -> Difference:
    shares = shares_of(condition)
    ids = common_ids([side.scene_ids(text) for side in (first, second) for text in shares])
    if not len(ids):
        raise nothing_common(first, second, condition)
    before, after = ([(share, side.scenes(t, ids)) for t, share in shares.items()] for side in (first, second))
    return scene_difference(before, after, metric)


def lacking(side: Side, condition: str, metric: str = "") -> str:
    """Which records of a side a figure under a condition lacks, in words; empty where it lacks none."""
    parts, n = parts_of(condition), side.manifest.data.n
    texts = [parts[0].text] if parts is not None else [*shares_of(condition)]
    if metric in ("relative_mce", "retention"):
        texts.append("clean")
    elif metric.endswith("_change"):
        texts.append("attention(clean)")
    elif "over_control" in metric:
        texts += (text for text in side.manifest.conditions if text.startswith("cam("))
    for text in texts:
        if gone := side.run.lacking(side.checkpoint, text):
            return f"incomplete: {n - gone} of {n} samples under {text}; the same command goes on"
    return ""


def nothing_common(first: Side, second: Side, condition: str) -> RunError:
    """The error of two checkpoints whose records share no sample."""
    return RunError(
        f"{second.run.path}: {first.checkpoint} and {second.checkpoint} have no sample in common under {condition}; "
        "audit both again"
    )


def unseen(n: int) -> float:
    """How large a share may be, at 95 %, of what none of n samples shows (Clopper and Pearson 1934, two-sided)."""
    return float(1 - 0.025 ** (1 / max(n, 1)))


def widened(difference: Difference, metric: str) -> tuple[float, float]:
    """An interval that is not narrower than n samples allow: resampling only repeats the changes that were seen."""
    if METRICS[metric].binary:
        reach = unseen(difference.n)
        return min(difference.ci_low, difference.value - reach), max(difference.ci_high, difference.value + reach)
    if difference.ci_low == difference.ci_high:
        return math.nan, math.nan
    return difference.ci_low, difference.ci_high


def is_same_model(first: Side, second: Side) -> bool:
    """Whether both sides are one checkpoint, whose differences are 0 on any samples."""
    one, other = (side.described.to_plain() for side in (first, second))
    return all(one.get(key) == other.get(key) for key in _IDENTITY)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979), in their order; nan stays, and counts."""
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: (math.isnan(p_values[i]), p_values[i]))):
        if not math.isnan(p_values[place]):
            largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
            adjusted[place] = largest
    return adjusted


def _p_value(differences: Floats, binary: bool) -> float:
    if binary:
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        tail = ways = 1  # of k among those that changed, and of at most k
        for k in range(min(gained, lost)):
            ways = ways * (gained + lost - k) // (k + 1)
            tail += ways
        return float(min(1.0, 2 * tail / 2 ** (gained + lost)))
    if len(differences) < 2 or not differences.any():
        return 1.0
    return _of_normal(float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences)))


def _of_normal(value: float, error: float) -> float:
    return math.erfc(abs(value) / error / math.sqrt(2)) if error else 0.0


def map_columns(condition: str, metric: str) -> tuple[str, str, str]:
    """Of a score of maps: the condition of its records, its column, and that which says what was predicted right.

    Raises:
        RunError: it is no mean over samples.
    """
    parts = parts_of(condition)
    assert parts is not None
    explained, mode = parts
    if explained.under:
        known = [one.name for one in STABILITY]
    else:
        known = [f"cam_{name}" for name in SCORES] if mode else list(PLAIN.values())
    if metric not in known:
        raise RunError(unknown(f"figure of pairs under {condition}", metric, known))
    column = f"{mode}_{metric.removeprefix('cam_')}" if mode else COLUMN_OF.get(metric, metric)
    return explained.text, column, "clean_correct" if explained.under else "correct"


def _figures(side: Side, condition: str, metric: str) -> tuple[pa.Array, Floats]:
    """A figure for each sample that could be read: (n,) ids in their order, and (n,) figures."""
    if parts_of(condition) is not None:
        text, column, right = map_columns(condition, metric)
        read = side.samples(text, [column, right])
        figures = read.columns[column]
        kept = np.flatnonzero((read.columns[right] != 0) & ~np.isnan(figures))  # nan: without a label
        return read.ids.take(kept), figures[kept]
    if under_of(condition) is not None:
        if metric not in OF_ATTENTION:
            raise RunError(unknown(f"figure of pairs under {condition}", metric, OF_ATTENTION))
        read = side.samples(condition, [metric])
        return read.ids, read.columns[metric]
    if metric != "mean_error":
        if metric not in COLUMNS:
            raise RunError(unknown(f"figure of pairs under {condition}", metric, [*COLUMNS, "mean_error"]))
        read = side.samples(condition, [COLUMNS[metric]])
        return read.ids, read.columns[COLUMNS[metric]]
    shares = shares_of(condition)
    ids = common_ids([side.samples(text, ["correct"]).ids for text in shares])
    errors = np.zeros(len(ids))
    for text, share in shares.items():
        errors += share * (1 - side.samples(text, ["correct"]).of("correct", ids))
    return ids, errors


def _aligned(ids: pa.Array, values: Floats, wanted: pa.Array) -> Floats:
    """The values of the samples that are wanted, whose order is the same."""
    if ids.equals(wanted):
        return values
    import pyarrow.compute as pc

    chosen: Floats = values[pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)]
    return chosen
