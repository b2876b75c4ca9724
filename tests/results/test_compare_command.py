"""The command `compare`: what it shows and writes, and its refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from compared_runs import (
    PGD,
    command,
    records_of,
    rows_of,
    run_of,
)

import robustkit
from robustkit.cli.app import cli
from robustkit.results.compared import PAIRS
from robustkit.results.comparison import compare_sides, own_flags
from robustkit.results.pairing import checkpoint_pairs, unpaired_lines
from robustkit.results.published import read_published
from robustkit.results.tables import tables

pytestmark = pytest.mark.usefixtures("pageless")


@pytest.mark.parametrize("count", [5, 6])
def test_many_pairs_are_folded_to_what_is_significant(tmp_path: Path, count: int) -> None:
    """Of checkpoints against the first: the last is worse, all others are the same."""
    same = [row | {"correct": i < 36, "nll": 1.0} for i, row in enumerate(rows_of(0))]
    worse = [row | {"correct": i < 16, "nll": 1.0} for i, row in enumerate(rows_of(0))]
    names = [f"n{place}" for place in range(count)]
    records = {(name, "clean"): worse if name == names[-1] else same for name in names}
    run = run_of(tmp_path, records)
    compared = robustkit.compare(run)
    first, *others = compared.sentences
    assert first == f"{names[-1]} against n0: Significantly worse: accuracy on clean images. 2 figures tested."
    alike = [f"{name} against n0" for name in names[1:-1]]
    folded = count - 1 > PAIRS
    apart = [f"{pair}: no significant difference." for pair in alike]
    assert repr(compared) == "\n".join(compared.sentences)
    assert others == ([f"No significant difference: {'; '.join(alike)}."] if folded else apart)
    tables = compared.brief_tables
    assert len(tables) == (1 if folded else len(compared.tables))
    if folded:
        (row,) = tables[0].rows
        assert row[0] == "clean" and row[-1] == "worse" and tables[0].title.startswith(f"{names[-1]} against n0")
    code, output = command(run.path)
    assert code == 0 and output.startswith(first[:40])


@pytest.mark.parametrize("count", [4, 5])
def test_a_sentence_names_at_most_four_differences(tmp_path: Path, count: int) -> None:
    texts = ["clean", *(PGD.replace("1/255", f"{eps}/255") for eps in range(1, count))]
    same = [row | {"correct": i < 36, "nll": 1.0} for i, row in enumerate(rows_of(0))]
    worse = [row | {"correct": i < 16} for i, row in enumerate(same)]
    run = run_of(tmp_path, {(name, text): rows for name, rows in (("a", same), ("b", worse)) for text in texts})
    (sentence,) = robustkit.compare(run).sentences
    named = sentence.partition("worse: ")[2].partition(". ")[0].split("; ")
    assert named[0] == "accuracy on clean images" and len(named) == 4
    assert named[3].startswith("accuracy under PGD" if count == 4 else "and 2 more")


def test_the_command_shows_and_writes_all(tmp_path: Path) -> None:
    own = {("plain", c): rows_of(seed) for seed, c in enumerate(("clean", PGD))}
    worse = [r | {"correct": False, "nll": math.inf} for r in rows_of(5)]
    other = {("plain", "clean"): worse, ("plain", PGD): rows_of(6), ("new", "clean"): rows_of(7)}
    first, second = (run_of(tmp_path / name, rows) for name, rows in (("a", own), ("b", other)))
    target = tmp_path / "differences.json"
    code, output = command(first.path, second.path, "--json", target, "--reference", "quest")
    assert code == 0
    shown = " ".join(output.split())
    found = compare_sides(checkpoint_pairs([first, second]), read_published("quest"))
    (table,) = tables(found)
    for text in (table.title, table.note, *(f"⚑ {flag}" for flag in table.flags), f"json: {target}"):
        assert " ".join(text.split()) in shown
    assert f"⚑ new of {second.path}: {first.path} has none of that name; choose one with --against" in output
    assert "nan" in output and output.count("worse") == 2 and "not paired" in output
    reported = json.loads(target.read_text("utf-8"), parse_constant=lambda constant: pytest.fail(constant))
    (pair,) = reported["pairs"]
    manifest = second.manifest
    assert pair["second"] == {
        "run": str(second.path),
        "checkpoint": "plain",
        "sha256": manifest.checkpoints[0].sha256,
        "attention": "standard",
        "protocol": "standard@1:96fe6f4a",
        "seed": 0,
        "dtype": "float32",
        "data": "set",
        "data_digest": "d1" * 16,
    }
    assert pair["first"] == pair["second"] | {"run": str(first.path)}
    assert (
        pair["flags"] == [*map(str, found.pairs[0].findings), *own_flags(found.pairs)]
        and pair["left_out"] == []
        and pair["changed"] == []
    )
    lines = [*unpaired_lines([first, second]), "quest: it has no figure of these checkpoints"]
    assert reported["unpaired"] == lines and reported["reference"]["protocol"] == "quest-paper"
    for row, expected in zip(pair["rows"], found.rows, strict=True):
        d = expected.difference
        named = (expected.condition, expected.metric, d.n, expected.significant, expected.verdict)
        assert tuple(row[key] for key in ("condition", "metric", "n", "significant", "verdict")) == named
        values = (d.first, d.second, d.value, d.ci_low, d.ci_high, d.p_value, expected.p_value, expected.published)
        finite = [value if value is not None and math.isfinite(value) else None for value in values]
        keys = ("first", "second", "difference", "ci_low", "ci_high", "p", "p_holm", "published")
        assert [row[key] for key in keys] == finite
    assert pair["rows"][1]["difference"] is None and pair["rows"][0]["verdict"] == "worse"


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", records_of("clean"))
    assert command(run.path, run_of(tmp_path / "b", records_of("clean")).path)[0] == 0  # no file was asked for
    assert command(run.path, "--json", tmp_path / "none" / "x.json")[0] != 0
    for words, message in (
        ((run.path, "--json", tmp_path / "none" / "x.json"), "choose a file in a folder that exists with --json"),
        ((run.path, "--reference", "x.toml"), "unknown reference 'x.toml'"),
        ((tmp_path,), "is not a run folder"),
    ):
        done = CliRunner().invoke(cli, ["compare", *map(str, words)])
        assert done.exit_code != 0 and message in str(done.exception) + done.output


def test_mid_p_is_of_mcnemars_tests_and_said(tmp_path: Path) -> None:
    right = {"plain": [1] * 20 + [0] * 20, "new": [1] * 13 + [0] * 7 + [1] + [0] * 19}
    rows = {
        (name, "clean"): [row | {"correct": bool(hit)} for row, hit in zip(rows_of(1), hits, strict=True)]
        for name, hits in right.items()
    }
    run = run_of(tmp_path, rows)
    exact, mid = (robustkit.compare(run, mid_p=each).to_frame().set_index("metric") for each in (False, True))
    assert (exact.p["top1"], mid.p["top1"]) == (pytest.approx(18 / 256), pytest.approx(10 / 256))
    assert mid.p_holm["top1"] == pytest.approx(2 * 10 / 256) and mid.ci_high["top1"] < 0 < exact.ci_high["top1"]
    assert mid.loc["nll"].equals(exact.loc["nll"])
    code, output = command(run.path, "--mid-p")
    assert code == 0 and "McNemar's mid-p test for top-1" in " ".join(output.split())
    assert "mid-p" not in command(run.path)[1]
