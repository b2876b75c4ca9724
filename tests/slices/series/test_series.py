"""`robustkit series` from the command line to the records, on a linear model whose answers are known."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from processes import called
from safetensors.torch import save_file
from series_files import CLASSES, MEAN, STD, furnish, series, write_ts
from small_audit import files

from robustkit.results.published import read_published
from robustkit.runs.folder import RunFolder

DISTURBED = ("--disturbances", "jitter,drop-steps,warp(sigma=1)")


def rows(run: Path, condition: str) -> dict[str, list[Any]]:
    table = RunFolder(run).table("net", condition)
    return {name: table[name].to_pylist() for name in table.column_names}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("series")
    furnish(root)
    return root


def words(place: Path, out: Path, *more: str) -> list[str]:
    return [*furnish(place), "--out", str(out), *more]


def logits_of(place: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the logits (n, K) of the clean series in float64, and the weights (K, C) of the channels' means."""
    weights = torch.load(place / "net.pth", weights_only=True)
    matrix, bias = weights["head.weight"].double().numpy(), weights["head.bias"].double().numpy()
    means = np.array([(each.mean(axis=1) - MEAN) / STD for each in series()])
    return means @ matrix.T + bias, matrix


def test_clean_answers_and_attacks_have_a_closed_form(place: Path, tmp_path: Path) -> None:
    """In the ball of linf the mean of channel c moves by at most eps: a class k overtakes y where the gap of their
    logits is less than eps |w_k - w_y|_1, and PGD between two classes ends there.
    """
    logits, matrix = logits_of(place)
    labels = np.array([0, 1, 2] * 4)
    write_ts(place / "made.ts", labels.tolist())
    status, _, errors = called(
        words(place, tmp_path / "run", "--attacks", "fgsm,pgd(random_start=false),fgsm(norm=l2)", "--eps", "0.2")
    )
    assert status == 0, errors
    clean = rows(tmp_path / "run", "clean")
    assert clean["sample_id"] == [f"made/{place:05d}" for place in range(12)]
    assert clean["prediction"] == logits.argmax(axis=1).tolist() and set(clean["linf"]) == {0.0}
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(12), labels]
    np.testing.assert_allclose(clean["nll"], losses, rtol=1e-4)
    reach = 0.2 * np.abs(matrix[:, None] - matrix[None]).sum(axis=2)  # (K, K)
    gaps = logits[np.arange(12), labels][:, None] - logits
    gaps[np.arange(12), labels] = np.inf
    stands = (gaps > reach[labels]).all(axis=1)
    attacked = rows(tmp_path / "run", "pgd(eps=0.2,steps=20,random_start=false)")
    assert attacked["correct"] == stands.tolist() and 0 < stands.sum() < (gaps > 0).all(axis=1).sum()
    for condition in ("fgsm(eps=0.2)", "pgd(eps=0.2,steps=20,random_start=false)"):
        np.testing.assert_allclose(rows(tmp_path / "run", condition)["linf"], 0.2, rtol=1e-4)
    np.testing.assert_allclose(rows(tmp_path / "run", "fgsm(eps=0.2,norm=l2)")["l2"], 0.2, rtol=1e-4)
    codes = {finding.code for row in RunFolder(tmp_path / "run").summary() for finding in row.findings}
    assert codes <= {"labels/no-better-than-chance"}  # random matrices


