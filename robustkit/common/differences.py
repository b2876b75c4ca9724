"""Differences between two figures of the same samples: intervals and p-values that know of the pairing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .intervals import Floats, Z, bootstrap


@dataclass(frozen=True)
class Difference:
    """The second figure minus the first, of the n samples that both are of.

    ci_low, ci_high: 95 %, by resampling samples, each with both of its outcomes; of a few samples it is too narrow.
    p_value: two-sided, of no difference: McNemar's exact test for right against wrong, else the normal approximation;
    for figures of a whole data set with the standard error over resamples. first, second: the two figures.
    """

    value: float
    n: int
    ci_low: float
    ci_high: float
    p_value: float
    first: float = math.nan
    second: float = math.nan


def of_means(before: Floats, after: Floats, binary: bool) -> Difference:
    """Return how the mean of (n,) figures differs from that of others of the same samples.

    binary: each is right or wrong. Figures that are not finite make the difference nan.
    """
    n = len(before)
    with np.errstate(invalid="ignore"):
        differences: Floats = after - before
        means = float(before.mean()), float(after.mean())
    if not np.isfinite(differences).all():
        return Difference(math.nan, n, math.nan, math.nan, math.nan, *means)
    value = float(differences.mean())
    ((low, high),) = bootstrap(lambda counts: counts @ differences / n, n, [value])
    return Difference(value, n, low, high, _p_value(differences, binary), *means)


def of_resamples(before: float, after: float, resampled: Floats, n: int, fewest: int) -> Difference:
    """Return how a figure of n samples differs from another; resampled: (R,) the difference in each resample.

    Interval and p-value are of the normal approximation, with the standard error over resamples; of fewer than
    `fewest` samples there is neither.
    """
    with np.errstate(invalid="ignore"):
        value = after - before
    if not math.isfinite(value) or n < fewest:
        known = value if math.isfinite(value) else math.nan
        return Difference(known, n, math.nan, math.nan, math.nan, before, after)
    error = float(resampled[np.isfinite(resampled)].std(ddof=1))
    p_value = _of_normal(value, error) if value or error else 1.0
    return Difference(value, n, value - Z * error, value + Z * error, p_value, before, after)


def unseen(n: int) -> float:
    """Return how large a share may be, at 95 %, of what none of n samples shows (Clopper and Pearson 1934)."""
    return float(1 - 0.025 ** (1 / max(n, 1)))


def widened(difference: Difference, binary: bool) -> tuple[float, float]:
    """Return an interval that is not narrower than n samples allow: resampling only repeats what was seen."""
    if binary:
        reach = unseen(difference.n)
        return min(difference.ci_low, difference.value - reach), max(difference.ci_high, difference.value + reach)
    if difference.ci_low == difference.ci_high:
        return math.nan, math.nan
    return difference.ci_low, difference.ci_high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number (Holm 1979), in their order; nan stays, and counts."""
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
