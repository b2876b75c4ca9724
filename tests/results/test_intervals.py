"""Intervals hold their own estimates, and that of the calibration error holds the truth."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from row_runs import make_run, row
from scipy import stats

from robustkit.common.figure import Figure
from robustkit.common.intervals import (
    bootstrap,
    calibration_error,
    calibration_interval,
    draws_interval,
    include_estimate,
    intervals,
    mean_of,
    percentiles,
    proportion,
    resampled_figures,
    share_of,
    wilson,
)
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import FAIL, PASS, judge
from robustkit.results.survey import survey
from scripts.studies.statistics.ece_coverage import CONFIDENCE, RIGHT, SIZES, measured

Floats = NDArray[np.float64]
SURE = " with 95 % confidence"


@pytest.mark.parametrize(
    ("confidence", "right", "n"),
    [("broad", "calibrated", 100), ("extreme", "too unsure (T = 0.7)", 60), ("high", "too sure (T = 2)", 400)],
)
def test_the_interval_of_the_calibration_error_covers(confidence: str, right: str, n: int) -> None:
    """The percentile interval of the first of these never does: the true error is 0."""
    found = measured(confidence, right, n, 60, others=False)["here"]
    assert found[0] >= 0.88 and found[1] == 1  # of 60, 53 and more have a probability of 0.99 at 95 %


@pytest.mark.slow
@pytest.mark.parametrize(("confidence", "right"), [*itertools.product(CONFIDENCE, RIGHT)])
def test_it_covers_whatever_the_model(confidence: str, right: str) -> None:
    for n in SIZES:
        found = measured(confidence, right, n, 300, others=False)["here"]
        assert found[0] >= 0.88 and found[1] == 1, n  # the least is 0.92, and of 300 its standard error 0.016


def test_the_interval_of_a_mean_covers_from_ten_samples_on() -> None:
    """Plain percentiles hold the mean of 10 normal samples in 89 %; of hits the interval is Wilson's."""
    draws = np.random.default_rng(0)
    held = [mean.low <= 0 <= mean.high for mean in (mean_of(draws.normal(size=10)) for _ in range(1500))]
    assert 0.93 <= np.mean(held) <= 0.965
    low, high = percentiles(10)
    reach = np.sqrt(10 / 9) * stats.t(9).ppf(0.975)
    assert (low, high) == pytest.approx((100 * stats.norm.cdf(-reach), 100 * stats.norm.cdf(reach)))
    assert percentiles(100_000) == pytest.approx((2.5, 97.5), abs=1e-3) and percentiles(1) == (0, 100)
    assert mean_of(np.linspace(0, 1, 9)) == Figure(0.5, 9) and mean_of(np.ones(10)) == Figure(1, 10, 1, 1, "bootstrap")
    assert share_of(np.array([True, True, False])) == Figure(2 / 3, 3, *wilson(2, 3), "Wilson score")
    assert proportion(0, 0) == Figure(math.nan, 0)


def test_the_interval_over_draws_knows_of_other_draws_and_other_samples() -> None:
    """Of 60 samples under 5 draws, whose spread is most of it: over samples alone it is too narrow."""
    stream, held, alone = np.random.default_rng(3), [], []
    for _ in range(600):
        chances = 0.6 + 0.08 * stream.normal(size=5) + 0.1 * stream.normal(size=(60, 1))
        figures = (stream.random((60, 5)) < chances).astype(float)
        held.append(within(0.6, draws_interval(figures)))
        mean = mean_of(figures.mean(axis=1))
        alone.append(within(0.6, (mean.low, mean.high)))
    assert 0.93 <= np.mean(held) <= 0.99 and np.mean(alone) < 0.85
    parts = figures.mean(axis=1).var(ddof=1) / 60, figures.mean(axis=0).var(ddof=1) / 5
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 59 + parts[1] ** 2 / 4)
    reach = stats.t(freedom).ppf(0.975) * np.sqrt(sum(parts))
    assert draws_interval(figures) == pytest.approx((figures.mean() - reach, figures.mean() + reach))
    assert np.isnan(draws_interval(figures[:, :1])).all() and draws_interval(np.ones((9, 3))) == (1, 1)


def within(truth: float, ends: tuple[float, float]) -> bool:
    return ends[0] <= truth <= ends[1]


