"""The interval of a share measured in two phases: its coverage, exactly, and what it becomes at its ends."""

from __future__ import annotations

import itertools

import pytest
from scipy.stats import binom, binomtest

from robustkit.common.intervals import wilson
from robustkit.slices.two_phase.results import clopper_pearson, two_phase_share


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


@pytest.mark.parametrize("n, m", [(100, 20), pytest.param(300, 60, marks=pytest.mark.slow)])
def test_the_interval_holds_the_truth_as_often_as_it_says(n: int, m: int) -> None:
    shares = list(itertools.product((0.4, 0.7, 0.95), (0.02, 0.1, 0.5, 0.9, 0.98)))
    covered = [coverage(n, m, first, second) for first, second in shares]
    assert min(covered) >= 0.93
    middle = [held for held, (_, second) in zip(covered, shares, strict=True) if second == 0.5]
    assert max(middle) <= 0.975  # not by being wide


@pytest.mark.parametrize("n, m", [pytest.param(300, 60, marks=pytest.mark.slow), (500, 40)])
def test_where_nearly_all_stand_or_none_it_holds_the_truth_too(n: int, m: int) -> None:
    """As with AutoAttack after APGD. The product of two exact intervals would hold it in 99 % and be much wider."""
    for first, second in itertools.product((0.2, 0.62, 0.95), (0.005, 0.05, 0.95, 0.98, 0.995)):
        assert coverage(n, m, first, second) >= 0.94
    narrow, whole = two_phase_share(500, 310, 50, 50)[1], wilson(310, 500)
    assert narrow[1] - narrow[0] < 1.25 * (whole[1] - whole[0])


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


def test_few_counts_take_the_exact_interval_of_the_second_phase() -> None:
    for kept, n in ((0, 7), (3, 50), (7, 7)):
        exact = binomtest(kept, n).proportion_ci(0.95, "exact")
        assert clopper_pearson(kept, n) == pytest.approx((exact.low, exact.high))
    (low, high), one = two_phase_share(100, 60, 10, 10)[1], wilson(60, 100)
    assert high == pytest.approx(one[1])  # all that were drawn stand: nothing is left out above
    assert low == pytest.approx(0.6 - ((0.6 - one[0]) ** 2 + (0.6 * (1 - clopper_pearson(10, 10)[0])) ** 2) ** 0.5)
    assert two_phase_share(100, 60, 10, 0)[1] == (0.0, pytest.approx(0.6 * clopper_pearson(0, 10)[1]))
