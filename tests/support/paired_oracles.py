"""Intervals of paired differences from scipy's tests, and from likelihoods that an optimiser maximises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats


def interval_of(gaps: NDArray[Any], binary: bool) -> tuple[float, float]:
    """The 95 % interval of the mean of differences between two figures of the same samples."""
    if not binary:
        low, high = stats.ttest_1samp(gaps, 0).confidence_interval()
        return float(low), float(high)
    n, gained, lost = len(gaps), int((gaps > 0).sum()), int((gaps < 0).sum())
    unseen = 1 - 0.025 ** (1 / n)
    exact = (0.0, 0.0)
    if gained + lost:
        shares = stats.binomtest(gained, gained + lost).proportion_ci(method="exact")
        exact = tuple((gained + lost) / n * (2 * np.array(shares) - 1))
    score = (-upper_score_end(lost, gained, n), upper_score_end(gained, lost, n))
    value = (gained - lost) / n
    return max(-1.0, min(exact[0], score[0], value - unseen)), min(1.0, max(exact[1], score[1], value + unseen))


def upper_score_end(gained: int, lost: int, n: int) -> float:
    """The larger solution of Tango's score equation (1998), its likelihood maximised numerically."""
    value = (gained - lost) / n

    def excess(delta: float) -> float:
        def unlikely(share: float) -> float:
            """Minus the log likelihood, where `share` of the population is lost and share + delta gained."""
            shares, counts = (share + delta, share, 1 - delta - 2 * share), (gained, lost, n - gained - lost)
            if min(shares) < 0:
                return math.inf
            return -sum(k * math.log(max(p, 1e-300)) for k, p in zip(counts, shares, strict=True) if k)

        ends = (max(0.0, -delta), (1 - delta) / 2)
        found = optimize.minimize_scalar(unlikely, bounds=ends, method="bounded", options={"xatol": 1e-12})
        share = min((float(found.x), *ends), key=unlikely)
        spread = math.sqrt(max(0.0, (2 * share + delta - delta**2) / n))
        return delta - value - float(stats.norm.ppf(0.975)) * spread

    return 1.0 if excess(1 - 1e-9) < 0 else float(optimize.brentq(excess, value, 1 - 1e-9))
