"""Two checkpoints of a run on the same samples: differences with intervals that know of the pairing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .corrupting import parse_corrupted
from .corruption_metrics import conditions_of
from .errors import RunError
from .intervals import Floats, bootstrap
from .map_metrics import PLAIN, parts_of

if TYPE_CHECKING:
    import pandas as pd

    from .records import Run

FEWEST = 30
COLUMNS = {"top1": "correct", "top5": "top5", "nll": "nll"}
COLUMN_OF = {metric: column for column, metric in PLAIN.items()}


@dataclass(frozen=True)
class Difference:
    """The second checkpoint's figure minus the first's, over the n samples that both have.

    ci_low, ci_high: 95 %, by drawing samples anew, each with both of its outcomes; of a few samples it is too narrow.
    """

    value: float
    n: int
    ci_low: float
    ci_high: float

    @property
    def sign(self) -> int:
        """1 or -1 where at least FEWEST samples and the interval leave no doubt, else 0."""
        return (self.ci_low > 0) - (self.ci_high < 0) if self.n >= FEWEST else 0


def paired_difference(run: Run, first: str, second: str, condition: str, metric: str = "top1") -> Difference:
    """How `second` differs from `first` under a condition of the run.

    first, second: names of checkpoints. metric: top1, top5 or nll; mean_error of a set of corruptions, with
    `in-c(preset=cifar)` as condition; a score of maps that is a mean over samples, with `cam(agcam,mode=box)` as
    condition (of samples that both predict right) or `stability(…)`. Infinite losses (logits that are not finite) make
    a difference of losses nan.

    Raises:
        RunError: the records of one of them are missing, or they have no sample in common.
    """
    pairs = _figures(run, first, condition, metric).to_frame("first")
    pairs = pairs.join(_figures(run, second, condition, metric).rename("second"), how="inner")
    if not len(pairs):
        raise RunError(f"{run.path}: {first} and {second} have no sample in common under {condition}; audit both again")
    with np.errstate(invalid="ignore"):
        differences: Floats = (pairs["second"] - pairs["first"]).to_numpy(dtype=np.float64)
    n = len(differences)
    if not np.isfinite(differences).all():
        return Difference(math.nan, n, math.nan, math.nan)
    ((low, high),) = bootstrap(lambda counts: counts @ differences / n, n)
    return Difference(float(differences.mean()), n, low, high)


def _figures(run: Run, checkpoint: str, condition: str, metric: str) -> pd.Series[float]:
    """A figure for each sample that could be read, by its id, in the order of the ids."""
    if (parts := parts_of(condition)) is not None:
        explained, mode = parts
        column = f"{mode}_{metric.removeprefix('cam_')}" if mode else COLUMN_OF.get(metric, metric)
        figures = _column(run, checkpoint, explained.text, column)
        if not explained.under:
            figures = figures[_column(run, checkpoint, explained.text, "correct") == 1]
        return figures.dropna()
    if metric != "mean_error":
        return _column(run, checkpoint, condition, COLUMNS[metric])
    texts = conditions_of(condition)
    names = [part.name for part in map(parse_corrupted, texts) if part is not None]
    of_one = Counter(names)
    errors = [
        (1 - _column(run, checkpoint, text, "correct")) / len(of_one) / of_one[name]
        for text, name in zip(texts, names, strict=True)
    ]
    return sum(errors[1:], errors[0]).dropna()  # a sample that one condition lacks is nan there


def _column(run: Run, checkpoint: str, condition: str, name: str) -> pd.Series[float]:
    table = run.table(checkpoint, condition, ["sample_id", name, "error"]).to_pandas()
    return table[table["error"].isna()].set_index("sample_id")[name].astype(np.float64).sort_index()
