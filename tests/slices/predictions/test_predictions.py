"""Predictions that another system made, as a run; and the images that it is given to predict on."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from figures import said_of
from PIL import Image
from places import SHARED
from small_audit import audit, files

import robustkit
from robustkit.cli.app import cli
from robustkit.common.finding import Finding
from robustkit.data.dataset import open_dataset
from robustkit.data.layouts import Sample
from robustkit.errors import DataError, RobustkitError
from robustkit.report.run import Run
from robustkit.runs.kept_images import read_adversarials
from robustkit.slices.predictions import files as prediction_files
from robustkit.slices.predictions import plan as predictions
from robustkit.slices.predictions.export import export_data
from robustkit.slices.predictions.files import Answers, read_answers
from robustkit.slices.predictions.plan import scored
from robustkit.tasks.task import ConditionTable, task_of

FOG = "corruption(fog,severity=3)"
VIT = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
Rows = list[dict[str, Any]]


def written(path: Path, rows: Rows) -> Path:
    """Write rows as CSV, or as Parquet, where they may hold lists."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="") as file:
        sheet = csv.DictWriter(file, list(rows[0]))
        sheet.writeheader()
        sheet.writerows(rows)
    return path


def with_probabilities(sample: str, label: int, p: Sequence[float], **more: Any) -> dict[str, Any]:
    return {"sample_id": sample, "label": label, **{f"prob_{k}": value for k, value in enumerate(p)}, **more}


def figures(run: Run) -> dict[tuple[str, str], float]:
    return {(row.condition, row.metric): row.value for row in run.summary()}


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, [*map(str, words)])
    return done.exit_code, done.output if done.exception is None else f"{done.output}{done.exception}"


def samples_of(folder: Path) -> Rows:
    return [*csv.DictReader((folder / "samples.csv").read_text().splitlines())]


def predicted_on(folder: Path, condition: str) -> Rows:
    """The other system: it reads the files of an export, and knows no more than the network's normalisation."""
    model = robustkit.load("zoo:shapes-vit-quest")
    mean, std = (torch.tensor(getattr(model.identity.preprocessing, name)).view(3, 1, 1) for name in ("mean", "std"))
    rows = []
    for row in samples_of(folder):
        assert hashlib.sha256((folder / row["file"]).read_bytes()).hexdigest() == row["sha256"]
        pixels = torch.from_numpy(np.array(Image.open(folder / row["file"]))).permute(2, 0, 1) / 255
        with torch.inference_mode():
            p = model.network(((pixels - mean) / std)[None]).softmax(1)[0].tolist()
        rows.append(
            with_probabilities(row["sample_id"], int(row["label"]), p, condition=condition, checkpoint="theirs")
        )
    return rows


def test_another_system_predicts_on_the_exported_images_as_our_own_run_does(tmp_path: Path) -> None:
    """Clean and corrupted images are exact, so all figures are the same, to rounding; all commands take the run."""
    own = robustkit.audit(
        "zoo:shapes-vit-quest",
        "embedded:shapes",
        limit=40,
        attacks="none",
        corruptions="fog(severity=3)",
        device="cpu",
        setup_check=False,
        out=tmp_path / "own",
    )
    rows: Rows = []
    for name, condition in (("clean", "clean"), ("fog", FOG)):
        status, said = command("export-data", own.path, "--condition", condition, "--out", tmp_path / name)
        assert status == 0 and "40 images, exact pixels" in said
        rows += predicted_on(tmp_path / name, condition)
    file = written(tmp_path / "theirs.csv", rows)
    options: dict[str, Any] = {"limit": 40, "device": "cpu"}
    theirs = robustkit.audit(f"predictions:{file}", "embedded:shapes", out=tmp_path / "theirs", **options)
    ours, found = figures(own), figures(theirs)
    ours = {key: value for key, value in ours.items() if not key[1].startswith(("linf", "l2"))}  # not known of theirs
    assert found.keys() == ours.keys() and {("clean", "ece"), (FOG, "nll")} < found.keys()
    assert found == pytest.approx(ours, abs=2e-6)
    assert {each for row in theirs.summary() for each in row.findings} == {Finding.of("setup/elsewhere")}
    assert theirs.manifest.data.digest == own.manifest.data.digest
    before = files(theirs.path)
    again = robustkit.audit(f"predictions:{file}", "embedded:shapes", out=tmp_path / "theirs", **options)
    assert files(again.path) == before
    status, said = command("compare", own.path, theirs.path, "--json", tmp_path / "c.json")
    assert status == 0 and "computed elsewhere" in said and "data digest differs" not in said
    policy = tmp_path / "policy.toml"
    rule = "drop in top1 under clean against baseline <= 1 % except 'instead of'"
    policy.write_text(f'[[rule]]\nrequire = "{rule}"\n')
    status, said = command("check", theirs.path, "--baseline", own.path, "--policy", policy)
    assert status == 0, said
    assert command("report", theirs.path)[0] == command("table", own.path, theirs.path)[0] == 0


