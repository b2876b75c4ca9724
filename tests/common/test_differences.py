"""Intervals of paired differences agree with their tests, with published figures, and with slower computations."""

from __future__ import annotations

import numpy as np
import pytest
from paired_oracles import interval_of
from scipy.stats import binom

from robustkit.common.differences import MCNEMAR, MID_P, of_draws, of_means, of_outcomes
from robustkit.common.groups import Groups


def test_a_published_table() -> None:
    """Airway reactivity of 21 children before and after a transplant (Bentur 2009), as Fagerland (2014) has it.

    Tango's interval is -0.517 to -0.026 and does not hold 0; McNemar's exact p is 0.0703, so ours does.
    """
    gaps = np.repeat([1.0, -1.0, 0.0], [1, 7, 13])
    found = of_means(np.zeros(21), gaps, binary=True)
    assert (round(found.ci_low, 3), round(found.p_value, 4), found.test) == (-0.517, 0.0703, MCNEMAR)
    assert found.ci_high == pytest.approx(8 / 21 * (2 * 0.526510 - 1), abs=1e-6)  # of 1 in 8, Clopper and Pearson
    mid = found.by_mid_p()  # .039 in Fagerland, Lydersen and Laake (2013)
    assert (mid.p_value, mid.test, mid.value) == (pytest.approx(10 / 256), MID_P, found.value) and mid.ci_high < 0
    share = (mid.ci_high * 21 / 8 + 1) / 2
    assert (binom.cdf(1, 8, share) + binom.cdf(0, 8, share)) / 2 == pytest.approx(0.025, abs=1e-9)
    assert mid.ci_low == found.ci_low  # Tango's


def test_only_tests_of_changed_samples_have_a_mid_p_form() -> None:
    same = of_means(np.ones(9), np.ones(9), binary=True)
    assert same.by_mid_p() is same and same.changed == (0, 0)
    loss = of_means(np.arange(9.0), np.arange(9.0) ** 2, binary=False)
    assert loss.by_mid_p() is loss
    grouped = of_means(np.zeros(8), np.repeat([0.0, 1.0], 4), True, Groups.numbered(np.repeat([0, 1, 2, 3], 2)))
    assert grouped.by_mid_p() is grouped


@pytest.mark.parametrize(
    ("gained", "lost", "n"), [(0, 0, 40), (6, 0, 6), (8, 0, 60), (3, 11, 60), (25, 9, 200), (150, 90, 1000)]
)
def test_intervals_are_those_of_a_slow_computation(gained: int, lost: int, n: int) -> None:
    gaps = np.repeat([1.0, -1.0, 0.0], [gained, lost, n - gained - lost])
    assert of_outcomes(gained, lost, n) == pytest.approx(interval_of(gaps, binary=True), abs=1e-6)


def test_intervals_hold_0_just_where_the_exact_test_does_not_reject() -> None:
    """Of every table of up to 40 samples; turned round, an interval turns round."""
    for n in (1, 2, 5, 6, 9, 17, 40):
        for gained in range(n + 1):
            for lost in range(n + 1 - gained):
                first = np.repeat([0.0, 1.0, 0.0], [gained, lost, n - gained - lost])
                second = np.repeat([1.0, 0.0, 0.0], [gained, lost, n - gained - lost])
                found = of_means(first, second, binary=True)
                for each in (found, found.by_mid_p()):
                    assert (each.ci_low <= 0 <= each.ci_high) == (each.p_value >= 0.05)
                    assert found.ci_low <= each.ci_low <= found.value <= each.ci_high <= found.ci_high
                assert -1 <= found.ci_low <= found.value <= found.ci_high <= 1
                low, high = of_outcomes(lost, gained, n)
                assert (-high, -low) == pytest.approx((found.ci_low, found.ci_high), abs=1e-12)


def test_a_difference_over_draws_is_paired_where_they_are_as_many() -> None:
    stream, held, narrow = np.random.default_rng(5), [], []
    for _ in range(400):
        draws = 0.08 * stream.normal(size=5)  # what was learned from, the same for both
        first = (stream.random((50, 5)) < 0.6 + draws).astype(float)
        second = (stream.random((50, 5)) < 0.5 + draws).astype(float)
        found, apart = of_draws(first, second), of_draws(first, np.concatenate([second, second[:, :1]], axis=1))
        held.append(found.ci_low <= -0.1 <= found.ci_high)
        narrow.append((found.ci_high - found.ci_low) / (apart.ci_high - apart.ci_low))
        assert (found.p_value >= 0.05) == (found.ci_low <= 0 <= found.ci_high)
    assert 0.93 <= np.mean(held) <= 0.995 and np.mean(narrow) < 0.9
    same = of_draws(first, first)
    assert (same.value, same.p_value) == (0, 1) and np.isnan(same.ci_low)
    assert np.isnan(of_draws(first[:, :1], second[:, :1]).p_value)


@pytest.mark.parametrize(("gained", "lost"), [(0.02, 0.02), (0.1, 0.02), (0.3, 0.05)])
def test_intervals_cover(gained: float, lost: float) -> None:
    """The exact chance, over all tables of 30 samples, that the interval holds the truth."""
    n, truth, covered, total, by_mid_p = 30, gained - lost, 0.0, 0.0, 0.0
    chances = np.array([gained, lost, 1 - gained - lost])
    factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    for b in range(n + 1):
        for c in range(n + 1 - b):
            counts = np.array([b, c, n - b - c])
            chance = float(np.exp(factorial[n] - factorial[counts].sum() + counts @ np.log(chances)))
            low, high = of_outcomes(b, c, n)
            covered, total = covered + chance * (low <= truth <= high), total + chance
            low, high = of_outcomes(b, c, n, mid=True)
            by_mid_p += chance * (low <= truth <= high)
    assert total == pytest.approx(1) and covered >= 0.95 and by_mid_p >= 0.945