def test_batches_and_a_resume_give_the_same(place: Path, tmp_path: Path) -> None:
    conditions = ("--attacks", "pgd(steps=3)", *DISTURBED, "--shard-size", "4")
    assert called(words(place, tmp_path / "whole", *conditions))[0] == 0
    whole = files(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    lost = [path for path in sorted((tmp_path / "again" / "records").rglob("*.parquet"))[::2] if path.unlink() is None]
    for name in ("summary.json", "summary.csv", "report.html"):
        (tmp_path / "again" / name).unlink()
    assert len(lost) > 5 and called(words(place, tmp_path / "again", *conditions))[0] == 0
    assert files(tmp_path / "again") == whole
    assert called(words(place, tmp_path / "small", *conditions, "--batch-size", "1"))[0] == 0
    for name in (name for name in whole if name.endswith(".parquet")):
        tables = [pq.read_table(tmp_path / run / name) for run in ("whole", "small")]
        for column in ("linf", "l2", "nll"):
            np.testing.assert_allclose(*(table[column].to_numpy() for table in tables), rtol=1e-4, atol=1e-6)
        assert tables[0]["prediction"] == tables[1]["prediction"]


def test_words_and_units_are_those_of_series(place: Path, tmp_path: Path) -> None:
    status, out, errors = called(
        words(place, tmp_path / "run", "--attacks", "pgd(steps=2)", "--eps", "0.25", *DISTURBED)
    )
    assert status == 0, errors
    report = (tmp_path / "run" / "report.html").read_text()
    for text in ("0.25 σ", "12 series"):
        assert text in out or text in report
    assert "largest |δ|" in report and "standard deviation of a channel" in report
    for word in ("pixel", "/255<", "images"):
        assert word not in out and word not in report.split("<main", 1)[1].split("<script", 1)[0]


def test_another_order_of_classes_is_a_finding_and_stated_by_the_option_that_it_names(
    place: Path, tmp_path: Path
) -> None:
    """The network's outputs are c, a and b; the header says a, b, c."""
    command = words(place, tmp_path / "run", "--attacks", "none")
    answers = logits_of(place)[0].argmax(axis=1)
    write_ts(place / "made.ts", [(2, 0, 1)[answer] for answer in answers])

    def evaluated(*more: str, header: str = "a b c") -> tuple[float, list[str], list[str]]:
        text = (place / "made.ts").read_text()
        (place / "made.ts").write_text(re.sub("(?<=@classLabel true ).*", header, text))
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        status, _, errors = called([*command, "--out", str(out), *more])
        assert status == 0, errors
        row = next(row for row in RunFolder(out).summary() if row.metric == "top1")
        codes = ("labels/order-assumed", "labels/other-order")
        assumed, other = ([each.text for each in row.findings if each.code == code] for code in codes)
        return row.value, assumed, other

    value, assumed, (text,) = evaluated()
    assert value == 0 and not assumed and text.startswith("labels may be in a different order: ")
    assert "give --classes FILE with the names of the classes in the order" in text
    (tmp_path / "names.txt").write_text("c\na\nb\n")
    assert evaluated("--classes", str(tmp_path / "names.txt")) == (1, [], [])
    value, (text,), others = evaluated(header="c a b")  # the header's order is right, but nobody says so
    assert value == 1 and not others and "that of @classLabel (c, a, b) is used, but that of the sorted" in text
    assert evaluated("--classes", str(tmp_path / "names.txt"), header="c a b") == (1, [], [])


def test_names_that_contradict_the_checkpoint_or_the_data_are_one_line(place: Path, tmp_path: Path) -> None:
    command = words(place, tmp_path / "run", "--attacks", "none", "--classes", str(tmp_path / "names.txt"))
    for text, message in (
        ("a\nb\n", "does not know its classes c; it knows a, b"),
        ("a\nb\nc\nd\n", "4 classes, and the"),
    ):
        (tmp_path / "names.txt").write_text(text)
        status, _, errors = called(command)
        assert status == 2 and message in errors and errors.count("\n") == 1
    weights = torch.load(place / "net.pth", weights_only=True)
    save_file(weights, place / "net.safetensors", {"class_names": '["a", "b", "c"]'})
    command[1] = str(place / "net.safetensors")
    (tmp_path / "names.txt").write_text("b\na\nc\n")
    status, _, errors = called(command)
    assert status == 2 and "names.txt: b, a, c, but net names its outputs a, b, c; leave out --classes" in errors
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    assert called(command)[0] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--attacks", "square"), "unknown attack on series 'square"),
        (
            ("--attacks", "pgd", "--protocol", "standard"),
            "protocol standard is for classification; use robustkit audit",
        ),
        (("--mean", "0", "--std", "1"), "does not fit Linear"),
        (("--mean", "zero"), "--mean 'zero': expected a number for each channel"),
        (("--num-classes", "4"), "of wrong shape"),
        (("--disturbances", "fog"), "unknown disturbance 'fog'"),
        (("--data", "nowhere.ts"), "nowhere.ts: not a .ts file that can be read"),
    ],
)
def test_what_does_not_fit_is_one_line(changes: tuple[str, ...], said: str, place: Path, tmp_path: Path) -> None:
    status, _, errors = called(words(place, tmp_path / "run", *changes))
    assert status == 2 and re.search(said, errors) and errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_series_that_cannot_be_read_is_counted(place: Path, tmp_path: Path) -> None:
    text = (place / "made.ts").read_text().splitlines()
    bad = tmp_path / "bad.ts"
    bad.write_text("\n".join([*text[:-1], "?,?:1,2:a"]))
    status, _, errors = called([*words(place, tmp_path / "run", "--attacks", "none"), "--data", str(bad)])
    assert status == 2 and "1 of 12 series could not be read and were left out, the first: bad/00011" in errors
    assert CLASSES == 3


def test_published_figures_are_as_printed() -> None:
    read = read_published("quest-handwriting").resolved()
    figures = [read.figure(name, "clean", "top1") for name in ("standard", "qnorm", "qknorm", "quest")]
    assert figures == [0.42, 0.4106, 0.4918, 0.4918]
    assert read_published("quest-japanesevowels").resolved().figure("qnorm", "clean", "top1") == 0.9892
