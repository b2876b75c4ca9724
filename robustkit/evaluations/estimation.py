"""Estimate a mean of many samples from few, supported by a figure of all (prediction-powered inference).

Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023 (Science 382, 669); the weight is tuned for power as in PPI++
(Angelopoulos, Duchi and Zrnic 2023, arXiv:2311.01453), and cross-fitted: the weight of a sample comes from the other
folds (Zrnic and Candès 2024, arXiv:2309.16598), since a weight that is tuned on the samples that it weights leans. So
the estimate is right on average whatever the cheap figure is; how much narrower the interval gets depends on how far
the two go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..common.figure import NORMAL, Figure
from ..common.finding import Finding
from ..common.intervals import Floats, Z
from ..display.format import count, figure_cell, number
from ..display.table import Table, side_by_side
from .aggregate import Results, column_of
from .condition import metric_in, words_of
from .metrics import PREFIX, WEIGHT, Metric, weight_of
from .presenting import short_names

if TYPE_CHECKING:
    import pyarrow as pa

FEWEST = 30  # fewer samples with the expensive figure have no interval: it rests on a normal approximation
FOLDS = 5  # parts of the samples, every fifth in one, each weighted by what the others say; of fewer, one each


def supported_mean(expensive: Floats, cheap: Floats, others: Floats, binary: bool = False) -> tuple[Figure, float]:
    """Return the mean of an expensive figure, supported by a cheap one, and the cheap one's mean weight, λ of PPI++.

    expensive, cheap: (m,) both figures of m samples drawn at random. others: (N,) the cheap one of the other samples.
    binary: both are 0 or 1. Then the published interval is too narrow where few samples differ: 0.78 of 5 % at m = 100
    hold a share of 2 %. So the spread of the differences is taken with two samples more that only the expensive figure
    calls right, and two that only the cheap one does, as Agresti and Coull (1998) do for a single share.
    """
    m, n = len(expensive), len(others)
    weights = crossed_weights(expensive, cheap, others)
    weight = float(weights.mean())
    differences = expensive - weights * cheap
    support = weight * float(others.mean()) if n else 0.0
    value = support + float(differences.mean())
    if m < FEWEST:
        return Figure(value, m), weight
    if binary:
        differences = np.concatenate([differences, np.repeat([1.0, -weight], 2)])
    spread = float(differences.var()) / len(differences) + (weight**2 * float(others.var()) / n if n else 0.0)
    low, high = (value + end * math.sqrt(spread) for end in (-Z, Z))
    low, high = (max(low, 0.0), min(high, 1.0)) if binary else (low, high)
    return Figure(value, m, low, high, NORMAL), weight


def crossed_weights(expensive: Floats, cheap: Floats, others: Floats) -> Floats:
    """Return the weight (m,) of each sample, tuned on those of the other folds; shapes as in `supported_mean`."""
    fold = np.arange(len(expensive)) % min(FOLDS, len(expensive))
    if len(expensive) < 2:
        return np.zeros(len(expensive))
    tuned = [tuned_weight(expensive[fold != part], cheap[fold != part], others) for part in range(fold.max() + 1)]
    weights: Floats = np.array(tuned)[fold]
    return weights


def tuned_weight(expensive: Floats, cheap: Floats, others: Floats) -> float:
    """Return the weight in [0, 1] of the cheap figure with the least variance; 0 where it is constant."""
    variance = float(np.concatenate([cheap, others]).var(ddof=1)) if len(others) else 0.0
    if not variance > 0:
        return 0.0
    covariance = float(((expensive - expensive.mean()) * (cheap - cheap.mean())).mean())
    return min(max(covariance / ((1 + len(expensive) / len(others)) * variance), 0.0), 1.0)


HEADINGS = ("condition", "n", "plain [95 %]", "supported [95 %]", "by", "λ", "on more")
TITLE = "Figures of few samples, with support"
NOTE = (
    "Supported: the plain figure, of the samples drawn, corrected by a condition that was evaluated on all samples "
    "(prediction-powered inference). The plain figure stands next to it; rules take it only by its name."
)


def supported_rows(
    condition: str, metric: Metric, table: pa.Table, by: str, others: pa.Table, flags: Sequence[Finding]
) -> Iterator[Figure]:
    """Yield the supported figure of a condition, and the weight of what supports it, `by`, named in the metric.

    table, others: their readable rows, `sample_id` and a column whose mean over the first is the metric. Samples that
    only one of the two could read are left out.
    """
    figure, cheap = (next(name for name in each.column_names if name != "sample_id") for each in (table, others))
    by_id = dict(zip(others["sample_id"].to_pylist(), column_of(others, cheap), strict=True))
    expensive = zip(table["sample_id"].to_pylist(), column_of(table, figure), strict=True)
    both = np.array([(value, by_id.pop(sample)) for sample, value in expensive if sample in by_id]).reshape(-1, 2)
    rest = np.array([*by_id.values()])
    if not len(both) or not len(rest) or not (np.isfinite(both).all() and np.isfinite(rest).all()):
        return
    supported, weight = supported_mean(both[:, 0], both[:, 1], rest, binary=metric.binary)
    yield supported.of(condition, PREFIX + metric.name, flags)
    yield Figure(weight, len(rest)).of(condition, f"{WEIGHT.name}{metric.name} by {by})", flags)


def support_rows(results: Results, is_meant: Callable[[str], bool]) -> dict[str, list[tuple[str, ...]]]:
    """Return rows of texts under `HEADINGS`, by checkpoint, of the conditions that are wanted."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for checkpoint, cells in results.cells.items():
        for (condition, name), row in cells.items():
            metric, by = weight_of(name)
            if not metric or not is_meant(condition):
                continue
            supported = metric_in(words_of(condition), PREFIX + metric)
            cell = partial(figure_cell, scale=supported.scale if supported else 1)
            before, after = cells.get((condition, metric)), cells[condition, PREFIX + metric]
            figures = cell(before), cell(after), by, number(row.value, 2), count(row.n)
            rows.setdefault(checkpoint, []).append((f"{condition}, {metric}", count(after.n), *figures))
    return rows


def support_tables(results: Results, is_meant: Callable[[str], bool]) -> list[Table]:
    called = short_names(results.manifest.names)
    every = support_rows(results, is_meant)
    lines = tuple((called[name], *row) for name, rows in every.items() for row in rows)
    return [Table(TITLE, ("checkpoint", *HEADINGS), lines, note=NOTE, places=("terminal",))] if lines else []


def support_grids(results: Results, is_meant: Callable[[str], bool]) -> list[Table]:
    """Return the same for the page, all checkpoints next to each other."""
    every = support_rows(results, is_meant).items()
    parts = [Table("", HEADINGS, tuple(rows), checkpoint=name) for name, rows in every]
    return side_by_side(TITLE, parts, headline=HEADINGS[3], note=NOTE)