@pytest.mark.slow
def test_timms_own_loop_on_imagenet_gives_the_summary_of_our_own_run(tmp_path: Path) -> None:
    """Resize, crop and normalisation are timm's here, and its network is asked without ours."""
    weights, place = SHARED / "weights" / f"{VIT}.safetensors", SHARED / "data" / "imagenet-val"
    if not weights.is_file() or not place.is_dir():
        pytest.skip(f"needs {weights} and {place}")
    import timm
    from safetensors.torch import load_file
    from timm.data import create_transform, resolve_model_data_config

    network = timm.create_model(VIT, pretrained=False)
    network.load_state_dict(load_file(weights))
    network.eval()
    transform = create_transform(**resolve_model_data_config(network), is_training=False)
    rows: Rows = []
    with torch.inference_mode():
        for sample in open_dataset(place, num_classes=1000).select(limit=100).samples:
            image = next(path for path in place.rglob(sample.id.rpartition("/")[2]))
            p = network(transform(Image.open(image).convert("RGB"))[None]).softmax(1)[0].tolist()
            rows.append({"sample_id": sample.id, "label": sample.label, "probabilities": p})
    file = written(tmp_path / "timm.parquet", rows)
    theirs = robustkit.audit(f"predictions:{file}", place, limit=100, device="cpu", out=tmp_path / "theirs")
    model = {"arch": VIT.partition(".")[0], "attention": "standard", "mean": (0.5,) * 3, "std": (0.5,) * 3}
    options: dict[str, Any] = {"attacks": "none", "setup_check": False, "device": "cpu", "model": model}
    own = robustkit.audit(weights, place, limit=100, out=tmp_path / "own", **options)
    found = figures(theirs)
    assert found.keys() == figures(own).keys() == {("clean", name) for name in ("top1", "top5", "nll", "ece")}
    assert found == pytest.approx(figures(own), abs=1e-5)


def test_predictions_alone_have_no_losses_and_need_no_data(tmp_path: Path) -> None:
    """Two checkpoints, two conditions, two files; weak classes and calibration are as far as they can be known."""
    rows = [
        {"sample_id": f"{i:02}", "label": i % 2, "prediction": (i + (i < wrong)) % 2, "checkpoint": name}
        for name, wrong in (("a", 4), ("b", 6))
        for i in range(20)
    ]
    attacked = [{**row, "prediction": 1, "condition": "fgsm"} for row in rows]
    specs = [written(tmp_path / "one.csv", rows), written(tmp_path / "two.parquet", attacked)]
    given = [f"predictions:{path}" for path in specs]
    status, said = command("audit", *given, "--out", tmp_path / "run", "--num-classes", 3, "--parity")
    assert status == 0, said
    run = Run(tmp_path / "run")
    values = {(row.checkpoint, row.condition, row.metric): row.value for row in run.summary()}
    fgsm = "fgsm(eps=1/255)"
    assert run.manifest.conditions == ("clean", fgsm) and run.manifest.claims[fgsm].eps == 1 / 255
    assert values == {
        ("a", "clean", "top1"): 0.8,
        ("a", fgsm, "top1"): 0.5,
        ("b", "clean", "top1"): 0.7,
        ("b", fgsm, "top1"): 0.5,
        ("b", "clean", "parity"): 0.9,
        ("b", fgsm, "parity"): 1.0,
    }
    record = run.table("a", "clean")
    known = {"sample_id", "label", "prediction", "correct"}
    assert {name for name in record.column_names if record[name].null_count < len(record)} == known
    assert "Weakest classes" in (run.path / "report.html").read_text()
    table = ConditionTable.of(task_of(run.manifest), run.summary(), run.manifest)
    assert [row["largest |δ|"] for row in table.rows] == ["–"] * 4  # nobody measured how far images were changed
    assert run.manifest.data.classes == 3 and run.manifest.shard_size == 8192
    status, said = command("compare", tmp_path / "run")
    assert status == 0 and "nan" not in said and "top-1" in said
    assert "the records of a under clean have no nll; compare another figure" in " ".join(said.split())
    written(tmp_path / "one.csv", [{**rows[0], "prediction": 0}, *rows[1:]])
    status, said = command("audit", *given, "--out", tmp_path / "run", "--num-classes", 3)
    assert status and "contains another run: sha256 of a is" in said


