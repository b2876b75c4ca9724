"""Comparisons of run folders made by hand: which pairs, their rows against plain loops and scipy, flags, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from compared_runs import (
    ENDED,
    FOG,
    NAMES,
    PGD,
    Change,
    N,
    Rows,
    change_of,
    command,
    compared,
    figures,
    manifest_of,
    records_of,
    rows_of,
    run_of,
)
from figures import noted
from manifests import whole
from paired_oracles import interval_of
from scipy import stats

from robustkit.common.differences import holm
from robustkit.common.figure import Figure
from robustkit.errors import RunError
from robustkit.evaluations.aggregate import Results
from robustkit.report.run import Run
from robustkit.results.comparison import Comparison, own_flags
from robustkit.results.pairing import Side, checkpoint_pairs, unpaired_lines
from robustkit.results.summary_text import summary_sentences
from robustkit.results.survey import survey
from robustkit.results.tables import HEADINGS, report_tables, tables

# rows


def test_every_row_by_hand(tmp_path: Path) -> None:
    records = records_of("clean", PGD, ENDED, *FOG, "corruption(snow,severity=2)")
    found = compared(run_of(tmp_path, records))
    expected = [("clean", "top1"), ("clean", "nll"), (PGD, "top1"), (PGD, "nll"), (ENDED, "top1")]
    assert [(row.condition, row.metric) for row in found.rows] == [
        *expected,
        ("corruption(fog)", "mean_error"),
        ("corruption(snow,severity=2)", "top1"),  # in no mean
    ]
    raw = []
    for row in found.rows:
        column = {"top1": "correct", "nll": "nll"}.get(row.metric)
        if column:
            before, after = (figures(records, name, row.condition, column) for name in NAMES)
        else:
            before, after = (np.mean([1 - figures(records, k, text, "correct") for text in FOG], axis=0) for k in NAMES)
        gaps = after - before
        reported = row.difference
        assert (reported.first, reported.second, reported.n) == (
            pytest.approx(before.mean()),
            pytest.approx(after.mean()),
            N,
        )
        assert reported.value == pytest.approx(gaps.mean())
        assert (reported.ci_low, reported.ci_high) == pytest.approx(interval_of(gaps, binary=row.metric == "top1"))
        changed = int((gaps != 0).sum())
        exact = stats.binomtest(int((gaps > 0).sum()), changed).pvalue if row.metric == "top1" else None
        raw.append(exact or stats.ttest_1samp(gaps, 0).pvalue)
        assert reported.p_value == pytest.approx(raw[-1])
    assert [row.p_value for row in found.rows] == pytest.approx(holm(raw))
    (pair,) = found.pairs
    assert pair.changed == ("attention quest instead of standard",)
    assert pair.left_out == () == pair.findings


def test_losses_of_an_attack_that_stops_early_on_either_side_are_not_compared(tmp_path: Path) -> None:
    full = run_of(tmp_path / "a", {("plain", PGD): rows_of(0)})
    early = run_of(tmp_path / "b", {("plain", PGD): rows_of(1)}, change_of("claims", PGD, "early_stop", to=True))
    for runs in ((full, early), (early, full)):
        assert [row.metric for row in compared(*runs).rows] == ["top1"]


def test_holm_is_over_all_pairs(tmp_path: Path) -> None:
    found = compared(run_of(tmp_path, records_of("clean", PGD, names=(*NAMES, "third"))))
    assert [pair.names for pair in found.pairs] == [("plain", "other"), ("plain", "third")]
    assert len(found.rows) == 8
    assert [row.p_value for row in found.rows] == holm([row.difference.p_value for row in found.rows])


def test_a_run_against_itself_differs_in_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, records_of("clean", PGD, *FOG))
    for found in (compared(run, run), compared(run, Run(tmp_path / ".." / tmp_path.name))):
        assert len(found.rows) == 10
        for row in found.rows:
            reported = row.difference
            assert (reported.value, reported.ci_low, reported.ci_high, reported.p_value, row.p_value) == (0, 0, 0, 1, 1)
            assert reported.first == reported.second and not row.verdict
        assert [tuple(each.text for each in pair.findings) for pair in found.pairs] == [
            (f"both are the same file (sha256 {sha[:12]})",) for sha in ("0plain" * 9, "1other" * 9)
        ]


def test_the_order_of_the_runs_gives_the_sign(tmp_path: Path) -> None:
    records = records_of("clean", PGD, *FOG)
    first = run_of(tmp_path / "a", {("plain", c): rows for (name, c), rows in records.items() if name == "plain"})
    second = run_of(tmp_path / "b", {("plain", c): rows for (name, c), rows in records.items() if name == "other"})
    there, back = compared(first, second), compared(second, first)
    for one, other in zip(there.rows, back.rows, strict=True):
        reported, turned = one.difference, other.difference
        assert (turned.value, turned.ci_low, turned.ci_high) == pytest.approx(
            (-reported.value, -reported.ci_high, -reported.ci_low)
        )
        assert (turned.p_value, turned.first, turned.second) == pytest.approx(
            (reported.p_value, reported.second, reported.first)
        )
    assert tables(there)[0].title == f"plain of {second.path} against plain of {first.path}, paired by image"


def test_verdicts_know_which_figures_are_better_low(tmp_path: Path) -> None:
    worse = [row | {"correct": i % 8 == 0, "nll": row["nll"] + 3} for i, row in enumerate(rows_of(0))]
    good = [row | {"correct": True} for row in rows_of(0)]
    records = {(name, c): rows for c in ("clean", *FOG) for name, rows in (("plain", good), ("other", worse))}
    run = run_of(tmp_path, records)
    assert [row.verdict for row in compared(run).rows] == ["worse"] * 3
    assert [row.verdict for row in compared(run, against="other").rows] == ["better"] * 3
    cells = tables(compared(run))[0].rows
    assert cells[0][:5] == ("clean", "top-1 %", "40", "100.0", "12.5") and cells[0][-1] == "worse"
    assert cells[0][5].startswith("−87.5 [") and cells[1][5] == "+3.000" and cells[0][7] == "< 0.001"
    assert cells[2][:5] == ("fog", "top-1 %", "40", "100.0", "12.5") and cells[2][5].startswith("−87.5 [")


def test_a_verdict_outlives_the_correction(tmp_path: Path) -> None:
    records = {(name, c): rows_of(0) for c in ("clean", PGD) for name in NAMES}
    lost = [i for i, row in enumerate(rows_of(0)) if row["correct"]][:6]
    records["other", "clean"] = [
        row | {"correct": row["correct"] and i not in lost} for i, row in enumerate(rows_of(0))
    ]
    row = compared(run_of(tmp_path, records)).rows[0]
    assert (row.difference.p_value, row.p_value) == (2 / 2**6, pytest.approx(4 * 2 / 2**6))
    assert not row.significant and row.verdict == ""


def test_names_do_not_steer_a_terminal(tmp_path: Path) -> None:
    name = "re\x1b[31md[bold]\u202e"
    run = run_of(tmp_path, records_of("clean", names=("plain", name)))
    assert "re[31md[bold] against plain" in (output := command(run.path)[1])
    assert "\x1b" not in output and "\u202e" not in output


def test_scores_of_maps_are_those_that_both_have(tmp_path: Path) -> None:
    def of_map(seed: int, **scores: float | None) -> Rows:
        return [row | {"correct": i != 0, **scores} for i, row in enumerate(rows_of(seed))]

    shown = {"abpc": 0.5, "box_iou": 0.25, "mask_iou": None, "box_precision": 0.1, "pointing_game": None}
    records = records_of("clean")
    for name, more in (("plain", 0.0), ("other", 0.125)):
        reported = {key: None if value is None else value + more for key, value in shown.items()}
        records[name, "cam(agcam)"] = of_map(7, **reported)
        records[name, "cam(random)"] = of_map(8, **reported)
    found = {(row.condition, row.metric): row.difference for row in compared(run_of(tmp_path, records)).rows[2:]}
    assert list(found) == [("cam(agcam,mode=box)", "cam_iou"), ("cam(agcam)", "abpc")]
    assert {(reported.value, reported.n) for reported in found.values()} == {(0.125, N - 1)}
    records["plain", "cam(agcam)"] = [row | {"mask_iou": 0.5} for row in records["plain", "cam(agcam)"]]
    (pair,) = compared(run_of(tmp_path / "x", records)).pairs
    assert pair.left_out == (
        f"{tmp_path / 'x'}: plain and other have no common sample under cam(agcam,mode=mask); audit both again",
    )


def test_each_record_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, records_of("clean", PGD, *FOG, names=(*NAMES, "third")))
    read: list[tuple[str, str]] = []
    whole = Run.table

    def table(self: Run, checkpoint: str, condition: str, columns: Sequence[str] | None = None) -> pa.Table:
        read.append((checkpoint, condition))
        return whole(self, checkpoint, condition, columns)

    monkeypatch.setattr(Run, "table", table)
    compared(run)
    assert len(read) == len(set(read)) == 21


def test_what_one_pair_lacks_another_keeps(tmp_path: Path) -> None:
    records = records_of("clean", PGD, names=(*NAMES, "third"))
    records["other", "clean"][5]["error"] = "damaged"
    for row in records["third", "clean"][30:]:
        row["error"] = "damaged"
    rows = compared(run_of(tmp_path, records)).rows
    assert [row.difference.n for row in rows] == [39, 39, 40, 40, 30, 30, 40, 40]
    gaps = figures(records, "other", PGD, "nll") - figures(records, "plain", PGD, "nll")
    assert rows[3].difference.p_value == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)


# segmentation


def scenes_of(seed: int, n: int = 12) -> Rows:
    generator = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        labelled = [10 + i, 20, 5]
        right = [int(generator.integers(0, pixels + 1)) for pixels in labelled]
        counts = {"intersections": right, "predicted": [hit + 3 for hit in right], "labelled": labelled}
        rows.append({"sample_id": f"{i:02}", "nll": 0.5, "linf": 0.0, "l2": 0.0, "error": None, **counts})
    return rows


def of_scenes(manifest: dict[str, Any]) -> None:
    manifest["protocol"]["task"] = "segmentation"


@pytest.mark.slow
def test_scenes_have_miou_and_accuracies(tmp_path: Path) -> None:
    blur = [
        f"corruption({name},severity={severity})"
        for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")
        for severity in (1, 2, 3, 4, 5)
    ]
    keys = [(name, condition) for condition in ("clean", *blur) for name in (*NAMES, "third")]
    records = {key: scenes_of(seed) for seed, key in enumerate(keys)}
    records["other", blur[3]][0]["error"] = "damaged"
    run = run_of(tmp_path, records, of_scenes)
    found = compared(run)
    metrics = ("miou", "pixel_accuracy", "mean_accuracy")
    assert [(r.condition, r.metric) for r in found.rows] == [(c, m) for c in ("clean", "blur") for m in metrics] * 2
    assert [row.difference.n for row in found.rows] == [12] * 3 + [11] * 3 + [12] * 6

    def miou(rows: Rows) -> float:
        total = {key: np.sum([row[key] for row in rows], axis=0) for key in ("intersections", "predicted", "labelled")}
        return float(
            np.mean(total["intersections"] / (total["predicted"] + total["labelled"] - total["intersections"]))
        )

    means = [
        np.mean([miou(records[name, text][skip:]) for text in blur]) for name, skip in (("plain", 1), ("other", 1))
    ]
    reported = found.rows[3].difference
    assert (reported.first, reported.second) == pytest.approx(tuple(means)) and reported.value == pytest.approx(
        means[1] - means[0]
    )
    full = [np.mean([miou(records[name, text]) for text in blur]) for name in ("plain", "third")]
    assert found.rows[9].difference.value == pytest.approx(full[1] - full[0])
    same = compared(run, run).rows
    assert {(r.difference.value, r.difference.ci_low, r.difference.ci_high, r.p_value) for r in same} == {(0, 0, 0, 1)}
    few = {key: rows[:9] for key, rows in records.items() if key[1] == "clean"}
    said = summary_sentences(Results(few_run := run_of(tmp_path / "few", few, of_scenes), survey(few_run)))
    assert said == [
        "Doubtful set-up: no better than the most frequent class.",
        "Too few samples to test any difference between the 3 checkpoints.",
    ]
    records["other", "clean"][4]["labelled"] = [1, 20, 5]
    turned = run_of(tmp_path / "turned", records, of_scenes)
    with pytest.raises(RunError, match="plain and other: the mask of 04 differs; expected the same data: audit both"):
        compared(turned)


# pairs


@pytest.mark.parametrize(
    ("runs", "options", "expected"),
    [
        (["ab"], {}, ["aa0-ab0"]),
        (["abc"], {"against": "b"}, ["ab0-aa0", "ab0-ac0"]),
        (["abc"], {"checkpoints": ["c"]}, ["aa0-ac0"]),
        (["ab", "ba"], {}, ["ab0-bb1", "aa0-ba1"]),
        (["ab", "bc"], {}, ["ab0-bb1"]),
        (["ab", "cd"], {}, ["aa0-bc1", "aa0-bd1"]),
        (["ab", "b", "d"], {}, ["ab0-bb1", "aa0-bd2"]),
        (["ab", "ab"], {"against": "b"}, ["ab0-ba1", "ab0-bb1"]),
        (["ab", "bc"], {"checkpoints": ["c"]}, ["aa0-bc1"]),
        (["ab", "bc"], {"against": "b"}, ["ab0-bb1", "ab0-bc1"]),
    ],
)
def test_which_pairs(tmp_path: Path, runs: list[str], options: dict[str, Any], expected: list[str]) -> None:
    made = []
    for place, names in enumerate(runs):
        made.append(Run(tmp_path / str(place)))
        made[-1].write_manifest(whole(manifest_of(tuple(names), ())))

    def reported(side: Side) -> str:
        return f"{'a' if side.run is made[0] else 'b'}{side.checkpoint}{made.index(side.run)}"

    found = [f"{reported(one)}-{reported(other)}" for one, other in checkpoint_pairs(made, **options)]
    assert found == expected
    alone = unpaired_lines(made, **options)
    line = f"c of {tmp_path / '1'}: {tmp_path / '0'} has none of that name; choose one with --against"
    assert alone == ([line] if runs == ["ab", "bc"] and not options else [])


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("a", {}, "holds one checkpoint, a; expected two: give a second run, or audit another checkpoint into this"),
        (["plain", "b"], {"against": "plan"}, "unknown checkpoint 'plan'; did you mean 'plain'? known: b, plain"),
        ("ab", {"checkpoints": ["c"]}, "unknown checkpoint 'c'; known: a, b"),
        (
            "ab",
            {"checkpoints": ["a"]},
            "a: nothing is left to compare with a; choose others with --checkpoint or --against",
        ),
    ],
)
def test_pairs_that_cannot_be(tmp_path: Path, names: Sequence[str], options: dict[str, Any], message: str) -> None:
    run = Run(tmp_path)
    run.write_manifest(whole(manifest_of(names, ())))
    with pytest.raises(RunError) as fault:
        checkpoint_pairs([run], **options)
    assert message in str(fault.value) and "\n" not in str(fault.value)


# refusals and flags


def two(tmp_path: Path, change: Change, second: Mapping[str, Rows] | None = None) -> Comparison:
    """The same records in two runs, of which the second is changed."""
    own = {("plain", "clean"): rows_of(0)}
    other = own if second is None else {("plain", condition): rows for condition, rows in second.items()}
    return compared(run_of(tmp_path / "a", own), run_of(tmp_path / "b", other, change))


@pytest.mark.parametrize(
    ("change", "second", "message"),
    [
        (of_scenes, None, "plain of A is of classification, plain of B is of segmentation; expected the same of both"),
        (change_of("data", "classes", to=4), None, "images of 3 classes, plain of B is audited on images of 4 classes"),
        (
            change_of("checkpoints", "0", "num_classes", to=5),
            None,
            "of A has outputs for 3 classes, plain of B has outputs for 5",
        ),
        (
            None,
            {PGD: rows_of(0)},
            "have records of no common condition; expected one such as clean: audit both under it",
        ),
        (
            None,
            {"clean": [r | {"sample_id": "x" + r["sample_id"]} for r in rows_of(0)]},
            "no common sample under clean",
        ),
        (
            None,
            {"clean": [r | {"label": 2} if r["sample_id"] == "007" else r for r in rows_of(0)]},
            "the label of 007 is 1 and 2; expected the same data: audit both on it",
        ),
    ],
)
def test_refusals(tmp_path: Path, change: Change | None, second: Mapping[str, Rows] | None, message: str) -> None:
    with pytest.raises(RunError) as fault:
        two(tmp_path, change or (lambda manifest: None), second)
    assert message in str(fault.value).replace(str(tmp_path / "a"), "A").replace(str(tmp_path / "b"), "B")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        (change_of("deciding", "protocol", to="mine@2:00"), None),
        (
            lambda manifest: manifest["protocol"].update(parameters={"threat": {"labels": "predicted"}}),
            "what clean uses of the card differs: 613d2cbb and c1051355",
        ),
        (change_of("deciding", "seed", to=3), "seed differs: 0 and 3"),
        (change_of("deciding", "dtype", to="bfloat16"), "dtype differs: float32 and bfloat16"),
        (change_of("deciding", "compile", to=True), "compile differs: False and True"),
        (change_of("arguments", "engine", to="torchattacks"), "engine differs: robustkit and torchattacks"),
        (
            change_of("data", to={"digest": "e" * 9, "n": 39, "classes": 3}),
            "data digest differs: d1d1d1d1 and eeeeeeee; 40 samples in common, of 40 and 39",
        ),
        (change_of("corrupted", to={"digests": {"clean": "x"}}), "files that clean reads differ"),
        (
            lambda manifest: manifest.update(keep_misclassified=True),
            "use of maps of wrong predictions differs: left out and scored",
        ),
        (lambda manifest: None, None),
    ],
)
def test_flags_of_runs_that_differ(tmp_path: Path, change: Change, flag: str | None) -> None:
    (pair,) = two(tmp_path, change).pairs
    assert tuple(each.text for each in pair.findings) == tuple(
        filter(None, [flag, "both are the same file (sha256 0plain0plain)"])
    )
    assert tuple(map(str, pair.findings)) == tables(Comparison((pair,)))[0].flags


def test_files_without_a_digest_are_not_taken_for_the_same(tmp_path: Path) -> None:
    (pair,) = compared(
        run_of(tmp_path, records_of("clean"), lambda m: [c.update(sha256=None) for c in m["checkpoints"]])
    ).pairs
    assert pair.findings == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            change_of("checkpoints", "0", "preprocessing", to={"input_size": [64, 48], "crop_pct": 0.9}),
            ("input size 64×48 instead of 32×32", "crop pct 0.9 instead of 1.0"),
        ),
        (change_of("checkpoints", "0", "weights", to="ema"), ("weights ema instead of bare",)),
        (change_of("checkpoints", "0", "code_sha256", to="c" * 64), (f"code {'c' * 12} instead of none",)),
        (change_of("checkpoints", "0", "arch", to="vit_b"), ("arch vit_b instead of vit",)),
    ],
)
def test_what_is_compared_stands_in_the_title(tmp_path: Path, change: Change, words: tuple[str, ...]) -> None:
    (pair,) = two(tmp_path, change).pairs
    assert pair.changed == words
    assert tables(Comparison((pair,)))[0].title.endswith("paired by image; " + "; ".join(pair.changed))


def test_conditions_of_one_side_are_named(tmp_path: Path) -> None:
    own = {("plain", c): rows_of(0) for c in ("clean", PGD, *FOG)}
    other = {("plain", c): rows_of(1) for c in ("clean", ENDED, *FOG[:4], "corruption(snow,severity=1)")}
    found = compared(run_of(tmp_path / "a", own), run_of(tmp_path / "b", other))
    (pair,) = found.pairs
    assert pair.left_out == (
        f"plain of {tmp_path / 'b'} has no records under {PGD}, {FOG[4]}",
        f"plain of {tmp_path / 'a'} has no records under {ENDED}, corruption(snow)",
    )
    assert {row.condition for row in found.rows} == {"clean", *FOG[:4]}


def test_flags_of_the_results_stand_beside(tmp_path: Path) -> None:
    run = run_of(tmp_path, records_of("clean", PGD, names=(*NAMES, "third")))
    reported = [
        (name, c, m, f)
        for name, c, m, f in [
            ("plain", PGD, "top1", ["odd"]),
            ("plain", "clean", "nll", ["odd"]),
            ("other", PGD, "top5", ["hidden"]),
            ("third", PGD, "nll", ["weak"]),
        ]
    ]
    rows = [Figure(0.5, 40, checkpoint=name).of(text, metric, noted(*said)) for name, text, metric, said in reported]
    run.write_summary(rows)
    found = compared(run)
    pgd = "PGD, 1/255, 20 steps"
    odd, weak = f"plain, {pgd}; clean: odd [run/note]", f"third, {pgd}: weak [run/note]"
    assert [own_flags([pair]) for pair in found.pairs] == [[odd], [odd, weak]]
    assert own_flags(found.pairs) == [odd, weak]  # each once, in words as on the page
    assert [table.flags for table in tables(found)] == [(), (odd, weak)]
    run.write_summary(
        replace(row, findings=noted("odd")) for row in rows if row.condition == PGD and row.metric != "top5"
    )
    assert own_flags(compared(run).pairs) == [f"plain; third, {pgd}: odd [run/note]"]


def test_the_tables_of_a_report(tmp_path: Path) -> None:
    records = records_of("clean", PGD, names=(*NAMES, "third"))
    del records["third", "clean"], records["third", PGD]
    run = run_of(tmp_path, records, lambda m: m["checkpoints"].append(m["checkpoints"][0] | {"name": "third"}))
    odd = Figure(0.5, 40, checkpoint="plain").of("clean", "top1", noted("odd"))
    (table,) = report_tables(run, [odd])
    run.write_summary([odd])
    assert report_tables(Run(run.path), [odd]) == [table] and table.flags == ()
    run.write_summary([])
    assert table == tables(compared(run, checkpoints=["other"]))[0]
    assert table.headings == HEADINGS and len(table.rows) == 4
    both = compared(run, checkpoints=["other"])
    nothing = replace(both, pairs=(replace(both.pairs[0], rows=()),))
    assert [(table.rows, table.note) for table in tables(nothing)] == [
        ((), "The difference is value minus baseline, in points where they are in %.")
    ]
    assert table.note.endswith(
        "Intervals and p are per row; p is from McNemar's exact test for top-1, else Student's t. "
        "Holm's p corrects for all 4 rows."
    )
    alone = run_of(tmp_path / "alone", records_of("clean", names=("plain",)))
    assert report_tables(alone, [odd]) == [] == report_tables(run, [])


def test_of_few_samples_no_change_is_not_known_to_be_none(tmp_path: Path) -> None:
    """Resampling repeats what was seen: 40 samples without a change allow one of up to 1 - 0.025^(1/40)."""
    reach = 1 - 0.025 ** (1 / 40)
    records = records_of("clean")
    records["other", "clean"] = records["plain", "clean"]
    found = compared(run_of(tmp_path, records)).rows
    row = next(row for row in found if row.metric == "top1")
    assert row.difference.n == 40
    assert (row.difference.value, row.difference.ci_low, row.difference.ci_high) == (0, -reach, reach)
    assert row.difference.p_value == 1
