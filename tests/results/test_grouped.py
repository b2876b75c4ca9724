"""Runs whose samples are in groups: every figure of classifiers, means over corruptions, and paired tests say so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from compared_runs import FOG, NAMES, PGD, N, rows_of, run_of
from page_runs import page_of

import robustkit
from robustkit.cli.app import cli
from robustkit.common.differences import CLUSTER_TEST, of_means
from robustkit.common.figure import CLUSTERED, Figure
from robustkit.common.groups import Groups
from robustkit.common.intervals import calibration_interval, mean_of, share_of
from robustkit.errors import DamagedRecord, RobustkitError, RunError
from robustkit.report.run import Run
from robustkit.results.pairing import Side, paired_difference
from robustkit.results.slices import Columns, slices_of
from robustkit.results.survey import summary_csv, survey
from robustkit.runs.metadata import SampleMetadata, groups_of_run, write_metadata

IDS = [f"{place:03}" for place in range(N)]
VIDEOS = [f"video {place // 3}" for place in range(N)]  # 13 of three frames, and one of one
MORE: dict[str, Any] = {"confidence": 0.7, "linf": 0.0, "l2": 0.0, "top5": True, "prediction": 0}


def made(folder: Path) -> Run:
    """A run in which frames of a video are right or wrong together, more or less."""
    records = {}
    for seed, (name, condition) in enumerate((name, text) for text in ("clean", PGD, *FOG) for name in NAMES):
        rows = [row | MORE for row in rows_of(seed)]
        for place, row in enumerate(rows):
            row["correct"] = rows[place - place % 3]["correct"] if place % 4 else row["correct"]
        records[name, condition] = rows
    return run_of(folder, records)


def grouped(run: Run, names: list[str] = VIDEOS, column: str = "video") -> Run:
    write_metadata(run, SampleMetadata(IDS, {"camera": ["a"] * N, column: names}, column))
    return run


def columns(run: Run, name: str, condition: str) -> dict[str, np.ndarray[Any, Any]]:
    table = run.table(name, condition).sort_by("sample_id")
    return {key: table[key].to_numpy(zero_copy_only=False).astype(float) for key in ("correct", "nll", "confidence")}


def figures(run: Run) -> dict[tuple[str, str, str], Figure]:
    return {(row.checkpoint, row.condition, row.metric): row for row in survey(run)}


def test_figures_are_of_groups(tmp_path: Path) -> None:
    run = made(tmp_path)
    before, after = figures(run), figures(grouped(run))
    assert before.keys() == after.keys() and all(before[key].value == after[key].value for key in before)
    groups = Groups.of(VIDEOS)
    assert groups is not None
    read = columns(run, "plain", PGD)
    top1, nll, ece = (after["plain", PGD, metric] for metric in ("top1", "nll", "ece"))
    for figure, expected in ((top1, share_of(read["correct"], groups)), (nll, mean_of(read["nll"], groups))):
        assert (figure.low, figure.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert (figure.groups, figure.interval, figure.n) == (14, CLUSTERED, N)
        assert figure.effect == pytest.approx(expected.effect)
    ends = calibration_interval(read["confidence"], read["correct"], groups)
    assert (ece.low, ece.high) == pytest.approx(ends, abs=1e-9) and ece.groups == 14
    mean = after["plain", "corruption(fog)", "mean_error"]
    wrong = np.mean([1 - columns(run, "plain", text)["correct"] for text in FOG], axis=0)
    assert (mean.low, mean.high) == pytest.approx(tuple(vars(mean_of(wrong, groups))[end] for end in ("low", "high")))
    lines = summary_csv(after.values()).splitlines()
    assert lines[0].endswith(",interval,groups,design_effect") and ",14," in lines[1]
    assert "groups" not in summary_csv(before.values())


def test_groups_of_one_sample_change_no_byte(tmp_path: Path) -> None:
    run = made(tmp_path)
    before = summary_csv(survey(run))
    assert summary_csv(survey(grouped(run, IDS))) == before


def test_pairs_are_tested_by_groups(tmp_path: Path) -> None:
    run = grouped(made(tmp_path))
    sides = [Side(run, name) for name in NAMES]
    difference = paired_difference(sides[0], sides[1], "clean")
    before, after = (columns(run, name, "clean")["correct"] for name in NAMES)
    expected = of_means(before, after, True, Groups.of(VIDEOS))
    assert difference.test == CLUSTER_TEST and math.isfinite(difference.p_value)
    assert vars(difference) == pytest.approx(vars(expected), abs=1e-12)


def test_one_side_may_know_the_groups_and_both_must_agree(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one"), grouped(made(tmp_path / "other"))
    pair = Side(one, "plain"), Side(other, "other")
    assert paired_difference(*pair, "clean").test == CLUSTER_TEST
    grouped(one, [name.replace("video", "clip") for name in VIDEOS], "clip")  # the same groups by other names
    pair = Side(one, "plain"), Side(other, "other")
    assert paired_difference(*pair, "clean").test == CLUSTER_TEST
    grouped(one, [f"{place // 4}" for place in range(N)], "clip")
    with pytest.raises(RunError, match=r"clip of .*one and video of .*other group the common samples in other ways"):
        paired_difference(Side(one, "plain"), Side(other, "other"), "clean")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
def test_every_interval_of_an_audit_is_of_groups(tmp_path: Path) -> None:
    """Of attacks with stages, corruptions, maps, their leads over controls, and their stability."""
    robustkit.audit(
        {name: f"zoo:shapes-vit-{name}" for name in ("quest", "standard")},
        data_dir="embedded:shapes",
        limit=24,
        attacks="apgd(steps=2),pgd(steps=2),autoattack(steps=2,queries=3,version=standard)",
        corruptions="fog",
        cams="agcam",
        stability=True,
        faithfulness="abpc",
        parity=True,
        setup_check=False,
        out=tmp_path / "run",
    )
    run = Run(tmp_path / "run")
    ids = run.table("quest", "clean", ["sample_id"])["sample_id"].to_pylist()
    before = figures(run)
    write_metadata(run, SampleMetadata(ids, {"pair": [f"{place // 2:02}" for place in range(24)]}, "pair"))
    after = figures(run)
    assert before.keys() == after.keys()
    assert not [key for key in before if before[key].value != pytest.approx(after[key].value, nan_ok=True)]
    of_core = {key: row for key, row in after.items() if not key[1].startswith("transfer(")}
    alone = ("_fell", "_held", "found_of_broken")  # of few samples, which may all be of different groups
    bounded = {key for key, row in of_core.items() if row.has_interval and not key[2].endswith(alone)}
    assert not [key for key in bounded if not 0 < after[key].groups <= 12]
    kinds = {metric for _, _, metric in after if not metric.endswith("_max")}
    assert {"top1", "top1_after_apgd-ce", "mean_error", "abpc", "abpc_over_control", "rank_correlation"} <= kinds
    assert {"cam_iou", "pointing_game", "pxap", "parity", "found_of_broken", "nll", "ece"} <= kinds
    lost = {key[2] for key, row in before.items() if row.has_interval and not after[key].has_interval}
    assert lost <= {"rank_correlation_fell", "map_iou_fell", "rank_correlation_held", "map_iou_held"}, lost


def test_the_column_of_groups_must_be_there(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert groups_of_run(run) is None
    write_metadata(run, SampleMetadata(IDS, {"camera": ["a"] * N}, "video"))
    with pytest.raises(DamagedRecord, match="has no column video, which groups samples"):
        groups_of_run(run)
    other = ["x", *IDS[1:]]
    write_metadata(run, SampleMetadata(other, {"video": VIDEOS}, "video"))
    with pytest.raises(DamagedRecord, match="the metadata have no row of 000, whose group is video; robustkit report"):
        survey(run)


FROM = r"^(\d\d)"  # groups of ten


def test_commands_that_read_take_groups_and_write_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustkit.report.page.write_report", lambda *_: None)
    run, kept = made(tmp_path / "run"), made(tmp_path / "kept")
    robustkit.report(kept, groups_from=FROM)
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rule]]\nrequire = "top1 under clean >= 10 %"\n', "utf-8")
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    asked = {"groups_from": FROM}
    rows = [robustkit.compare(*given, **more).to_frame() for given, more in (((run,), asked), ((kept,), {}))]
    assert rows[0].equals(rows[1]) and not rows[0].equals(robustkit.compare(run).to_frame())
    figure = next(row for row in survey(kept) if (row.condition, row.metric) == ("clean", "top1"))
    checked = robustkit.check(run.path, policy, **asked).outcome.verdicts[0].figure
    assert checked == figure and (figure.groups, figure.interval) == (4, CLUSTERED)
    plain = robustkit.compare(run, **asked).to_dict()["pairs"][0]["rows"]
    assert {row["groups"] for row in plain} == {4} and "groups" not in robustkit.compare(run).to_dict()["pairs"][0][
        "rows"
    ][0]
    words = ["check", str(run.path), "--policy", str(policy), "--groups-from", FROM, "--json", str(tmp_path / "v.json")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert json.loads((tmp_path / "v.json").read_text("utf-8"))["verdicts"][0]["groups"] == 4
    drafted = CliRunner().invoke(cli, ["check", str(run.path), "--init", "--groups-from", FROM])
    assert "--init drafts for a run as it is; group it first: robustkit report" in str(drafted.exception)
    paper = [robustkit.table(each, columns="clean", **more) for each, more in ((run.path, asked), (kept.path, {}))]
    assert paper[0].to_latex() == paper[1].to_latex() and "in 4 groups" in paper[0].to_latex()
    assert files == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_groups_stay_with_another_table_and_go_where_none_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustkit.report.page.write_report", lambda *_: None)
    run, table = grouped(made(tmp_path)), tmp_path / "table.csv"
    table.write_text("sample_id,lens\n" + "".join(f"{name},x\n" for name in IDS), "utf-8")
    robustkit.report(run, metadata=table)
    found = groups_of_run(run)
    assert found is not None and found.column == "video" and run.summary()[0].groups == 14
    robustkit.report(run, groups_from=FROM)
    robustkit.report(run, groups_from=r"(\d)$")  # in place of the others that were found in ids
    assert run.summary()[0].groups == 10 and set(run.slices(by="lens")["n"]) == {N}
    robustkit.report(run, groups="video")
    assert run.summary()[0].groups == 14
    robustkit.report(run, groups="none")
    assert groups_of_run(run) is None and run.summary()[0].groups == 0
    other = made(tmp_path / "other")
    for asked, count in ((FROM, 4), ("none", 0), (r"(\d)$", 10), ("none", 0)):  # nothing is left of the first
        robustkit.report(other, **{"groups" if asked == "none" else "groups_from": asked})
        assert other.summary()[0].groups == count
    assert not (other.path / "metadata.parquet").exists()


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ({"groups": "patient"}, "--groups patient: unknown column 'patient'"),
        ({"groups": "camera"}, "--groups camera: all 40 samples are of one group, 'a': nothing says how much"),
        ({"groups": "own"}, "--groups own: each of the 40 samples is a group of its own; leave it out"),
        ({"groups": "gaps"}, "--groups gaps: no group for 20 of 40 samples, such as '001'; fill in the cells"),
        ({"groups_from": "x"}, "--groups-from x: no group for 40 of 40 samples, such as '000'; match every id"),
        ({"groups_from": "^0[01]"}, "--groups-from ^0[01]: no group for 20 of 40 samples, such as '020'; match every"),
        ({"groups_from": ".*"}, "--groups-from .*: each of the 40 samples is a group of its own"),
        ({"groups_from": "^0"}, "--groups-from ^0: all 40 samples are of one group, '0'"),
        ({"groups_from": "("}, "--groups-from (: missing ), unterminated subpattern at position 0"),
        ({"groups_from": "a", "groups": "b"}, "--groups b and --groups-from a: leave one out"),
    ],
)
def test_groups_that_make_no_sense_are_refused_in_a_line(tmp_path: Path, asked: dict[str, str], line: str) -> None:
    run = made(tmp_path)
    own, gaps = list(IDS), ["" if place % 2 else "a" for place in range(N)]
    write_metadata(run, SampleMetadata(IDS, {"camera": ["a"] * N, "own": own, "gaps": gaps}))
    for command in (robustkit.report, robustkit.compare):
        with pytest.raises(RobustkitError) as caught:
            command(run, **asked)  # type: ignore[operator]
        assert line in str(caught.value) and "\n" not in str(caught.value)


def test_an_audit_takes_groups(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"limit": 12, "attacks": "none", "setup_check": False, "out": tmp_path / "run"}
    with pytest.raises(RobustkitError, match="--groups video: there is no table of columns; give it with --metadata"):
        robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", groups="video", **asked)
    videos = {"video": [f"{place // 4}" for place in range(12)]}
    run = robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", metadata=videos, groups="video", **asked)
    assert {row.groups for row in run.summary() if row.metric == "top1"} == {3}
    assert "12 images in 3 groups" in (run.path / "report.html").read_text("utf-8")


def test_dependence_is_suspected_until_groups_are_named_and_few_groups_are_said(tmp_path: Path) -> None:
    rows = [row | MORE for row in rows_of(0)]
    for place, row in enumerate(rows):
        row["correct"] = row["sample_id"][1] in "02"  # tens of frames are right or wrong together
        rows[place] = row
    run = run_of(tmp_path, {("plain", "clean"): rows})
    codes = {finding.code: finding.text for row in survey(run) for finding in row.findings}
    assert codes["data/suspected-groups"].startswith(
        r"samples whose ids agree in ^(.*\d)\d(?:\.\w+)?$ are right or wrong"
    )
    assert r"report RUN --groups-from '^(.*\d)\d(?:\.\w+)?$'" in codes["data/suspected-groups"]
    robustkit.report(run, groups_from=r"^(.*\d)\d(?:\.\w+)?$")
    codes = {finding.code: finding.text for row in run.summary() for finding in row.findings}
    assert "data/suspected-groups" not in codes and codes["data/few-groups"].startswith(
        "samples are in 4 groups (group by id), too few"
    )


def test_slices_are_of_groups_and_weak_ones_are_not_searched(tmp_path: Path) -> None:
    run = made(tmp_path)
    lenses = ["wide" if place < 24 else "long" for place in range(N)]  # frames of a video share a lens
    write_metadata(run, SampleMetadata(IDS, {"lens": lenses, "video": VIDEOS}, "video"))
    side, read = Side(run, "plain"), columns(run, "plain", "clean")["correct"]
    for together in (False, True):
        for part in slices_of(side, Columns(run), "clean", "top1", ["lens"], together):
            mine = np.array([lens == part.values[0] for lens in lenses])
            groups = Groups.of([video for video, inside in zip(VIDEOS, mine, strict=True) if inside])
            assert part.figure == share_of(read[mine], groups, 2 if together else 1) and part.figure.groups in (8, 6)
    whole = share_of(read, Groups.of(VIDEOS))
    wider = share_of(read, Groups.of(VIDEOS), 10)
    assert wider.low < whole.low and whole.high < wider.high
    robustkit.report(run, by="lens")
    page = page_of(run).text()
    why = "samples are in 14 groups, and the test of weak slices takes samples as independent"
    assert f"Weak slices are not searched: {why}" in page
    with pytest.raises(RunError, match=why):
        run.slices(condition="clean")


def test_parts_that_are_grouped_in_other_ways_are_not_merged(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"limit": 24, "attacks": "none", "setup_check": False, "shard_size": 12, "batch_size": 4}
    for part, pattern in (("1/2", r"^(.*)\d\d"), ("2/2", r"(\d)$")):
        out = tmp_path / part[0]
        robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", groups_from=pattern, part=part, out=out, **asked)
    parts = [tmp_path / "1", tmp_path / "2"]
    with pytest.raises(RunError, match=r"2 groups samples otherwise than .*1; report both with the same --groups"):
        robustkit.merge(parts, tmp_path / "whole")
    (tmp_path / "2" / "metadata.parquet").unlink()  # what is said once holds
    assert {row.groups for row in robustkit.merge(parts, tmp_path / "whole").summary() if row.metric == "top1"} != {0}
