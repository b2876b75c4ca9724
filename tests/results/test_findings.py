"""The sentences about a run, of records made by hand: what differs, in which direction, and what chance explains."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from compared_runs import FOG, NAMES, PGD, N, Rows, compared, records_of, rows_of, run_of

from robustkit.common.differences import Difference
from robustkit.evaluations.aggregate import Results
from robustkit.report.run import Run
from robustkit.results.comparison import compare_sides, pair_tests
from robustkit.results.pairing import checkpoint_pairs as pairs_of
from robustkit.results.published import Published
from robustkit.results.summary_text import detectable_difference, findings, summary_sentences
from robustkit.results.survey import survey, write_summary
from robustkit.results.tables import report_tables

HOSTILE = "<b>\u202ered\n" + "x" * 90


def of(run: Run) -> Results:
    return Results(run, [*survey(run)])


def right(n: int, first: int = 0) -> Rows:
    """Records of which n are right, from the sample `first` on."""
    loss = [row["nll"] for row in rows_of(0)]
    return [
        row | {"correct": first <= i < first + n, "nll": loss[i], "confidence": 0.5, "linf": 0.0, "l2": 0.0}
        for i, row in enumerate(rows_of(0))
    ]


def everywhere(
    plain: int, other: int, corrupted: int, conditions: tuple[str, ...] = ("clean",)
) -> dict[tuple[str, str], Rows]:
    """Records of two checkpoints, the other's under fog with their own number of right ones."""
    records = {(NAMES[0], text): right(plain) for text in (*conditions, *FOG)}
    records |= {(NAMES[1], text): right(other) for text in conditions}
    return records | {(NAMES[1], text): right(corrupted) for text in FOG}


def test_the_loser_is_named_with_size_p_and_n(tmp_path: Path) -> None:
    run = run_of(tmp_path, everywhere(36, 36, 20))
    said, first, left = findings(of(run))
    row = next(row for row in compared(run).rows if row.metric == "mean_error")
    assert first.text == "other is less robust than plain under fog (accuracy −40.0 points, p < 0.001, n = 40)."
    assert first.checkpoints == ("other", "plain")
    assert (first.group, first.condition, first.metric, first.n) == ("corruptions", "corruption(fog)", "mean_error", N)
    assert first.difference == pytest.approx(0.4) and first.p_value == row.p_value and first.significant
    assert first.interval == (row.difference.ci_low, row.difference.ci_high)
    assert said.text == (
        "other is significantly worse than plain under corruption; no significant difference on clean images (n = 40)."
    )
    # 7 of 40, all in one direction: 2 / 2 ** 7 is below 0.05 / 3
    assert left.text == "The smallest detectable difference is about 18 points."
    assert math.isnan(said.p_value) and summary_sentences(of(run)) == [said.text, first.text, left.text]


def test_what_falls_short_of_clean_images_does_not_lose_more(tmp_path: Path) -> None:
    """The other begins 30 points lower and ends 25 lower: it has more errors, but lost less on the way."""
    said = summary_sentences(
        of(run_of(tmp_path, everywhere(40, 28, 20) | {(NAMES[0], text): right(30) for text in FOG}))
    )
    assert said[0] == "other is significantly worse than plain on clean images and under corruption (n = 40)."
    assert said[1].startswith("other is less accurate than plain on clean images (accuracy −30.0 points, p = 0.001")
    assert said[2].startswith("other has a lower accuracy than plain under fog (−25.0 points, p = 0.002")


def test_both_directions_of_one_family_are_told(tmp_path: Path) -> None:
    snow = [text.replace("fog", "snow") for text in FOG]
    records = everywhere(36, 36, 16) | {("plain", text): right(22) for text in snow}
    said = summary_sentences(of(run_of(tmp_path, records | {("other", text): right(36) for text in snow})))
    assert said[0].startswith("No single winner under corruption; no significant difference on clean images (n = 40).")
    assert said[1].startswith("other is less robust than plain under fog (accuracy −50.0 points")
    assert said[2].startswith("other is more robust than plain under snow (accuracy +35.0 points")


