"""What so many trainings could have shown: the power of a difference between formulas, and how many seeds one needs."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, norm, t

POWER, LEVEL, MOST_SEEDS = 0.8, 0.05, 1000
STEPS = 10_000


def power(gap: float, sd: float, seeds: int, level: float = LEVEL, freedom: int | None = None) -> float:
    """Return how often a t-test of so many seeds would find a gap.

    sd: of the differences by seed. freedom: the degrees of freedom of its estimate; those of a paired t-test if left
    out.
    """
    if sd == 0:
        return 1.0 if gap else level
    freedom = seeds - 1 if freedom is None else freedom
    edge, shift = t.ppf(1 - level / 2, freedom), abs(gap) / sd * math.sqrt(seeds)
    edges = edge * _spreads(freedom)
    return float((ndtr(shift - edges) + ndtr(-shift - edges)).mean())


@functools.cache
def _spreads(freedom: int) -> NDArray[np.float64]:
    """Return evenly likely estimates of a standard deviation of 1, (STEPS,). Means over them are the non-central t's
    tails, which SciPy's `nct` has nan for here and there.
    """
    shares = (np.arange(STEPS) + 0.5) / STEPS
    spreads: NDArray[np.float64] = np.sqrt(chi2.ppf(shares, freedom) / freedom)
    return spreads


def seeds_needed(gap: float, sd: float, level: float = LEVEL, formulas: int = 2) -> int | None:
    """Return the fewest seeds that find a gap with a power of 80 %; None where 1000 do not.

    formulas: of the model that the spread is estimated in, each with all seeds; two alone are the paired t-test.
    """

    def finds(seeds: int) -> bool:
        return power(gap, sd, seeds, level, (seeds - 1) * (formulas - 1)) >= POWER

    low, high = 2, MOST_SEEDS
    if not finds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if finds(middle) else (middle + 1, high)
    return low


def smallest_gap(sd: float, seeds: int, level: float = LEVEL, freedom: int | None = None) -> float:
    """Return the smallest gap that so many seeds find with a power of 80 %."""
    return sd * _smallest_effect(seeds, level, seeds - 1 if freedom is None else freedom)


@functools.cache
def _smallest_effect(seeds: int, level: float, freedom: int) -> float:
    low, high = 0.0, 1e5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, seeds, level, freedom) >= POWER else (middle, high)
    return high


def smallest_correlation(n: int, groups: int, level: float = LEVEL) -> float:
    """Return the smallest partial rank correlation within groups that n values show with a power of 80 %.

    Fisher's z with the variance of ranks by Fieller (1957), one value held fixed and a mean taken from each group.
    """
    left = n - (groups - 1) - 1
    reach = float(norm.ppf(1 - level / 2) + norm.ppf(POWER)) * math.sqrt(1.06 / (left - 3))
    return math.tanh(reach)