def _drawn_errors(confidence: Floats, off: Floats, size: int) -> Floats:
    """Calibration errors of samples drawn again, each with an outcome of its own."""
    stream, n, found = np.random.default_rng(1), len(confidence), []
    for _ in range(size):
        index = stream.integers(0, n, n)
        right = stream.random(n) < np.clip(confidence - off, 0, 1)[index]
        found.append(calibration_error(confidence[index], right.astype(float)))
    return np.array(found)


def test_its_lower_end_is_where_so_large_an_estimate_is_just_not_refuted() -> None:
    """By brute force: with the gaps found in each bin shrunk to that end, 2.5 % of estimates are as large."""
    stream = np.random.default_rng(2)
    confidence = stream.uniform(0.4, 0.95, 300)
    correct = (stream.random(300) < confidence - 0.15).astype(float)
    bins = np.ceil(confidence * 15).astype(int)
    gap = {place: float((confidence - correct)[bins == place].mean()) for place in set(bins.tolist())}
    estimate, (low, high) = calibration_error(confidence, correct), calibration_interval(confidence, correct)
    assert 0 < low < estimate < high
    off = np.array([gap[place] for place in bins.tolist()]) * low / estimate
    assert (_drawn_errors(confidence, off, 2000) >= estimate).mean() == pytest.approx(0.025, abs=0.012)
    order = stream.permutation(300)
    assert calibration_interval(confidence[order], correct[order]) == pytest.approx((low, high), abs=1e-5)


def test_what_its_interval_is_without_samples_and_without_noise() -> None:
    assert all(map(math.isnan, calibration_interval(np.array([]), np.array([]))))
    assert calibration_interval(np.ones(4), np.ones(4)) == (0.0, 0.0)
    low, high = calibration_interval(np.array([0.9]), np.array([1.0]))
    assert low == 0 and 0.1 < high <= 1
    assert calibration_interval(np.ones(6), np.zeros(6))[1] == 1


def test_an_interval_holds_its_own_estimate() -> None:
    stream = np.random.default_rng(0)
    for n in (2, 3, 11, 60):
        values = np.exp(stream.normal(0, 4, (n, 3)))  # skewed, as losses are
        largest = float(values.mean(0).max())
        ((low, high),) = bootstrap(lambda counts, v=values: (counts @ v / len(v)).max(axis=1), n, [largest])
        assert low <= largest <= high
        rare = resampled_figures(lambda counts: (counts > 0).mean(axis=1), n)  # of classes that one sample has each
        assert intervals(rare, n, [1.0])[0][1] == 1.0
    assert include_estimate(0.3, 0.4, 0.5) == (0.3, 0.5) and include_estimate(0.6, 0.4, 0.5) == (0.4, 0.6)
    assert all(map(math.isnan, include_estimate(math.inf, math.nan, math.nan)))
    assert include_estimate(1.0, 0.5, math.inf) == (0.5, math.inf)


def test_rounding_is_no_width() -> None:
    """As many right under every condition, 3 of 5: sums in another order differ in the last bit."""
    n = 30
    share = np.full(n, 0.1 + 0.2)
    ((low, high),) = bootstrap(lambda counts: counts @ (share * 1.1) / n, n, [float((share * 1.1).mean())])
    assert low == high == float((share * 1.1).mean())


def test_no_bound_on_the_calibration_error_is_both_kept_and_broken(tmp_path: Path) -> None:
    """Of a calibrated model nearly all resamples have a larger error."""
    stream = np.random.default_rng(7)
    confidence = stream.uniform(0.1, 1, 60)
    rows = [row(i, bool(stream.random() < c), confidence=float(c)) for i, c in enumerate(confidence)]
    run = make_run(tmp_path, {"clean": rows})
    found = next(r for r in survey(run) if r.metric == "ece")
    assert found.low <= found.value <= found.high and found.low == 0
    bounds = [*np.linspace(0.01, 0.4, 40), found.value + 1e-6, found.value - 1e-6]
    rules = [f"ece under clean {sign} {b:.9f}{sure}" for b in bounds for sure in ("", SURE) for sign in (">=", "<")]
    policy = parse_policy("".join(f"[[rule]]\nrequire = '{rule}'\n" for rule in rules), "p")
    states = [verdict.state for verdict in judge(policy, run).verdicts]
    for at_least, below, surely, surely_not in zip(*(states[part::4] for part in range(4)), strict=True):
        assert {at_least, below} == {PASS, FAIL}
        assert not (surely == PASS and below == PASS) and not (surely_not == PASS and at_least == PASS)