def test_columns_are_those_of_a_slow_replica() -> None:
    """Several labels may count, some classes compete, and a probability may be 0."""
    draws = np.random.default_rng(0)
    p = draws.dirichlet([0.2] * 9, 50).astype(np.float32)
    p[3] = [1, *[0] * 8]
    samples = [Sample(f"{i:02}", 3 + i % 4, (3 + i % 4, 7) if i % 3 == 0 else None) for i in range(50)]
    order = draws.permutation(50)
    ids = tuple(samples[i].id for i in order)
    answers = Answers(Path("p.csv"), ids, np.array([samples[i].label for i in order]), None, p[order])
    for valid in (None, (1, 3, 4, 5, 6, 7, 8)):
        columns, notes = scored(answers, samples, valid)
        floored = 0
        for row, sample in enumerate(samples):
            competing = {k: float(p[row][k]) for k in valid or range(9)}
            total = sum(competing.values()) or 1.0
            right = set(sample.valid or [sample.label])
            ranked = sorted(competing, key=lambda k: -competing[k])
            mass = sum(competing[k] for k in right) / total
            floored += mass == 0
            assert columns["prediction"][row] == ranked[0]
            assert columns["correct"][row] == (ranked[0] in right)
            assert columns["top5"][row] == bool(right & {*ranked[:5]})
            assert columns["nll"][row] == pytest.approx(-math.log(mass) if mass else 149 * math.log(2), rel=1e-5)
            assert columns["confidence"][row] == pytest.approx(max(competing.values()) / total, rel=1e-6)
        assert floored and len(notes) == 1


def with_logits(logits: Sequence[Sequence[float]], labels: Sequence[int], **more: Any) -> Rows:
    return [
        {"sample_id": f"s{i}", "label": label, **{f"logit_{k}": z for k, z in enumerate(row)}, **more}
        for i, (row, label) in enumerate(zip(logits, labels, strict=True))
    ]


TIED = [[0.0, 7.0, 7.0, 1, 1, 1, 1], [300.0, 0, 0, 0, 0, 0, 0], [0.25, 0.5, 0.0, 0.75, 0, 0, 0.1], [-1.0, *[-2] * 6]]


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_logits_are_taken_and_columns_that_are_not_are_named(kind: str, tmp_path: Path) -> None:
    """As columns or as lists; of equal ones the first class is the prediction, and the five likeliest end with it."""
    rows = with_logits(TIED, [1, 1, 3, 5], nll=0.5, Confidence=0.1)
    if kind == ".parquet":
        rows = [{key: row[key] for key in ("sample_id", "label", "nll", "Confidence")} for row in rows]
        rows = [{**row, "logits": logits} for row, logits in zip(rows, TIED, strict=True)]
    lines: list[str] = []
    file = written(tmp_path / f"p{kind}", rows)
    run = robustkit.audit(f"predictions:{file}", out=tmp_path / "run", say=lines.append)
    read = run.table("p", "clean").to_pydict()
    assert read["prediction"] == [1, 0, 3, 0] and read["tied"] == [True, False, False, False]
    assert read["correct"] == [True, False, True, False] and read["top5"] == [True, True, True, False]
    losses = torch.nn.functional.cross_entropy(torch.tensor(TIED), torch.tensor([1, 1, 3, 5]), reduction="none")
    assert read["nll"] == pytest.approx(losses.tolist(), rel=1e-6) and read["nll"][1] == 300
    named = f"{file}: columns not read: 'nll', 'Confidence'"
    assert named in lines and run.manifest.checkpoint("p").notes == (named,)


@pytest.mark.parametrize(("count", "rest"), [(8, ""), (9, " and 1 more")])
def test_eight_columns_that_are_not_read_are_named(count: int, rest: str, tmp_path: Path) -> None:
    more = dict.fromkeys(["x" * 41, *map(str, range(1, count))], 0)
    lines: list[str] = []
    file = written(tmp_path / "p.csv", [{"sample_id": "a", "label": 0, "prediction": 0, **more}])
    robustkit.audit(f"predictions:{file}", out=tmp_path / "run", say=lines.append)
    named = ", ".join(map(repr, ["x" * 40, *map(str, range(1, 8))]))
    assert f"{file}: columns not read: {named}{rest}" in lines


