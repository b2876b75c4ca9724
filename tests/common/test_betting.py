"""Tests of a mean that may be looked at whenever one likes: the books, the error, and what they take."""

from __future__ import annotations

import math

import numpy as np
import pytest
from betting_oracles import capitals, verdict

from robustkit.common.intervals import Floats, wilson
from robustkit.slices.until_decided.sequential import BETS, SHARES, Capital, SequentialTest, WholeGroups
from scripts.studies.statistics.until_decided import Taken, changes, decided, ends, fixed, peeked

MADE = np.random.default_rng(3)
STREAMS: dict[str, Floats] = {
    "right": (MADE.random(60) < 0.9).astype(float),
    "wrong": (MADE.random(60) < 0.2).astype(float),
    "changes": changes(0.3, 0.05, 60, MADE),
    "shares": MADE.random(60),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("bound", [0.05, 0.5, 0.6])
def test_capitals_and_verdicts_are_those_of_the_books(name: str, bound: float) -> None:
    values = STREAMS[name]
    kept = np.exp(Capital(bound).take(values))
    assert kept == pytest.approx([*map(float, capitals(values.tolist(), bound, BETS.tolist(), SHARES.tolist()))])
    assert ends(values, bound, 0.05) == verdict(values.tolist(), bound, 0.05, BETS.tolist(), SHARES.tolist())


def test_capital_is_that_of_another_implementation() -> None:
    """After each tenth value: the mean of confseq 0.0.11's `betting_mart` over bettors, weighted by their shares, each
    with the constant bet `bet / bound`, theta=1 and trunc_scale=1. It needs a compiler and Boost to be installed.
    """
    theirs = [1.549656648748968, 12.991493926365196, 44.851136262437635, 52.95231058212013, 94.24272433790877]
    theirs += [232.30413469561958]
    assert np.exp(Capital(0.4).take(STREAMS["shares"]))[9::10] == pytest.approx(theirs, rel=1e-12)


def test_the_bets_are_made_before_the_value_is_seen_and_fair() -> None:
    for bound in (0.1, 0.5, 0.8):
        mean = bound * math.exp(Capital(bound).take(np.ones(1))[0]) + (1 - bound) * math.exp(
            Capital(bound).take(np.zeros(1))[0]
        )
        assert mean == pytest.approx(1)
    assert SHARES.sum() == pytest.approx(1) and BETS.max() < 1


@pytest.mark.parametrize("size", [1, 7, 32, 1000])
def test_looks_in_other_places_say_the_same(size: int) -> None:
    stream = np.random.default_rng(1)
    for share in (0.45, 0.5, 0.7):
        values = (stream.random(400) < share).astype(float)
        test = SequentialTest(0.55, 0.05)
        for start in range(0, len(values), size):
            test.take(values[start : start + size])
        assert (test.decision, test.taken) == ends(values, 0.55, 0.05)
        assert test.mean == pytest.approx(values[: test.taken].mean())


@pytest.mark.parametrize("error", [0.05, 0.01])
@pytest.mark.parametrize("bound", [0.1, 0.55, 0.9])
def test_where_the_truth_is_the_bound_either_side_is_said_no_more_often_than_the_error(
    bound: float, error: float
) -> None:
    above, below = decided(bound, bound, error, 1500)  # exactly, with a look after every sample
    assert 0.4 * error < above.sum() <= error and 0.4 * error < below.sum() <= error


def test_an_interval_of_fixed_n_does_not_keep_its_error_where_one_looks_again() -> None:
    inside = [low <= 0.5 <= high for low, high in (wilson(hits, 10) for hits in range(11))]
    chances = [math.comb(10, hits) / 2**10 for hits in range(11)]
    assert peeked(0.5, 10) == pytest.approx(sum(c for c, held in zip(chances, inside, strict=True) if not held))
    assert peeked(0.5, 10) < 0.05 and peeked(0.5, 300) > 0.2


def test_differences_at_the_bound_are_decided_wrongly_no_more_often_than_the_error() -> None:
    stream = np.random.default_rng(0)
    for down, up in ((0.05, 0.03), (0.02, 0.0)):
        found = [ends(changes(down, up, 1000, stream), 0.51, 0.05)[0] for _ in range(400)]
        for side in (1, -1):
            assert found.count(side) / 400 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)


def test_it_takes_about_the_n_that_one_plans_who_knows_the_gap() -> None:
    for bound, share in ((0.55, 0.65), (0.55, 0.45), (0.8, 0.9), (0.1, 0.2)):
        planned = fixed(share - bound, (bound * (1 - bound), share * (1 - share)), 0.05)
        above, below = decided(share, bound, 0.05, 8 * planned)
        taken, right = Taken.of(above + below), above if share > bound else below
        assert taken.mean < 1.1 * planned and taken.median < planned < taken.most < 2.2 * planned
        assert right.sum() > 0.99


def test_what_is_decided_stays_so() -> None:
    test = SequentialTest(0.5, 0.05)
    test.take(np.ones(100))
    said = test.decision, test.taken, test.mean
    test.take(np.zeros(1000))
    assert said == (1, 7, 1.0) == (test.decision, test.taken, test.mean)


@pytest.mark.parametrize("value", [1.01, -0.01, math.nan])
def test_values_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"expected values in \[0, 1\]"):
        SequentialTest(0.5, 0.05).take(np.array([0.5, value]))


def grouped_stream(stream: np.random.Generator) -> tuple[list[str], dict[str, str], dict[str, float]]:
    """Ids of 60 groups of 1 to 12 samples, one group after another, all of a group right or wrong with even odds."""
    sizes = stream.integers(1, 13, 60)
    groups = {f"{group}/{place}": str(group) for group, size in enumerate(sizes) for place in range(size)}
    right = stream.integers(0, 2, 60).astype(float)
    return list(groups), groups, {name: right[int(group)] for name, group in groups.items()}


def test_whole_groups_keep_the_error_where_samples_do_not() -> None:
    stream, wrong = np.random.default_rng(4), {"samples": 0, "groups": 0}
    for _ in range(300):
        ids, groups, values = grouped_stream(stream)
        for kind in wrong:
            test = SequentialTest(0.5, 0.05)
            if kind == "samples":
                test.take(np.array(list(values.values())))
            else:
                WholeGroups(test, groups).take(ids, values)
            wrong[kind] += test.decision == 1
    assert wrong["groups"] / 300 <= 0.05 < 0.2 < wrong["samples"] / 300


def test_a_group_is_looked_at_once_all_of_it_came() -> None:
    groups = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "c1": "c"}
    test = SequentialTest(0.4, 0.05)
    whole, alone = WholeGroups(test, groups), SequentialTest(0.4, 0.05)
    whole.take(["a1", "a2"], {"a1": 1.0, "a2": 0.0})
    assert (test.taken, whole.taken) == (0, 0) and math.isnan(whole.mean)
    whole.take(["a3", "b1"], {"b1": 1.0})  # a3 could not be read
    alone.take(np.array([0.4 + (1.0 - 2 * 0.4) / 3, 0.4 + (1 - 0.4) / 3]))
    assert (test.taken, test.total) == (2, alone.total) and (whole.taken, whole.mean) == (3, 2 / 3)
    whole.take(["c1"], {})  # nothing of it counts
    assert (test.taken, whole.taken) == (2, 3)
