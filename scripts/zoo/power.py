"""What so many trainings could have shown: the power of a difference between formulas, and how many seeds one needs."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, norm, t

POWER, LEVEL, MOST_SEEDS = 0.8, 0.05, 1000
STEPS, DRAWS = 10_000, 20_000


def power(gap: float, sd: float, seeds: int, level: float = LEVEL) -> float:
    """Return how often a paired t-test of so many seeds would find a gap. sd: of the differences by seed.

    By the test of `trainings.contrast`, which takes the larger of two estimates of the spread, a gap that is found four
    times out of five is as large within a twentieth (simulated). Not so of smaller ones: with the degrees of freedom of
    all formulas some are found about every second time, where a paired t-test hardly finds any.
    """
    if sd == 0:
        return 1.0 if gap else level
    edge, shift = t.ppf(1 - level / 2, seeds - 1), abs(gap) / sd * math.sqrt(seeds)
    edges = edge * _spreads(seeds - 1)
    return float((ndtr(shift - edges) + ndtr(-shift - edges)).mean())


@functools.cache
def _spreads(freedom: int) -> NDArray[np.float64]:
    """Return evenly likely estimates of a standard deviation of 1, (STEPS,). Means over them are the non-central t's
    tails, which SciPy's `nct` has nan for here and there.
    """
    shares = (np.arange(STEPS) + 0.5) / STEPS
    spreads: NDArray[np.float64] = np.sqrt(chi2.ppf(shares, freedom) / freedom)
    return spreads


def seeds_needed(gap: float, sd: float, level: float = LEVEL) -> int | None:
    """Return the fewest seeds that find a gap with a power of 80 %; None where 1000 do not."""
    low, high = 2, MOST_SEEDS
    if power(gap, sd, high, level) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(gap, sd, middle, level) >= POWER else (middle + 1, high)
    return low


def smallest_gap(sd: float, seeds: int, level: float = LEVEL) -> float:
    """Return the smallest gap that so many seeds find with a power of 80 %."""
    return sd * _smallest_effect(seeds, level)


@functools.cache
def _smallest_effect(seeds: int, level: float) -> float:
    low, high = 0.0, 1e5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, seeds, level) >= POWER else (middle, high)
    return high


@functools.cache
def level_if_wild(seeds: int, formulas: int, level: float = LEVEL, times: float = 3.0) -> float:
    """Return how often the test of `trainings.contrast` finds a difference that is not there, where the seeds of one
    formula spread so many times as wide as those of the others; simulated.
    """
    rng, found, rounds = np.random.default_rng(0), 0, 10
    freedom = (seeds - 1) * (formulas - 1)
    by_pair, by_model = (t.ppf(1 - level / 2, many) for many in (seeds - 1, freedom))
    for _ in range(rounds):
        table = rng.standard_normal((DRAWS, formulas, seeds))
        table[:, 1] *= times
        rest = table - table.mean(axis=2, keepdims=True) - table.mean(axis=1, keepdims=True)
        rest += table.mean(axis=(1, 2), keepdims=True)
        gaps = table[:, 1] - table[:, 0]
        own, model = gaps.var(axis=1, ddof=1), 2 * (rest**2).sum(axis=(1, 2)) / freedom
        reach = np.where(own > model, by_pair, by_model) * np.sqrt(np.maximum(own, model) / seeds)
        found += int((abs(gaps.mean(axis=1)) > reach).sum())
    return found / (rounds * DRAWS)


def smallest_correlation(n: int, groups: int, level: float = LEVEL) -> float:
    """Return the partial rank correlation within groups that n values show about seven times out of ten.

    By Fisher's z, with the variance of ranks by Fieller (1957), one value held fixed and a mean taken from each group,
    it would be four out of five; intervals over resampled trainings find fewer (simulated).
    """
    left = n - (groups - 1) - 1
    reach = float(norm.ppf(1 - level / 2) + norm.ppf(POWER)) * math.sqrt(1.06 / (left - 3))
    return math.tanh(reach)