def test_probabilities_count_before_logits_and_a_stated_prediction_before_the_first_of_a_tie(tmp_path: Path) -> None:
    rows = [
        {**row, **with_probabilities("s", row["label"], [0.4, 0.4, 0.2]), "sample_id": row["sample_id"]}
        for row in with_logits([[0.0, 0.0, 9.0]] * 12, [2] * 12)
    ]
    lines: list[str] = []
    run = robustkit.audit(f"predictions:{written(tmp_path / 'p.csv', rows)}", out=tmp_path / "a", say=lines.append)
    read = run.table("p", "clean").to_pydict()
    assert read["prediction"] == [0] * 12 and read["nll"] == pytest.approx([-math.log(0.2)] * 12)
    assert any("columns not read: 'logit_0', 'logit_1', 'logit_2'" in line for line in lines)
    assert any("12 of 12 samples (100.0%) have several" in flag for flag in said_of(run.summary()[0]))
    for row in rows:
        row["prediction"] = 1
    rows[0]["prediction"] = 0
    stated = robustkit.audit(f"predictions:{written(tmp_path / 'q.csv', rows)}", out=tmp_path / "b")
    assert stated.table("q", "clean")["prediction"].to_pylist() == [0] + [1] * 11
    flags = said_of(stated.summary()[0])
    assert any("stated predictions are taken where an earlier" in flag for flag in flags)
    assert not any("several largest" in flag for flag in flags)  # the other system has its own rule


