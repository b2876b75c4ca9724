"""mAP, F1 and figures of labels, against scikit-learn: ties, rare labels, unknown ones, resampled images, flips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from robustkit.common.finding import Finding
from robustkit.common.intervals import resampled_figures
from robustkit.errors import DamagedRecord
from robustkit.evaluations.corruptions import QUICK
from robustkit.runs.metadata import SampleGroups
from robustkit.slices.multilabel.figures import (
    COLUMNS,
    FIGURES,
    LEFT_EARLY,
    LEFT_OUT,
    OF_LABELS,
    RARE,
    Outcomes,
    average_precision,
    flip_shares,
    outcome_rows,
    place_of,
)
from robustkit.slices.multilabel.task import means_of

metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is of the extra test")
NAMES = ["a", "b", "c", "d", "e"]


def outcomes(n: int = 60, seed: int = 0, **changes: Any) -> Outcomes:
    """Return outcomes whose scores tie; every image has the label `d`, none has `e`."""
    rng = np.random.Generator(np.random.PCG64(seed))
    truths = rng.integers(0, 2, (n, 5)).astype(np.int8)
    truths[:, 3], truths[:, 4] = 1, 0
    scores = rng.integers(-4, 5, (n, 5)) + truths
    scores = changes.pop("logits", scores.astype(np.float64))
    predicted = scores > 0
    correct = (predicted == (truths == 1)).all(axis=1).astype(np.float64)
    ids = pa.array([f"{place:03d}" for place in range(n)])
    bce = np.arange(n, dtype=np.float64)
    return Outcomes(
        ids, **{"truths": truths, "logits": scores, "predicted": predicted, "correct": correct, "bce": bce} | changes
    )


def value(some: Outcomes, metric: str) -> float:
    place = place_of(metric, NAMES)
    assert place is not None
    return float(some.values[place])


def test_all_figures_are_scikit_learns() -> None:
    some = outcomes()
    held, had = some.truths == 1, [0, 1, 2, 3]
    precisions = [metrics.average_precision_score(held[:, k], some.logits[:, k]) for k in had]
    assert precisions[3] == 1.0  # every image has it
    np.testing.assert_allclose([value(some, f"ap({NAMES[k]})") for k in had], precisions, rtol=0, atol=1e-12)
    assert np.isnan(value(some, "ap(e)")) and value(some, "map") == pytest.approx(np.mean(precisions), abs=1e-12)
    for metric, average, labels in (("micro_f1", "micro", None), ("macro_f1", "macro", had)):
        theirs = metrics.f1_score(held, some.predicted, average=average, labels=labels)
        assert value(some, metric) == pytest.approx(theirs, abs=1e-12)
    theirs = metrics.precision_recall_fscore_support(held, some.predicted, zero_division=np.nan)[:3]
    for kind, each in zip(OF_LABELS[1:], theirs, strict=True):
        ours = [value(some, f"{kind}({name})") for name in NAMES]
        np.testing.assert_allclose(ours, each, rtol=0, atol=1e-12)
    assert value(some, "bce") == 29.5 and value(some, "exact_match") == metrics.accuracy_score(held, some.predicted)


def test_resampled_figures_are_those_of_images_that_occur_as_often() -> None:
    some = outcomes(25)
    drawn = np.random.Generator(np.random.PCG64(3)).integers(0, 3, (4, 25)).astype(np.float64)
    drawn[3, some.truths[:, 0] == 1] = 0  # no image left that has the first label
    for row, ours in zip(drawn, some.figures(drawn), strict=True):
        places = np.repeat(np.arange(25), row.astype(int))
        held, scores, predicted = (each[places] for each in (some.truths == 1, some.logits, some.predicted))
        had = np.flatnonzero(held.any(axis=0))
        precisions = [metrics.average_precision_score(held[:, k], scores[:, k]) for k in had]
        f1 = metrics.f1_score(held, predicted, average="macro", labels=had)
        np.testing.assert_allclose(ours[[0, 2]], [np.mean(precisions), f1], rtol=0, atol=1e-12)


def test_unknown_labels_count_nowhere() -> None:
    truths = outcomes().truths.copy()
    truths[::3, 0] = truths[1::3, 1] = -1
    some = outcomes(truths=truths)
    for place, name in enumerate("ab"):
        labelled = truths[:, place] >= 0
        labels, scores, predicted = (each[labelled, place] for each in (truths == 1, some.logits, some.predicted))
        assert value(some, f"ap({name})") == pytest.approx(metrics.average_precision_score(labels, scores), abs=1e-12)
        assert value(some, f"f1({name})") == pytest.approx(metrics.f1_score(labels, predicted), abs=1e-12)
    labelled = truths >= 0
    theirs = metrics.f1_score((truths == 1)[labelled], some.predicted[labelled])
    assert value(some, "micro_f1") == pytest.approx(theirs, abs=1e-12)
    rows = {row.metric: row for row in outcome_rows("clean", some, NAMES)}
    labels, positives = truths[:, 0] == 1, some.predicted[:, 0] & (truths[:, 0] >= 0)
    counts = {labels.sum(), positives.sum(), (truths[:, 0] >= 0).sum(), some.predicted[:, 0].sum()}
    assert len(counts) == 4  # so that one cannot stand for another
    assert [rows[f"{word}(a)"].n for word in OF_LABELS] == [labels.sum(), positives.sum(), labels.sum(), labels.sum()]


def test_a_logit_that_is_not_a_number_ranks_as_wrong_as_it_can() -> None:
    held, scores = np.array([True, False, True, False]), np.array([3.0, 2.0, 1.0, 0.0])
    whole = np.ones((1, 4))
    assert average_precision(held, scores, whole)[0] == (1 + 2 / 3) / 2
    for place, worst in ((0, -np.inf), (3, np.inf)):
        logits, ranked = np.tile(scores[:, None], (1, 5)), scores.copy()
        logits[place], ranked[place] = np.nan, worst
        truths = np.tile(held[:, None], (1, 5)).astype(np.int8)
        some = outcomes(4, logits=logits, truths=truths)
        assert value(some, "ap(a)") == average_precision(held, ranked, whole)[0] < (1 + 2 / 3) / 2


def test_few_images_have_no_interval_and_left_out_labels_are_named() -> None:
    truths = outcomes().truths.copy()
    truths[:, 0], truths[:, 1] = 0, 0
    truths[:10, 0], truths[:9, 1] = 1, 1
    rows = {row.metric: row for row in outcome_rows("clean", outcomes(truths=truths), NAMES)}
    assert rows["ap(a)"].has_interval and not rows["ap(b)"].has_interval and "ap(e)" not in rows
    assert rows["map"].has_interval and rows["map"].low < rows["map"].value < rows["map"].high
    left = Finding.of(LEFT_OUT, left=4, labels=5, names="e")
    assert [metric for metric, row in rows.items() if left in row.findings] == ["map", "macro_f1"]
    assert left.text == "the mean is over 4 of 5 labels: no image has e"
    for n, has in ((10, True), (9, False)):
        assert {row.has_interval for row in outcome_rows("clean", outcomes(n), NAMES) if row.metric == "map"} == {has}
    early = [
        row.metric for row in outcome_rows("x", outcomes(), NAMES, early=True) if Finding.of(LEFT_EARLY) in row.findings
    ]
    of_labels = [row.metric for row in outcome_rows("x", outcomes(), NAMES) if "(" in row.metric]
    assert early == ["bce", "map", "micro_f1", "macro_f1", *of_labels]
    rare = Finding.of(RARE, count=1, of=4)  # nine images have b, ten have a
    assert [metric for metric, row in rows.items() if rare in row.findings] == ["map", "macro_f1"]
    assert rare.text == "1 of 4 labels are in fewer than 10 images"


def test_intervals_of_rare_labels_hold_the_truth() -> None:
    """Twenty labels, each in 3 % of 300 images: percentiles of resamples were above the truth in three of four sets."""

    def drawn(n: int, rng: np.random.Generator) -> Outcomes:
        truths = (rng.random((n, 20)) < 0.03).astype(np.int8)
        return outcomes(n, truths=truths, logits=rng.normal(size=(n, 20)) + 1.5 * truths)

    def outcomes(n: int, truths: Any, logits: Any) -> Outcomes:
        ids = pa.array([f"{place:05d}" for place in range(n)])
        return Outcomes(ids, truths, logits, logits > 0, np.zeros(n), np.zeros(n))

    rng = np.random.Generator(np.random.PCG64(1))
    truth = drawn(30_000, rng).values[0]
    figures = [drawn(300, rng).figure(0) for _ in range(12)]
    assert sum(each.low <= truth <= each.high for each in figures) >= 10


def test_a_perfect_label_is_as_certain_as_its_images_allow() -> None:
    """Ten of sixty images have the label, and all are found; so of as many its precision."""
    truths = np.zeros((60, 5), np.int8)
    truths[:10, 0], truths[:, 1] = 1, 1
    logits = np.where(truths == 1, 1.0, -1.0)
    rows = {row.metric: row for row in outcome_rows("clean", outcomes(truths=truths, logits=logits), NAMES)}
    for word in OF_LABELS:
        ten, sixty = (rows[f"{word}({name})"] for name in "ab")
        assert (ten.n, ten.value, sixty.n, sixty.value) == (10, 1.0, 60, 1.0)
        assert (ten.low, ten.high) == pytest.approx((10 / (10 + 1.959964**2), 1.0), abs=1e-6)
        assert sixty.low == pytest.approx(60 / (60 + 1.959964**2), abs=1e-6)


def test_a_quick_set_says_that_it_was_measured_for_another_figure() -> None:
    quick = QUICK["in-c-quick"]
    every = {f"corruption({kind},severity={quick.severity})": outcomes() for kind in quick.kinds}
    noted = {row.condition: [one.code for one in row.findings] for row in means_of(every, 60)}
    assert noted.pop("in-c-quick") == ["corruptions/quick-elsewhere"] and not any(noted.values())


def test_without_any_label_there_is_no_mean() -> None:
    none = outcomes(truths=np.zeros((60, 5), np.int8))
    rows = {row.metric: row for row in outcome_rows("clean", none, NAMES)}
    assert {*rows} == {*FIGURES} and not rows["map"].is_finite and not rows["macro_f1"].is_finite
    assert rows["map"].findings[-1].text == "the mean is over 0 of 5 labels: no image has a, b, c, d, e"
    assert rows["micro_f1"].value == 0.0


def test_records_of_unlike_lengths_are_refused() -> None:
    columns = {name: [[1, 0], [0, 1]] for name in COLUMNS[1:4]}
    columns |= {"sample_id": ["b", "a"], "error": pa.nulls(2, pa.string()), "correct": [True, False], "bce": [1.0, 2.0]}
    read = Outcomes.of(pa.table(columns))
    assert (
        read.ids.to_pylist() == ["a", "b"] and read.truths.tolist() == [[0, 1], [1, 0]] and read.bce.tolist() == [2, 1]
    )
    assert len(Outcomes.of(pa.table(columns).slice(0, 0)).ids) == 0
    for logits in ([[1], [0, 1, 1]], [[1, 0], None]):
        with pytest.raises(DamagedRecord, match="images of unlike numbers of labels; delete it and run again"):
            Outcomes.of(pa.table(columns | {"logits": logits}))


def test_groups_are_resampled_as_a_whole() -> None:
    half = outcomes(30)
    twice = {
        name: np.repeat(getattr(half, name), 2, axis=0) for name in ("truths", "logits", "predicted", "correct", "bce")
    }
    ids = [f"{place:03d}" for place in range(60)]
    groups = SampleGroups("pair", pa.array(ids), np.arange(60) // 2)
    some = Outcomes(pa.array(ids), **twice, sample_groups=groups)
    figure, single = some.figure(0), half.figure(0)
    assert (figure.groups, figure.value) == (30, pytest.approx(single.value, abs=1e-12))
    assert figure.high - figure.low == pytest.approx(single.high - single.low, rel=0.02)
    free = Outcomes(pa.array(ids), **twice).figure(0)
    assert free.high - free.low < 0.85 * (figure.high - figure.low)


def test_flips_are_counted_by_label_and_by_image() -> None:
    before, after = outcomes(), outcomes()
    truths = before.truths.copy()
    truths[5:, 0] = -1
    predicted = before.predicted.copy()
    predicted[:, 0] = truths[:, 0] == 1
    turned = predicted.copy()
    turned[:2, 0] = ~turned[:2, 0]
    before, after = (
        outcomes(truths=truths, predicted=each, correct=(each[:, 0] == (truths[:, 0] == 1)) * 1.0)
        for each in (predicted, turned)
    )
    shares = flip_shares(before, after, 0)
    assert [(kind, each.value, each.n) for kind, each in shares.items()] == [
        ("negative flips", 0.4, 5),
        ("positive flips", 0.0, 5),
        ("churn", 0.4, 5),
    ]
    assert flip_shares(after, before, 0)["positive flips"].value == 0.4
    whole = flip_shares(before, after)
    assert whole["churn"].value == 2 / 60 == whole["negative flips"].value and whole["churn"].n == 60


def test_places_of_metrics() -> None:
    assert [place_of(name, NAMES) for name in (*FIGURES, "ap(a)", "f1(e)")] == [0, 1, 2, 3, 4, 5, 24]
    assert [place_of(name, NAMES) for name in ("ap(z)", "top1", "iou(a)", "ap(")] == [None] * 4
    assert resampled_figures(outcomes(12).figures, 12).shape == (1000, 25)
