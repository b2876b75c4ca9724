"""Intervals and calibration: numbers about numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Z = 1.959963984540054
BINS = 15
_ROWS = 2048  # held as floats at once


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion (Wilson 1927); (0, 1) where n is 0."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    centre = share + Z**2 / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    low = 0.0 if successes == 0 else (centre - spread) / scale
    return low, 1.0 if successes == n else (centre + spread) / scale


def calibration_error(confidence: Floats, correct: Floats) -> float:
    """Expected calibration error over 15 bins of equal width (Guo et al. 2017), a fraction."""
    if not len(confidence):
        return math.nan
    sums = np.bincount(_bins(confidence), confidence - correct, BINS)
    return float(np.abs(sums).sum() / len(confidence))


def calibration_gaps(confidence: Floats, correct: Floats) -> Floats:
    """(n, 15): confidence minus correctness of each sample in the column of its bin; the rest is 0."""
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), _bins(confidence)] = confidence - correct
    return gaps


def _bins(confidence: Floats) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def bootstrap(statistic: Callable[[Floats], Floats], n: int) -> list[tuple[float, float]]:
    """Percentile 95 % intervals of figures of n resampled samples, from one fixed stream, so that they repeat.

    statistic: how often each sample was drawn, (R, n), to one figure or several for each of the R resamples.
    """
    return intervals(resampled_figures(statistic, n))


def resampled_figures(statistic: Callable[[Floats], Floats], n: int) -> Floats:
    """The figures of `bootstrap`'s resamples, (R, K), of which the intervals are."""
    blocks = (statistic(block.astype(np.float64)) for block in _resamples(n))
    return np.concatenate([np.atleast_2d(figures.T).T for figures in blocks])


def intervals(figures: Floats) -> list[tuple[float, float]]:
    """The percentile 95 % interval of each of K figures, from those of R resamples, (R, K)."""
    with np.errstate(invalid="ignore"):  # of infinite figures there is no interval
        low, high = np.percentile(figures, [2.5, 97.5], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def resampled_sums(rows: Callable[[slice], Floats], n: int, anew: bool = True) -> Floats:
    """Sums over n samples and over each of `bootstrap`'s resamples of them, (1 + R, K), without all rows at once.

    rows: some of the n samples to their figures, (…, K); whole numbers, so that no order of adding makes a difference.
    anew: False for the sums over all samples alone, (1, K).
    """
    counts = np.concatenate([np.ones((1, n), np.uint8), *(_resamples(n) if anew else ())])
    total: Floats = np.zeros(())
    for start in range(0, n, _ROWS):
        some = slice(start, start + _ROWS)
        total = total + counts[:, some].astype(np.float64) @ rows(some)
    return total


@lru_cache(maxsize=2)
def _resamples(n: int) -> list[NDArray[np.uint8]]:
    """How often each of n samples is drawn in each resample, in blocks of at most a million figures."""
    generator = np.random.Generator(np.random.PCG64(0))
    resamples = int(min(1000, max(200, 5_000_000 // max(n, 1))))
    counts = np.empty((resamples, n), np.uint8)
    for row in counts:
        row[:] = np.bincount(generator.integers(0, n, n), minlength=n)
    return np.array_split(counts, max(1, counts.size // 1_000_000))