def test_the_digest_of_predictions_is_that_of_their_rows_in_any_order() -> None:
    p = np.array([[0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], np.float32)
    answers = Answers(Path("p.csv"), ("b", "a", "c"), np.array([1, 0, 1]), np.array([1, 0, 1]), p)
    for order in ([2, 0, 1], [1, 0, 2], [0, 2, 1]):
        assert answers.take(np.array(order)).digest() == answers.digest()
    others = [
        replace(answers, ids=("a", "b", "c")),  # the same columns, of other samples
        replace(answers, labels=np.array([1, 0, 0])),
        replace(answers, predicted=np.array([1, 0, 0])),
        replace(answers, predicted=None),
        replace(answers, scores=p + np.array([[0, 0], [0, 0], [1e-7, 0]], np.float32)),
        replace(answers, scores=None),
        answers.take(np.array([0, 1])),
    ]
    assert len({each.digest() for each in [answers, *others]}) == 8


@pytest.mark.parametrize(("off", "fine"), [(9e-4, True), (-9e-4, True), (1.1e-3, False), (-1.1e-3, False)])
def test_probabilities_may_miss_one_by_a_rounding(off: float, fine: bool, tmp_path: Path) -> None:
    rows = [with_probabilities(f"s{i}", i % 3, [0.2, 0.3, 0.5 + off]) for i in range(4)]
    path = written(tmp_path / "p.csv", rows)
    if fine:
        (answers,) = read_answers(path).values()
        assert answers.scores is not None and len(answers.ids) == 4
    else:
        with pytest.raises(DataError, match=f"row 1, s0: probabilities sum to {1 + off:.6g}; expected 1"):
            read_answers(path)


def test_columns_of_parquet_are_taken_by_their_kinds(tmp_path: Path) -> None:
    lists = pa.array([[0.0, 1.0], [0.5, 0.5]], pa.list_(pa.float32()))
    columns: dict[str, Any] = {"sample_id": pa.array([7, 8]), "label": pa.array([1, 0], pa.int8())}
    for more, ids, fault in (
        ({"probabilities": lists}, ("7", "8"), ""),  # numbers are ids, too
        ({"probabilities": lists.cast(pa.list_(pa.float64()))}, ("7", "8"), ""),
        ({"probabilities": lists, "sample_id": pa.array(["a", "b"]).dictionary_encode()}, ("a", "b"), ""),
        ({"prediction": pa.array([1, 0])}, ("7", "8"), ""),
        ({"probabilities": lists, "prob_0": [0.5, 0.5]}, (), "columns prob_0 and probabilities: one of the two"),
        ({"probabilities": lists, "sample_id": [0.5, 1.5]}, (), "column sample_id is of double; expected text"),
        ({"probabilities": lists, "label": [1.0, 0.0]}, (), "column label is of double; expected int64"),
        ({"probabilities": pa.array([[1, 0], [0, 1]])}, (), "column probabilities is of list"),
        ({"prediction": ["1", "0"]}, (), "column prediction is of string; expected int64"),
        ({"probabilities": lists, "checkpoint": [1, 2]}, (), "column checkpoint is of int64; expected text"),
        ({"probabilities": [[0.5, 0.5], [1.0]]}, (), "row 2 has 1 probabilities, and row 1 2; expected one for each"),
        ({"probabilities": lists, "label": [0, None]}, (), "row 2 has no label"),
        ({"logits": pa.array([[], []], pa.list_(pa.float32()))}, (), "row 1 has 0 logits, and row 1 0"),
    ):
        pq.write_table(pa.table(columns | more), tmp_path / "p.parquet")
        if fault:
            with pytest.raises(DataError, match=fault):
                read_answers(tmp_path / "p.parquet")
        else:
            (answers,) = read_answers(tmp_path / "p.parquet").values()
            assert answers.ids == ids and answers.labels.tolist() == [1, 0]


GOOD = [with_probabilities(f"s{i}", i % 3, [0.2, 0.3, 0.5]) for i in range(4)]


def changed(row: int, **more: Any) -> Rows:
    return [{**each, **(more if place == row else {})} for place, each in enumerate(GOOD)]


CASES: dict[str, tuple[Rows, str]] = {
    "twice": ([*GOOD, GOOD[1]], "s1 is named 2 times for p under clean; expected once"),
    "sum": (changed(2, prob_0=0.3), "row 3, s2: probabilities sum to 1.1; expected 1, after the softmax"),
    "negative": (changed(1, prob_0=-0.2, prob_1=0.7), "row 2, s1: a probability is -0.2.*; expected numbers from 0"),
    "nan": (changed(3, prob_1=math.nan), "row 4, s3: a probability is nan; expected"),
    "label": (changed(0, label=3), "row 1, s0: label 3; expected 0 to 2, as there are 3 probabilities"),
    "argmax": ([{**row, "prediction": k} for k, row in enumerate(GOOD[1:3], 1)], "prediction 1, but class 2 has the l"),
    "predicted": ([{**row, "prediction": 3} for row in GOOD], "prediction 3; expected 0 to 2"),
    "said": ([{"sample_id": "a", "label": 0}], "no column says what was predicted"),
    "condition": ([{**row, "condition": "fogg"} for row in GOOD], "unknown condition 'fogg'"),
    "family": (
        [{**row, "condition": "counterfactual(change=colour)"} for row in GOOD],
        "not of images alone; expected clean, an attack or a corruption",
    ),
    "severity": ([{**row, "condition": "corruption(fog)"} for row in GOOD], "expected a severity from 1 to 5"),
    "part": ([{**row, "condition": "pgd(on=2)"} for row in GOOD], "expected predictions of all samples"),
    "gap": ([{"sample_id": "a", "label": 0, "prob_0": 0.5, "prob_2": 0.5}], "no column prob_1, but prob_2"),
    "first gap": ([{"sample_id": "a", "label": 0, "prob_1": 1.0}], "no column prob_0, but prob_1"),
    "logits": (
        with_logits([[0.5, math.inf]], [0]),
        "row 1, s0: a logit is inf; expected finite numbers, before the so",
    ),
    "logit gap": ([{"sample_id": "a", "label": 0, "logit_0": 0.5, "logit_2": 0.5}], "no column logit_1, but logit_2"),
    "logit": (with_logits([[2.0, 1.0]], [0], prediction=1), "prediction 1, but class 0 has the largest logit"),
    "shares": (with_logits([[0.5, 0.5], [1.0, 0.0]], [0, 1]), "sum to 1; name their columns prob_0"),
    "number": ([{"sample_id": "a", "label": "cat", "prediction": 0}], "Row #2: .* invalid value 'cat'"),
    "lacking": (
        [{**GOOD[0], "checkpoint": "a", "condition": "clean"}, {**GOOD[0], "checkpoint": "b", "condition": "fgsm"}],
        "a has no predictions under fgsm.*; expected the same conditions of all",
    ),
    "first": (
        [*({**row, "condition": "clean"} for row in GOOD), *({**row, "condition": "fgsm"} for row in GOOD[:3])],
        r"s3 has no prediction \(1 of 4 samples have none\)",
    ),
    "other label": (
        [{**GOOD[0], "condition": "clean"}, {**GOOD[0], "condition": "fgsm", "label": 1}],
        "the label of s0 is 1, and 0 in the first file",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_rows_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    rows, expected = CASES[name]
    path = written(tmp_path / "p.csv", rows)
    with pytest.raises(RobustkitError, match=expected) as fault:
        robustkit.audit(f"predictions:{path}", out=tmp_path / "run")
    assert "\n" not in str(fault.value) and (str(path) in str(fault.value) or name == "lacking")
    assert not (tmp_path / "run" / "run.json").exists()


def test_files_that_are_empty_huge_or_something_else_are_refused(tmp_path: Path) -> None:
    empty, header, twice, late, huge = (
        tmp_path / f"{each}.csv" for each in ("empty", "header", "twice", "late", "huge")
    )
    late.write_text("sample_id,label,prediction\n" + "a,0,0\n" * 200_000 + "a,x,0\n")
    twice.write_text("sample_id,label,label,prediction\na,0,0,0\n")
    empty.write_text("")
    header.write_text("sample_id,label,prediction\n")
    with huge.open("wb") as file:
        file.truncate(2 << 30)  # without blocks on the disk
    bomb = tmp_path / "bomb.parquet"  # a text that is stored once
    many = pa.array(np.zeros(200_000, np.int32))
    texts = pa.DictionaryArray.from_arrays(many, pa.array(["x" * 4000]))
    zeros = np.zeros(200_000, np.int64)
    pq.write_table(pa.table({"sample_id": texts, "label": zeros, "prediction": zeros}), bomb)
    texts = written(tmp_path / "typed.parquet", [{"sample_id": "a", "label": 0.5, "prediction": 0}])
    said = "; expected a CSV or Parquet file"
    for path, expected in (
        (empty, f"(no column sample_id){said}"),
        (twice, f"(column 'label' appears twice){said}"),
        (header, "no rows; expected one for each sample"),
        (late, "Row #200002: CSV conversion error to int64: invalid value 'x'"),
        (huge, f"(2048 MB, more than the allowed 1024 MB){said}"),
        (bomb, f"MB of text in column 'sample_id'){said}"),
        (texts, "column label is of double; expected int64"),
        (tmp_path / "none.csv", f"(No such file or directory){said}"),
        (tmp_path / "p.txt", f"not a .csv or .parquet file{said}"),
    ):
        with pytest.raises(RobustkitError) as fault:
            robustkit.audit(f"predictions:{path}", out=tmp_path / "run")
        assert expected in str(fault.value) and str(path) in str(fault.value)


def test_a_file_may_be_as_large_as_its_limits(tmp_path: Path) -> None:
    def wide(columns: int) -> str:
        return f"{head}{''.join(f',{k:x}' for k in range(columns - 3))}\ns,0,0{',' * (columns - 3)}\n"

    head, path = "sample_id,label,prediction", tmp_path / "p.csv"
    many = ("sample_id,label,prediction,checkpoint\n", *(f"s,0,0,{k}\n" for k in range(1025)))
    for fine, over, expected in (
        (f"{head}\n{'x' * 4096},0,0\n", f"{head}\n{'x' * 4097},0,0\n", f"a text of 4097 characters, '{'x' * 40}'…"),
        ("".join(many[:-1]), "".join(many), "more than 1024 checkpoints and conditions; give several files"),
        (wide(1 << 17), wide((1 << 17) + 1), "131073 columns, more than 131072"),
    ):
        path.write_text(fine)
        assert read_answers(path)
        path.write_text(over)
        with pytest.raises(DataError, match=expected):
            read_answers(path)


def test_rows_and_values_are_bounded_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, full = tmp_path / "p.parquet", 1 << 23
    for values, columns, expected in (
        (pa.nulls(full), 32, "no column sample_id"),
        (pa.nulls(full), 33, f"{full} rows, 0 MB, more than are read"),
        (pa.array(np.zeros(full + 1, bool)), 1, f"{full + 1} rows, 1 MB, more than are read"),
    ):
        pq.write_table(pa.table({f"{k}": values for k in range(columns)}), path)
        with pytest.raises(DataError, match=expected):
            read_answers(path)
    rows = [{"sample_id": f"{k}", "label": 0, "probabilities": [1 / 2000] * 2000} for k in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), path, use_dictionary=False)  # fewer bytes in the file than decoded
    parts = pq.ParquetFile(path).metadata.row_group(0)
    sheet = written(tmp_path / "p.csv", [{"sample_id": f"{k}", "label": 0, "prediction": 0} for k in range(5)])
    for file, name, limit in (
        (path, "LARGEST", parts.total_byte_size),
        (path, "VALUES", 10_000),  # in lists
        (sheet, "ROWS", 5),
        (sheet, "VALUES", 15),  # of five rows of three columns
    ):
        with monkeypatch.context() as patched:
            patched.setattr(prediction_files, name, limit)
            assert read_answers(file)
            patched.setattr(prediction_files, name, limit - 1)
            with pytest.raises(DataError, match="more than are read"):
                read_answers(file)


def test_samples_are_matched_with_the_data_set_and_idle_options_refused(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"sample_id": sample.id, "label": sample.label, "prediction": 0}
        for sample in open_dataset(place / "images").samples
    ]
    wrong = [{**row, "label": 2} for row in rows]
    for changes, expected in (
        (rows[1:], f"{rows[0]['sample_id']} has no prediction (1 of 30 samples have none)"),
        (
            [*rows, {"sample_id": "x/9.png", "label": 0, "prediction": 0}],
            f"x/9.png is not a sample of {place / 'images'}; an id looks like 'a/00.png'",
        ),
        (wrong, f"the label of {rows[0]['sample_id']} is 2, and 0 of"),
        ([*rows[:-1], {**rows[-1], "prediction": 3}], "the prediction of c/29.png is 3; expected 0 to 2"),
    ):
        path = written(tmp_path / "p.csv", changes)
        with pytest.raises(RobustkitError) as fault:
            robustkit.audit(f"predictions:{path}", place / "images", out=tmp_path / "run")
        assert expected in str(fault.value)
    path = written(tmp_path / "p.csv", rows)
    options: dict[str, Any] = {"attacks": "fgsm", "mean": (0.0,) * 3}
    with pytest.raises(RobustkitError, match="--attacks, --mean: nothing is computed for predictions:FILE; leave it"):
        robustkit.audit(f"predictions:{path}", place / "images", out=tmp_path / "run", **options)
    with pytest.raises(RobustkitError, match="evaluated here; audit them in separate runs"):
        robustkit.audit([f"predictions:{path}", place / "net.pth"], place / "images", out=tmp_path / "run")
    with pytest.raises(RobustkitError, match="--data-dir is missing; give a folder"):
        robustkit.audit(place / "net.pth", out=tmp_path / "run")
    whole = robustkit.audit(f"predictions:{path}", place / "images", out=tmp_path / "whole")
    run = robustkit.audit(f"predictions:{path}", place / "images", limit=9, shard_size=4, out=tmp_path / "run")
    assert (
        run.manifest.data.n == len(run.table("p", "clean")) == 9 and len(files(run.path)) - len(files(whole.path)) == 2
    )
    assert (run.manifest.checkpoint("p").num_classes, run.summary()[0].value) == (3, 1 / 3)
    whole_set = open_dataset(place / "images")
    several = tuple(replace(sample, valid=(sample.label, 2)) for sample in whole_set.samples)
    monkeypatch.setattr(predictions, "open_dataset", lambda *_, **__: replace(whole_set, samples=several))
    path = written(tmp_path / "valid.csv", wrong)  # each label is one of those that count
    assert robustkit.audit(f"predictions:{path}", "several", out=tmp_path / "several").summary()[0].value == 1 / 3


@pytest.mark.usefixtures("unexamined")
def test_adversarial_images_are_those_that_the_run_keeps(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is the clean image plus what the attack added, to half a grey level."""
    attack = "pgd(eps=8/255,steps=3)"
    run = audit(place, tmp_path / "run", attacks="pgd(steps=3)", keep_adversarials=True, shuffle=True)
    done = export_data(run, attack, tmp_path / "pgd")
    clean = export_data(run, "clean", tmp_path / "clean")
    assert (done.n, clean.n, clean.rounding) == (30, 30, 0.0) and 0 < done.rounding <= 0.5
    status, said = command("export-data", run.path, "--condition", attack, "--out", tmp_path / "rounded")
    assert status == 0 and f"30 images, rounded to 8 bits, by at most {done.rounding:.2f} of 255 levels" in said
    status, said = command("export-data", run.path, "--condition", "clean", "--out", tmp_path / "exact")
    assert status == 0 and "30 images, exact pixels" in said and "rounded" not in said
    differences: dict[str, Any] = {}

    for shard in range(4):
        differences |= read_adversarials(run, "net", attack, shard)[0]
    pixels = {}
    for name in ("clean", "pgd"):
        for row in samples_of(tmp_path / name):
            pixels[name, row["sample_id"]] = np.array(Image.open(tmp_path / name / row["file"])).astype(float)
    moved = 0.0
    for sample, change in differences.items():
        expected = np.clip(pixels["clean", sample] + 255 * change.transpose(1, 2, 0).astype(float), 0, 255)
        assert abs(pixels["pgd", sample] - expected).max() <= 0.5 + 1e-3
        moved = max(moved, abs(pixels["pgd", sample] - pixels["clean", sample]).max())
    assert moved == 8
    said = json.loads((tmp_path / "pgd" / "export.json").read_text())
    table = (tmp_path / "pgd" / "samples.csv").read_bytes()
    assert said["sha256 of samples.csv"] == hashlib.sha256(table).hexdigest()
    for condition, where, expected in (
        (attack, "pgd", "is not empty"),
        ("fgsm(eps=8/255)", "other", "unknown condition of the run"),
    ):
        with pytest.raises(RobustkitError, match=expected):
            export_data(run, condition, tmp_path / where)
    monkeypatch.setattr("robustkit.slices.predictions.export.encode_png", failing_after(5))
    with pytest.raises(RobustkitError, match=r"cannot write .*half: disk full; choose a folder with --out"):
        export_data(run, "clean", tmp_path / "half")
    assert not list(tmp_path.glob("*half*")) and not list(tmp_path.glob(".*half*"))
    monkeypatch.undo()
    without = audit(place, tmp_path / "without", attacks="pgd(steps=3)")
    with pytest.raises(RobustkitError, match=r"keeps no adversarial images of net under pgd.*--keep-adversarials"):
        export_data(without, attack, tmp_path / "none")


def test_images_that_cannot_be_read_are_named(place: Path, tmp_path: Path) -> None:
    here = shutil.copytree(place, tmp_path / "place")
    broken = sorted((here / "images").rglob("*.png"))[3]
    broken.write_bytes(broken.read_bytes()[:40])
    run = audit(here, tmp_path / "run", attacks="none")
    status, said = command("export-data", run.path, "--condition", "clean", "--out", tmp_path / "clean")
    name = broken.relative_to(here / "images").as_posix()
    assert status == 0 and f"29 images, exact pixels; 1 could not be read, such as {name}" in " ".join(said.split())


def failing_after(count: int) -> Callable[[Any], bytes]:
    made: list[Any] = []

    def encode(pixels: Any) -> bytes:
        made.append(pixels)
        if len(made) > count:
            raise OSError("disk full")
        return b"png"

    return encode


@pytest.mark.parametrize(("label", "said", "classes"), [(2, 4, 5), (3, 1, 4)])
def test_without_scores_the_largest_number_tells_how_many_classes_there_are(
    label: int, said: int, classes: int, tmp_path: Path
) -> None:
    rows = [{"sample_id": f"{k}", "label": label - k, "prediction": said - k} for k in range(2)]
    run = robustkit.audit(f"predictions:{written(tmp_path / 'p.csv', rows)}", out=tmp_path / "run")
    assert run.manifest.data.classes == run.manifest.checkpoint("p").num_classes == classes
    assert run.manifest.data.class_names == tuple(map(str, range(classes)))


def test_requests_that_do_not_fit_the_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = written(tmp_path / "one.csv", GOOD)
    two = written(tmp_path / "two.csv", [with_probabilities(f"s{i}", i % 2, [0.5, 0.5]) for i in range(4)])
    bare = written(tmp_path / "bare.csv", [{"sample_id": "s0", "label": 0, "prediction": 0}])
    ways = written(tmp_path / "ways.csv", [{**GOOD[0], "condition": text} for text in ("fgsm", "fgsm(eps=1/255)")])
    for paths, options, expected in (
        ((one, two), {}, f"{two}: 2 classes, and 3 in {one}; expected as many"),
        ((bare, one), {"model": {"num_classes": 4}}, f"{one}: 3 classes, and --num-classes 4; leave that out"),
        ((one,), {"data": {"layout": "folders"}}, "--labels and --layout are about images, and --data-dir is missing"),
        ((one,), {"parity": True}, "--parity with one alone: expected two checkpoints or more"),
        ((one, one), {}, f"one under clean is predicted twice, in {one}, which is given twice or spells it"),
        ((ways,), {}, f"ways under fgsm(eps=1/255) is predicted twice, in {ways}, which is given twice or spells it"),
    ):
        with pytest.raises(RobustkitError, match=re.escape(expected)):
            robustkit.audit([f"predictions:{path}" for path in paths], out=tmp_path / "run", **options)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RobustkitError, match="run it without torchrun"):
        robustkit.audit(f"predictions:{one}", out=tmp_path / "run")