def test_the_closest_call_is_of_an_area_without_a_difference(tmp_path: Path) -> None:
    """Of an area of several conditions, the one that differs is named; the others are not open for that."""
    snow = [text.replace("fog", "snow") for text in FOG]
    records = everywhere(36, 33, 16, ("clean", PGD)) | {("plain", text): right(36) for text in (*snow, "clean")}
    records |= {("other", text): right(31) for text in snow} | {("other", "clean"): right(36)}
    sentences = summary_sentences(of(run_of(tmp_path, records)))
    assert sentences[0].startswith(
        "other is significantly worse than plain under fog; no significant difference on clean "
    )
    assert sentences[-1].startswith("Still open: other vs plain, −7.5 points of accuracy under PGD (")


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_said_of_accuracy_is_not_said_of_a_loss(tmp_path: Path, lost: bool) -> None:
    """The third checkpoint's loss differs under PGD, where its accuracy does not: it is beaten all the same."""
    records = {(name, text): right(36) for name in (*NAMES, "third") for text in ("clean", PGD, *FOG)}
    records |= {(NAMES[1], text): right(16) for text in FOG}
    if lost:
        records["third", PGD] = [row | {"nll": row["nll"] + 1} for row in right(36)]
    said = summary_sentences(of(run_of(tmp_path, records)))[0]
    assert ("no significant difference in accuracy on clean images or under attack" in said) == lost
    assert said.partition("Never significantly worse: ")[2] == ("plain." if lost else "plain, third.")


def test_where_nothing_differs_that_is_said_with_what_could_have_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, everywhere(36, 34, 34, ("clean", PGD)))
    said = summary_sentences(of(run))
    assert len(said) == 2 and not findings(of(run))[0].significant
    assert said[0] == "No significant difference between plain and other in 5 paired tests (n = 40)."
    start = "Still open: other vs plain, −5.0 points of accuracy under fog [−12.1, +2.1]; about "
    ((said_start, every),) = re.findall(r"^(.*; about )(\d+) images in all would probably decide it\.$", said[1])
    assert said_start == start
    row = next(row for row in compared(run).rows if row.metric == "mean_error")
    reach = detectable_difference(row.difference, 5, binary=False)
    assert int(every) == pytest.approx(N * (reach / 0.05) ** 2, rel=0.05)
    # The exact test may miss a difference that the approximation counts as settled: never a negative number.
    monkeypatch.setattr("robustkit.results.summary_text.detectable_difference", lambda *_, **__: 0.04)
    assert f"about {N + 10} images in all" in summary_sentences(of(run))[1]


def test_an_interval_without_zero_that_is_not_significant_says_why(tmp_path: Path) -> None:
    """30 against 36 of 40, all in one direction: p = 0.031 alone, not significant as one of five tests."""
    said = summary_sentences(of(run_of(tmp_path, everywhere(36, 30, 30, ("clean", PGD)))))
    assert said[1].endswith("would probably decide it (the interval excludes 0, but 5 tests were made).")


