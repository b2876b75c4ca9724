"""The interval of a share measured in two phases: its coverage, exactly, and what it becomes at its ends."""

from __future__ import annotations

import itertools

import pytest
from scipy.stats import binom, binomtest

from robustkit.common.double_sampling import clopper_pearson, two_phase_share
from robustkit.common.intervals import wilson


def coverage(n: int, m: int, first: float, second: float) -> float:
    """Return how often the interval holds the truth, over all outcomes that are not rarer than 1e-6."""
    held = 0.0
    for standing in range(n + 1):
        if (weight := float(binom.pmf(standing, n, first))) < 1e-6:
            continue
        drawn = min(m, standing)
        for kept in range(drawn + 1):
            if (both := weight * float(binom.pmf(kept, drawn, second))) > 1e-6:
                low, high = two_phase_share(n, standing, drawn, kept)[1]
                held += both * (low <= first * second <= high)
    return held


@pytest.mark.parametrize("n, m", [(100, 20), (300, 60)])
def test_the_interval_holds_the_truth_as_often_as_it_says(n: int, m: int) -> None:
    shares = list(itertools.product((0.4, 0.7, 0.95), (0.02, 0.1, 0.5, 0.9, 0.98)))
    covered = [coverage(n, m, first, second) for first, second in shares]
    assert min(covered) >= 0.93
    middle = [held for held, (_, second) in zip(covered, shares, strict=True) if second == 0.5]
    assert max(middle) <= 0.975  # not by being wide


def test_all_drawn_is_the_whole_attack() -> None:
    for standing, kept in ((37, 20), (37, 0), (37, 37), (100, 99)):
        assert two_phase_share(100, standing, standing, kept) == (kept / 100, wilson(kept, 100))
    assert two_phase_share(100, 0, 0, 0) == (0.0, wilson(0, 100))


def test_more_drawn_is_narrower_and_holds_the_estimate() -> None:
    widths = []
    for drawn in (20, 40, 80, 160, 320):
        share, (low, high) = two_phase_share(1000, 400, drawn, drawn // 2)
        assert share == pytest.approx(0.2) and low < share < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    low, high = wilson(200, 1000)
    assert widths[-1] > high - low


def test_few_counts_take_the_exact_intervals() -> None:
    for kept, n in ((0, 7), (3, 50), (7, 7)):
        exact = binomtest(kept, n).proportion_ci(0.95, "exact")
        assert clopper_pearson(kept, n) == pytest.approx((exact.low, exact.high))
    (low, high), (first, last) = two_phase_share(100, 60, 10, 10)[1], clopper_pearson(60, 100)
    assert (low, high) == pytest.approx((first * clopper_pearson(10, 10)[0], last))
