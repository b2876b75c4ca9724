"""Few expensive figures with the support of many cheap ones: the published estimator, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from robustkit.common.intervals import Floats, wilson
from robustkit.evaluations.estimation import FEWEST, FOLDS, crossed_weights, supported_mean, tuned_weight


def draw(generator: np.random.Generator, n: int, share: float, apart: float) -> tuple[Floats, Floats]:
    """Right under an expensive attack with this probability; a cheap one breaks a share of those, misses others."""
    expensive = generator.random(n) < share
    fell, missed = generator.random(n) < apart, generator.random(n) < apart / 4
    return expensive.astype(float), np.where(expensive, ~fell, missed).astype(float)


def test_it_is_the_published_estimator() -> None:
    ppi = pytest.importorskip("ppi_py")
    generator = np.random.Generator(np.random.PCG64(0))
    for m, n, slope in ((30, 30, 1.0), (100, 400, 0.3), (200, 100, -1.0), (50, 5000, 4.0)):
        cheap = generator.normal(size=m + n)
        expensive = slope * cheap[:m] + generator.normal(size=m)
        weight = tuned_weight(expensive, cheap[:m], cheap[m:])
        whole = weight * cheap[m:].mean() + (expensive - weight * cheap[:m]).mean()
        assert whole == pytest.approx(ppi.ppi_mean_pointestimate(expensive, cheap[:m], cheap[m:]).item(), abs=1e-12)
        found, weight = supported_mean(expensive, cheap[:m], cheap[m:])
        weights = crossed_weights(expensive, cheap[:m], cheap[m:])
        folds = [np.arange(m) % FOLDS == fold for fold in range(FOLDS)]
        parts = [
            ppi.ppi_mean_pointestimate(expensive[fold], cheap[:m][fold], cheap[m:], lam=weights[fold][0]).item()
            * fold.sum()
            for fold in folds
        ]
        assert found.value == pytest.approx(sum(parts) / m, abs=1e-12)
        assert (weight == 0) == (slope < 0) and (weight == 1) == (slope > 1)


@pytest.mark.parametrize("m", [50, 100, 200])
@pytest.mark.parametrize(("share", "apart"), [(0.02, 0.0), (0.1, 0.05), (0.5, 0.02), (0.5, 0.2), (0.9, 0.01)])
def test_intervals_hold_the_truth_as_often_as_they_say(m: int, share: float, apart: float) -> None:
    generator = np.random.Generator(np.random.PCG64(m))
    held = narrower = 0
    for _ in range(1000):
        expensive, cheap = draw(generator, 5 * m, share, apart)
        found, _ = supported_mean(expensive[:m], cheap[:m], cheap[m:], binary=True)
        low, high = wilson(int(expensive[:m].sum()), m)
        held += found.low <= share <= found.high
        narrower += found.high - found.low < high - low
    assert held >= 930  # at 1000 draws, 0.93 is three standard errors below 0.95
    assert narrower > (900 if m > 50 else 600) or share < 0.1 or apart > 0.1


def test_the_published_interval_alone_is_too_narrow_for_rare_events() -> None:
    generator, held = np.random.Generator(np.random.PCG64(0)), 0
    for _ in range(1000):
        expensive, cheap = draw(generator, 500, 0.02, 0.0)
        found, _ = supported_mean(expensive[:100], cheap[:100], cheap[100:])
        held += found.low <= 0.02 <= found.high
    assert held < 850


def test_few_samples_do_not_lean() -> None:
    """A weight that is tuned on the samples that it weights leans by 1.3 points here."""
    generator, values = np.random.Generator(np.random.PCG64(2)), []
    for _ in range(2000):
        expensive, cheap = draw(generator, 500, 0.05, 0.05)
        values.append(supported_mean(expensive[:30], cheap[:30], cheap[30:], binary=True)[0].value)
    assert np.mean(values) == pytest.approx(0.05, abs=0.0025)


def test_a_sample_has_no_say_in_its_own_weight() -> None:
    generator = np.random.Generator(np.random.PCG64(3))
    expensive, cheap = draw(generator, 200, 0.4, 0.1)
    other = expensive[:40].copy()
    other[7::FOLDS] = 1 - other[7::FOLDS]  # the whole fold of the eighth
    one, two = (crossed_weights(each, cheap[:40], cheap[40:]) for each in (expensive[:40], other))
    assert (one[7::FOLDS] == two[7::FOLDS]).all() and not np.isclose(one[6], two[6])
    assert crossed_weights(expensive[:1], cheap[:1], cheap[40:]).tolist() == [0.0]


def test_it_is_right_on_average_whatever_supports_it() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    means = []
    for _ in range(2000):
        expensive, cheap = draw(generator, 300, 0.4, 0.1)
        wrong = 1 - cheap  # goes the other way, and has another mean
        means.append(
            [supported_mean(expensive[:60], each[:60], each[60:], binary=True)[0].value for each in (cheap, wrong)]
        )
    assert np.mean(means, axis=0) == pytest.approx([0.4, 0.4], abs=0.005)


def test_what_says_nothing_changes_nothing() -> None:
    expensive = np.array([1.0, 0.0] * 50)
    for cheap, others in ((np.ones(100), np.ones(400)), (1 - expensive, np.zeros(400)), (expensive, np.zeros(0))):
        found, weight = supported_mean(expensive, cheap, others, binary=True)
        assert (found.value, weight) == (0.5, 0.0) and tuned_weight(expensive, cheap, others) == 0
        reach = 1.959963984540054 * math.sqrt(0.25 / 104)  # with four samples more, half of them right
        assert [found.low, found.high] == pytest.approx([0.5 - reach, 0.5 + reach])
    few, _ = supported_mean(expensive[: FEWEST - 1], expensive[: FEWEST - 1], expensive, binary=True)
    assert math.isnan(few.low) and math.isnan(few.high) and 0 < few.value < 1
    all_right, _ = supported_mean(np.ones(40), np.ones(40), np.array([1.0] * 39 + [0.0]), binary=True)
    assert all_right.high == 1.0