def test_what_is_neither_better_nor_worse_is_not_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as how many predictions flip with a colour: no sentence is about it, but it differs."""
    run = run_of(tmp_path, everywhere(36, 36, 20))
    monkeypatch.setattr("robustkit.results.summary_text._ranked", lambda results, tests: [])
    monkeypatch.setattr("robustkit.results.summary_text.standings", lambda results, tests: [])
    said = summary_sentences(of(run))
    assert said[0] == "1 of 3 paired tests between plain and other is significant (n = 40)." and len(said) == 2


def test_what_samples_can_show() -> None:
    """Against the usual formula, and the exact test: of k changes in one direction 2 / 2 ** k is the p-value."""
    wide = Difference(0.0, 1000, -0.0392, 0.0392, 1.0)
    assert detectable_difference(wide, 1, binary=True) == pytest.approx((1.96 + 0.8416) * 0.02, rel=1e-3)
    narrow = Difference(0.0, 60, -0.001, 0.001, 1.0)
    assert detectable_difference(narrow, 1, binary=True) == 6 / 60 and 2 / 2**6 < 0.05 < 2 / 2**5
    assert detectable_difference(narrow, 10, binary=True) == 9 / 60 and 2 / 2**9 < 0.005 < 2 / 2**8
    assert math.isnan(detectable_difference(Difference(0.0, 5, math.nan, math.nan, math.nan), 1, binary=False))


def test_of_several_checkpoints_every_pair_is_tested_in_one_family(tmp_path: Path) -> None:
    names = ("plain", "other", "third")
    records = {(name, text): right(30) for name in names for text in ("clean", *FOG)}
    records |= {("other", text): right(20) for text in FOG} | {("third", text): right(36) for text in FOG}
    run = run_of(tmp_path, records)
    tests = pair_tests(of(run))
    assert len(tests.comparison.rows) == 6 and len(tests.rows) == 6 + 2
    pairs = [(row.first.checkpoint, row.second.checkpoint) for row in tests.of(("corruption(fog)", "mean_error"))]
    assert pairs == [("plain", "other"), ("plain", "third"), ("other", "third")]
    raw = sorted(row.difference.p_value for row in tests.rows)
    smallest = min(row.p_value for row in tests.rows)
    assert smallest == pytest.approx(min(1.0, 8 * raw[0]))  # the stricter correction, of all eight
    assert tests.comparison.rows == tests.rows[:6]  # and so in the tables
    tables = report_tables(run, list(of(run).rows))
    assert tables[0].note.endswith("Holm's p corrects for all 6 rows, and 2 other tests of the run's page.")
    assert summary_sentences(of(run))[1].startswith("third is more robust than other under fog (accuracy +40.0 points")

    # Whatever is asked of `compare`, a difference has the p-value of the page; what only it tests counts with them.
    write_summary(run, of(run))
    page = {(frozenset((r.first.checkpoint, r.second.checkpoint)), r.condition, r.metric): r for r in tests.rows}
    for asked in (
        {},
        {"checkpoints": ["third"]},
        {"checkpoints": ["other"]},
        {"against": "other"},
        {"against": "third"},
    ):
        for path in (run, Run(run.path)):
            found = compare_sides(pairs_of([path], **asked))
            assert len(found.rows) == (3 if "checkpoints" in asked else 6)
            for row in found.rows:
                key = frozenset((row.first.checkpoint, row.second.checkpoint)), row.condition, row.metric
                if key in page:
                    assert row.p_value == page[key].p_value and row.difference.p_value == page[key].difference.p_value
                else:
                    assert (row.metric, "against" in asked) == ("nll", True) or row.condition == "clean"
            shown = {(frozenset((r.first.checkpoint, r.second.checkpoint)), r.condition, r.metric) for r in found.rows}
            assert len(found.others) == len(page.keys() - shown)
    added = [row for row in compare_sides(pairs_of([run], against="third")).rows if row.metric == "nll"]
    assert len(added) == 2 and len({row.p_value for row in added}) == 1  # one of the page's, one that it lacks


def test_one_checkpoint_and_names_of_others(tmp_path: Path) -> None:
    rows = [row | {"sample_id": f"{7 * place % 40:03}"} for place, row in enumerate(right(30))]  # not one after another
    run = run_of(tmp_path / "one", {(HOSTILE, "clean"): rows})
    (first,) = summary_sentences(of(run))
    assert first.startswith("<b>�red xxx") and "accuracy 75.0 % [59.8, 85.8] on 40 clean images" in first
    assert "\n" not in first and "\u202e" not in first and len(first) < 140
    records = {(name, text): rows for (name, text), rows in records_of("clean").items()}
    assert summary_sentences(Results(run_of(tmp_path / "two", records), [])) == []


def test_one_checkpoint_has_a_place_among_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"clean": 36, PGD: 30, FOG[0]: 25, **dict.fromkeys(FOG[1:], 28)}
    run = run_of(tmp_path, {("plain", text): right(n) for text, n in numbers.items()})
    data, tag = run.manifest.data.name, run.manifest.protocol.tag
    figures = {"standard": {"clean": {"top1": 0.5}, PGD: {"top1": 0.99}}, "quest": {"clean": {"top1": 0.4}}}
    known = {
        "near": Published("near", "s", "here", data, tag.partition("@")[0], figures),
        "far": Published("far", "s", "here", "elsewhere", tag, figures),
    }
    for names, said in (
        (
            ["far", "near"],
            "Among the checkpoints of near, published on the same data: 1st of 3 on clean images and 2nd of",
        ),
        (["far"], "Its accuracy under corruption is lowest under fog at severity 1 with 62.5 %."),
    ):
        monkeypatch.setattr("robustkit.results.summary_text.reference_names", lambda names=names: names)
        monkeypatch.setattr("robustkit.results.summary_text.read_published", known.get)
        sentences = summary_sentences(of(run))
        assert any(text.startswith(said) for text in sentences), sentences


def test_what_differs_beyond_the_first_page_is_named_and_not_counted(tmp_path: Path) -> None:
    plain = rows_of(3, confidence=0.7, linf=0.0, l2=0.0, prediction=0)
    other = [row | {"nll": row["nll"] + 1 + place % 3 / 10} for place, row in enumerate(plain)]
    doubt, first, *_ = summary_sentences(of(run_of(tmp_path, {("plain", "clean"): plain, ("other", "clean"): other})))
    assert doubt == "Doubtful set-up: no better than chance."
    assert first == "other has a higher NLL than plain on clean images (+1.098, p < 0.001, n = 40)."
