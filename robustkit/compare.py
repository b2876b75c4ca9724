"""Two checkpoints on the same samples: differences with intervals that know of the pairing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .corrupting import parse_corrupted
from .corruption_metrics import conditions_of
from .errors import RunError
from .intervals import Floats, Z, bootstrap
from .map_metrics import FEWEST, PLAIN, parts_of
from .scene_metrics import COLUMNS as SCENE_COLUMNS
from .scene_metrics import METRICS as SCENE_METRICS
from .scene_metrics import Counts, averaged, common_ids, shares_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from .records import Run

COLUMNS = {"top1": "correct", "top5": "top5", "nll": "nll"}
COLUMN_OF = {metric: column for column, metric in PLAIN.items()}


@dataclass(frozen=True)
class Difference:
    """The second checkpoint's figure minus the first's, over the n samples that both have.

    ci_low, ci_high: 95 %, by drawing samples anew, each with both of its outcomes; of a few samples it is too narrow.
    p_value: two-sided, of no difference: McNemar's exact test for right against wrong, else the normal approximation;
    for figures of a whole data set with the standard error of samples drawn anew.
    """

    value: float
    n: int
    ci_low: float
    ci_high: float
    p_value: float


@dataclass(frozen=True)
class Side:
    """A checkpoint of a run."""

    run: Run
    checkpoint: str

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        """Its rows under a condition. RunError where there are none."""
        return self.run.table(self.checkpoint, condition, columns)


def paired_difference(first: Side, second: Side, condition: str, metric: str = "top1") -> Difference:
    """How `second` differs from `first` under a condition that both runs name alike.

    Whether the two runs may be compared (same protocol, seed, labels) is for the caller to say.

    metric: top1, top5 or nll; mean_error of a set of corruptions, with `in-c(preset=cifar)` as condition; a score of
    maps that is a mean over samples, with `cam(agcam,mode=box)` or `stability(…)` as condition, of samples whose clean
    images both predict right; of segmentation miou, pixel_accuracy or mean_accuracy, of a condition or a mean over
    corruptions. Infinite losses (logits that are not finite) make a difference of losses nan.

    Raises:
        RunError: the records of one of them are missing, or they have no sample in common.
    """
    if metric in SCENE_METRICS[:3]:
        return _scene_difference(first, second, condition, metric)
    pairs = _figures(first, condition, metric).to_frame("first")
    pairs = pairs.join(_figures(second, condition, metric).rename("second"), how="inner")
    if not len(pairs):
        raise _nothing_common(first, second, condition)
    with np.errstate(invalid="ignore"):
        differences: Floats = (pairs["second"] - pairs["first"]).to_numpy(dtype=np.float64)
    n = len(differences)
    if not np.isfinite(differences).all():
        return Difference(math.nan, n, math.nan, math.nan, math.nan)
    ((low, high),) = bootstrap(lambda counts: counts @ differences / n, n)
    return Difference(float(differences.mean()), n, low, high, _p_value(differences, binary=metric in ("top1", "top5")))


def scene_difference(
    first: Iterable[tuple[float, Counts]], second: Iterable[tuple[float, Counts]], metric: str = "miou"
) -> Difference:
    """How the second's figure of a data set differs from the first's.

    first, second: shares and counts of the conditions that the figure is a mean over, all of the same images; of one
    condition `[(1.0, counts)]`. They need not be held together. metric: miou, pixel_accuracy, mean_accuracy or nll.
    Interval and p-value are of the normal approximation, with the standard error of images drawn anew; of fewer than 10
    images there is neither.
    """
    place = SCENE_METRICS.index(metric)
    (n, before, drawn_before), (_, after, drawn_after) = averaged(first), averaged(second)
    with np.errstate(invalid="ignore"):
        value, drawn = float(after[place] - before[place]), drawn_after[:, place] - drawn_before[:, place]
    if not math.isfinite(value):
        return Difference(math.nan, n, math.nan, math.nan, math.nan)
    if n < FEWEST:
        return Difference(value, n, math.nan, math.nan, math.nan)
    error = float(drawn[np.isfinite(drawn)].std(ddof=1))
    p_value = _of_normal(value, error) if value or error else 1.0
    return Difference(value, n, value - Z * error, value + Z * error, p_value)


def _scene_difference(first: Side, second: Side, condition: str, metric: str) -> Difference:
    shares = shares_of(condition)
    read = [side.table(text, ["sample_id", "error"]) for side in (first, second) for text in shares]
    ids = common_ids([table.filter(table["error"].is_null())["sample_id"].combine_chunks() for table in read])
    if not len(ids):
        raise _nothing_common(first, second, condition)

    def parts(side: Side) -> Iterator[tuple[float, Counts]]:
        for text, share in shares.items():
            yield share, Counts.of(side.table(text, list(SCENE_COLUMNS)), ()).of_samples(ids)

    return scene_difference(parts(first), parts(second), metric)


def _nothing_common(first: Side, second: Side, condition: str) -> RunError:
    return RunError(
        f"{second.run.path}: {first.checkpoint} and {second.checkpoint} have no sample in common under {condition}; "
        "audit both again"
    )


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


def _figures(side: Side, condition: str, metric: str) -> pd.Series[float]:
    """A figure for each sample that could be read, by its id, in the order of the ids."""
    if (parts := parts_of(condition)) is not None:
        explained, mode = parts
        column = f"{mode}_{metric.removeprefix('cam_')}" if mode else COLUMN_OF.get(metric, metric)
        figures = _column(side, explained.text, column)
        right = _column(side, explained.text, "clean_correct" if explained.under else "correct")
        return figures[right == 1].dropna()
    if metric != "mean_error":
        return _column(side, condition, COLUMNS[metric])
    texts = conditions_of(condition)
    names = [part.name for part in map(parse_corrupted, texts) if part is not None]
    of_one = Counter(names)
    errors = [
        (1 - _column(side, text, "correct")) / len(of_one) / of_one[name]
        for text, name in zip(texts, names, strict=True)
    ]
    return sum(errors[1:], errors[0]).dropna()  # a sample that one condition lacks is nan there


def _column(side: Side, condition: str, name: str) -> pd.Series[float]:
    table = side.table(condition, ["sample_id", name, "error"]).to_pandas()
    return table[table["error"].isna()].set_index("sample_id")[name].astype(np.float64).sort_index()
