"""Intervals and tests of samples in groups: against statsmodels, slow replicas and closed forms."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from robustkit.common.differences import CLUSTER_TEST, of_draws, of_means, of_ranks
from robustkit.common.figure import CLUSTERED, Figure
from robustkit.common.groups import EXACT, FEW, MANY, Groups, cluster_variance, grouped_mean, suspected_groups
from robustkit.common.intervals import (
    Floats,
    bootstrap,
    draws_interval,
    mean_of,
    resampled_figures,
    resampled_sums,
    share_of,
    wilson,
)


def drawn(count: int, seed: int, largest: int = 8) -> tuple[Floats, Groups]:
    """Return values that resemble each other within groups of 1 to `largest` samples, in a random order."""
    generator = np.random.default_rng(seed)
    codes = generator.permutation(np.repeat(np.arange(count), generator.integers(1, largest + 1, count)))
    values = generator.standard_normal(len(codes)) + generator.standard_normal(count)[codes]
    return values, Groups(codes, count)


def test_groups_are_named_and_counted() -> None:
    groups = Groups.of(["b", "a", "b", "c", "b"])
    assert groups is not None and groups.count == 3
    assert groups.codes.tolist() == [1, 0, 1, 2, 1] and groups.sizes.tolist() == [1, 3, 1]
    assert groups.sums(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).tolist() == [2, 9, 4]
    some = groups.only(np.array([True, False, True, True, False]))
    assert some is not None and (some.codes.tolist(), some.count) == ([0, 0, 1], 2)
    assert groups.only(np.array([False, True, True, False, False])) is None
    assert Groups.of(["a", "c", "b"]) is None and Groups.of([]) is None  # each alone: nothing changes


@pytest.mark.parametrize("seed", range(10))
def test_many_groups_have_the_interval_of_cluster_robust_regression(seed: int) -> None:
    api = pytest.importorskip("statsmodels.api", reason="statsmodels is not installed")
    values, groups = drawn(MANY + 7 * seed, seed)
    fitted = api.OLS(values, np.ones((len(values), 1))).fit(
        cov_type="cluster", cov_kwds={"groups": groups.codes}, use_t=True
    )
    mean = grouped_mean(values, groups)
    theirs = (fitted.params[0], *fitted.conf_int()[0], fitted.pvalues[0])
    assert (mean.value, mean.low, mean.high, mean.p_value) == pytest.approx(theirs, rel=0, abs=1e-10)
    assert cluster_variance(values, groups) == pytest.approx(fitted.bse[0] ** 2, rel=1e-10)
    n = len(values)
    assert mean.effect == pytest.approx(fitted.bse[0] ** 2 / (values.var(ddof=1) / n), rel=1e-10)


def slow_p_value(values: Floats, groups: Groups, null: float) -> float:
    """The wild cluster bootstrap with all signs, each statistic by itself."""
    n, statistics = len(values), []
    for signs in itertools.product((1, -1), repeat=groups.count):
        sample = null + np.array(signs)[groups.codes] * (values - null)
        residuals = groups.sums(sample - sample.mean())
        statistics.append(abs(sample.mean() - null) * n / math.sqrt(float(residuals @ residuals)))
    return float(np.mean([each >= statistics[0] - 1e-9 for each in statistics]))


@pytest.mark.parametrize("count", [FEW, 7, 9])
def test_few_groups_are_tested_by_their_signs(count: int) -> None:
    values, groups = drawn(count, count)
    mean = grouped_mean(values, groups)
    assert mean.p_value == pytest.approx(slow_p_value(values, groups, 0.0), abs=1e-12)
    for end, outwards in ((mean.low, -1), (mean.high, 1)):
        step = outwards * 1e-4 * (mean.high - mean.low)
        assert slow_p_value(values, groups, end - step) >= 0.05 > slow_p_value(values, groups, end + step)


@pytest.mark.parametrize("count", [2, FEW - 1, FEW, EXACT, EXACT + 1, MANY - 1, MANY])
def test_an_interval_holds_zero_wherever_no_difference_is_not_refuted(count: int) -> None:
    for seed in range(12):
        values, groups = drawn(count, seed)
        mean = grouped_mean(values + (seed - 6) / 6, groups)
        assert (mean.low <= 0 <= mean.high) == (mean.p_value >= 0.05), (count, seed)
        assert mean.low < mean.value < mean.high


def test_the_order_of_samples_and_a_shift_change_nothing() -> None:
    values, groups = drawn(20, 1)
    mean, order = grouped_mean(values, groups), np.random.default_rng(0).permutation(len(values))
    again = grouped_mean(values[order] + 2, Groups(groups.codes[order], 20))
    assert (again.value - 2, again.low - 2, again.high - 2, again.effect) == pytest.approx(
        (mean.value, mean.low, mean.high, mean.effect), abs=1e-9
    )


def test_where_groups_agree_or_are_one_there_is_no_interval() -> None:
    agreeing = Groups(np.array([0, 0, 1, 1]), 2)
    mean = grouped_mean(np.array([0.0, 1.0, 1.0, 0.0]), agreeing)
    assert (mean.value, mean.effect) == (0.5, 0.0) and math.isnan(mean.low) and math.isnan(mean.p_value)
    one = grouped_mean(np.array([0.0, 1.0]), Groups(np.array([0, 0]), 1))
    assert one.value == 0.5 and math.isnan(one.high) and math.isnan(one.effect)
    same = grouped_mean(np.full(4, 0.1), agreeing)
    assert (same.low, same.high) == (same.value, same.value) and math.isnan(same.effect) and math.isnan(same.p_value)
    assert math.isnan(of_means(np.zeros(4), np.full(4, 0.1), False, agreeing).ci_low)


def test_figures_say_their_groups() -> None:
    values, groups = drawn(60, 3)
    figure, mean = mean_of(values, groups), grouped_mean(values, groups)
    assert (figure.low, figure.high, figure.groups, figure.effect) == (mean.low, mean.high, 60, mean.effect)
    assert figure.interval == CLUSTERED and mean_of(values).groups == 0
    plain = figure.of("clean", "top1").to_plain()
    assert (plain["groups"], plain["design_effect"]) == (60, mean.effect)
    assert Figure.from_plain(plain).to_plain() == plain
    assert "groups" not in mean_of(values).to_plain()


def test_the_interval_of_a_share_is_within_its_bounds_and_never_empty() -> None:
    codes = np.repeat(np.arange(10), 5)
    groups = Groups(codes, 10)
    right = share_of(np.ones(50), groups)
    t = 2.2621571627409915  # of 9 degrees of freedom
    assert (right.value, right.high) == (1.0, 1.0) and right.low == pytest.approx(wilson(10, 10, t)[0])
    hits = (np.arange(50) % 5 == 0) | (codes < 9)
    share = share_of(hits, groups)
    mean = grouped_mean(hits.astype(float), groups)
    sums = [sum(hits[codes == code] - hits.mean()) for code in range(10)]
    freedom = 2 * sum(each**2 for each in sums) ** 2 / sum(each**4 for each in sums) - 1
    assert 1 < freedom < 9  # one group has all misses
    score = wilson(mean.value * 50 / mean.effect, 50 / mean.effect, student.ppf(0.975, freedom))
    assert (share.low, share.high) == pytest.approx(score) and 0 < share.low < share.value < share.high < 1
    assert (share.effect, share.interval) == (pytest.approx(mean.effect), CLUSTERED)
    assert share_of(np.zeros(0), groups).n == 0


def test_a_share_has_the_degrees_of_freedom_of_its_groups_where_no_few_have_the_misses() -> None:
    codes = np.repeat(np.arange(12), np.tile([2, 6], 6))
    groups, of_groups = Groups(codes, 12), [[1, 1], [1, 1, 1, 1, 0, 0], [0, 0], [1, 1, 0, 0, 0, 0]] * 3
    share = share_of(np.concatenate(of_groups) == 1, groups)  # each has one hit more, or less, than half
    samples, z = 48 / share.effect, student.ppf(0.975, 48**2 / (6 * (4 + 36)) - 1)
    assert (share.low, share.high) == pytest.approx(wilson(share.value * samples, samples, z))


@pytest.mark.parametrize(("share", "correlation", "count"), [(0.9, 0.5, 20), (0.9, 0.0, 10), (0.5, 0.2, 20)])
def test_shares_are_covered(share: float, correlation: float, count: int) -> None:
    stream, held, rounds = np.random.default_rng(count), 0, 1200
    for _ in range(rounds):
        codes = np.repeat(np.arange(count), stream.integers(1, 20, count))
        own = stream.standard_normal(count)[codes], stream.standard_normal(len(codes))
        latent = math.sqrt(correlation) * own[0] + math.sqrt(1 - correlation) * own[1]
        figure = share_of(latent < norm.ppf(share), Groups(codes, count))
        held += figure.low <= share <= figure.high
    assert 0.925 <= held / rounds <= 0.975  # .935 to .965, and two standard errors


def test_whole_groups_are_resampled() -> None:
    values, groups = drawn(12, 5)
    counts = resampled_figures(lambda counts: counts, len(values), groups)
    assert (counts == counts[:, [int(np.flatnonzero(groups.codes == code)[0]) for code in groups.codes]]).all()
    of_each = counts[:, [int(np.flatnonzero(groups.codes == code)[0]) for code in range(12)]]
    assert (of_each.sum(axis=1) == 12).all() and of_each.max() > 1
    sums = resampled_sums(lambda some: np.round(values[some, None]), len(values), True, groups)
    assert sums[0, 0] == np.round(values).sum() and (sums[1:, 0] == counts @ np.round(values)).all()
    (grouped,), (alone,) = (
        bootstrap(lambda counts: counts @ values / counts.sum(axis=1), len(values), [float(values.mean())], each)
        for each in (groups, None)
    )
    assert grouped[1] - grouped[0] > 1.5 * (alone[1] - alone[0])


def test_differences_of_groups() -> None:
    values, groups = drawn(30, 7)
    after = values + np.random.default_rng(1).standard_normal(len(values))
    mean = grouped_mean(after - values, groups)
    difference = of_means(values, after, False, groups)
    assert (difference.ci_low, difference.ci_high, difference.p_value) == (mean.low, mean.high, mean.p_value)
    assert difference.test == CLUSTER_TEST == of_means(1.0 * (values > 0), 1.0 * (after > 0), True, groups).test
    alike = of_means(np.zeros(len(values)), np.ones(len(values)), True, groups)  # all differ alike: one sign each
    assert alike.p_value == 2 * 0.5**30 and of_means(values, values, False, groups).p_value == 1.0
    draws = values[:, None] + np.arange(3.0) / 1000
    assert draws_interval(draws / 20 + 0.5, groups)[0] < draws_interval(draws / 20 + 0.5)[0]
    assert of_draws(draws, draws + after[:, None], groups).p_value > of_draws(draws, draws + after[:, None]).p_value


def test_ranks_of_groups_of_one_sample_are_ranks_of_samples() -> None:
    values, groups = drawn(40, 9)
    after = values + np.random.default_rng(2).standard_normal(len(values)) + 0.1
    alone = Groups(np.arange(len(values)), len(values))
    assert replace(of_ranks(values, after, alone), groups=0) == of_ranks(values, after)
    together = values + groups.codes / 40 - 0.4  # each group moves as one
    assert of_ranks(values, together, groups).p_value > 10 * of_ranks(values, together).p_value > 0


def alike(count: int, size: int, seed: int) -> Floats:
    """Right or wrong, of groups of `size` samples one after another, each with a share of its own."""
    stream = np.random.default_rng(seed)
    return (stream.random((count, size)) < stream.beta(0.6, 0.4, (count, 1))).astype(np.float64).ravel()


IN_FOLDERS = [f"ward/p{group:02}/slice{place}.png" for group in range(30) for place in range(8)]
FRAMES = [f"drive{drive}_{30 * frame:05}.png" for drive in range(2) for frame in range(120)]


@pytest.mark.parametrize(
    ("ids", "outcomes", "pattern", "count"),
    [
        (IN_FOLDERS, alike(30, 8, 0), r"^(?:[^/]*/){2}", 30),
        ([name.replace("/slice", "_") for name in IN_FOLDERS], alike(30, 8, 0), r"^(.*\D)\d+(?:\.\w+)?$", 30),
        (FRAMES, alike(12, 20, 1), r"^(.*\d)\d\d(?:\.\w+)?$", 72),
        (FRAMES, alike(2, 120, 7), r"^(.*\D)\d+(?:\.\w+)?$", 2),
        (IN_FOLDERS, (np.random.default_rng(3).random(240) < 0.8).astype(np.float64), "", 0),
        (IN_FOLDERS, np.ones(240), "", 0),
        (IN_FOLDERS, np.concatenate([[0.0, 0.0], np.ones(238)]), "", 0),  # two errors in one folder may be chance
        (["one.png"], np.ones(1), "", 0),
        ([f"{hash(str(place)):x}" for place in range(240)], alike(30, 8, 0), "", 0),  # no id says which are alike
    ],
)
def test_samples_that_are_alike_are_found_where_their_ids_say_which(
    ids: list[str], outcomes: Floats, pattern: str, count: int
) -> None:
    found = suspected_groups(ids, outcomes, None)
    assert (found.pattern, found.groups) == (pattern, count) if found else not pattern
    order = np.random.default_rng(0).permutation(len(ids))
    again = suspected_groups([ids[place] for place in order], outcomes[order], None)
    assert (again and (again.pattern, again.groups)) == (found and (found.pattern, found.groups))
    if found is not None:
        matches = [re.search(found.pattern, name) for name in ids]
        groups = Groups.of([each[each.re.groups] for each in matches if each])
        left = outcomes - outcomes.mean()
        assert groups is not None and groups.count == count
        assert found.effect == pytest.approx(np.square(groups.sums(left)).sum() / (left @ left))


def test_what_classes_explain_is_no_dependence() -> None:
    stream = np.random.default_rng(5)
    labels = np.repeat(np.arange(12), 20)
    outcomes = (stream.random(240) < np.linspace(0.1, 0.95, 12)[labels]).astype(np.float64)
    ids = [f"n{label:02}/{place:03}.png" for place, label in enumerate(labels)]
    assert suspected_groups(ids, outcomes, labels) is None
    found = suspected_groups(ids, outcomes, None)
    assert found is not None and found.groups == 12


def test_independent_samples_are_seldom_suspected() -> None:
    stream = np.random.default_rng(6)
    said = [suspected_groups(FRAMES, (stream.random(240) < share).astype(float), None) for share in (0.5, 0.9) * 100]
    assert sum(each is not None for each in said) <= 1
