"""`robustkit features` on mean colours: heads as scikit-learn's, records, attack, resume, wrong requests."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from coloured import CLASSES, command, features, furnish
from manifests import whole
from processes import called
from sealing import put, seal
from small_audit import files
from torch.nn import functional

from robustkit.common.differences import of_draws
from robustkit.common.finding import Finding
from robustkit.common.intervals import draws_interval
from robustkit.errors import ModelError
from robustkit.evaluations.aggregate import RecordReader
from robustkit.evaluations.records import CheckpointRecords
from robustkit.report.run import Run
from robustkit.results.comparison import compare_with_first
from robustkit.runs.folder import RunFolder
from robustkit.slices.features.heads import (
    HeadChoice,
    HeadSet,
    best_strength,
    few_shot_draws,
    fit,
    fold_of,
    logits,
    nearest_answers,
    shuffled,
)
from robustkit.slices.features.task import TASK, feature_rows

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is of the extra test")
PGD = "pgd(eps=8/255,steps=20)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("features")
    furnish(root)
    return root


@pytest.fixture(scope="module")
def done(place: Path) -> Path:
    words = command(
        place, place / "run", "--eps", "8/255", "--corruptions", "fog(severity=1+2+3+4+5)", "--shard-size", "8"
    )
    status, _, errors = called(words)
    assert status == 0, errors
    return place / "run"


def rows(run: Path, condition: str) -> dict[str, list[Any]]:
    table = RunFolder(run).table("net", condition)
    return {name: table[name].to_pylist() for name in table.column_names}


def theirs(train: Any, labels: Any, k: int, temperature: float = 0.07) -> Any:
    """Return scikit-learn's weighted neighbours; of points of length 1 at a distance d the cosine is 1 - d²/2."""
    from sklearn.neighbors import KNeighborsClassifier

    def weights(distance: Any) -> Any:
        return np.exp((1 - distance**2 / 2) / temperature)

    return KNeighborsClassifier(k, weights=weights, algorithm="brute").fit(unit(train), labels)


def unit(points: Any) -> Any:
    return points / np.linalg.norm(points, axis=1, keepdims=True)


# Heads, against scikit-learn


def test_neighbours_and_average_precision_are_scikit_learns() -> None:
    from sklearn.metrics import average_precision_score

    rng = np.random.Generator(np.random.PCG64(1))
    train, test = rng.normal(size=(300, 16)), rng.normal(size=(80, 16))
    places, labels = rng.integers(0, 7, 300), rng.integers(0, 7, 80)
    train[250:], test[60:] = train[:50], test[40:60]  # ties
    given = [torch.from_numpy(each) for each in (test, labels, unit(train), places)]
    voted, precision = nearest_answers(*given, (5, 20, 200), 0.07, 7)  # type: ignore[arg-type]
    for k, found in voted.items():
        assert found.tolist() == theirs(train, places, k).predict(unit(test)).tolist()
    cosines = (given[0] / given[0].norm(dim=1, keepdim=True)) @ given[2].T
    slow = [average_precision_score(places == label, row) for label, row in zip(labels, cosines.numpy(), strict=True)]
    np.testing.assert_allclose(precision, slow, rtol=1e-9)


def test_blocks_of_queries_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = torch.randn(50, 8, dtype=torch.float64), torch.arange(50) % 4, torch.randn(90, 8, dtype=torch.float64)
    whole = nearest_answers(*given, torch.arange(90) % 4, (3, 9), 0.07, 4)
    monkeypatch.setattr("robustkit.slices.features.heads._AT_ONCE", 7 * 90)
    parts = nearest_answers(*given, torch.arange(90) % 4, (3, 9), 0.07, 4)
    assert all(torch.equal(whole[0][k], parts[0][k]) for k in (3, 9)) and torch.equal(whole[1], parts[1])


@pytest.mark.parametrize("strength", [1.0, 1e-3])
def test_logistic_regression_is_scikit_learns(strength: float) -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.Generator(np.random.PCG64(2))
    points, labels = rng.normal(size=(200, 10)), np.arange(200) % 5
    points[:, :5] += np.eye(5)[labels]
    weights = fit(torch.from_numpy(points), torch.from_numpy(labels), 5, strength)
    known = LogisticRegression(C=1 / (strength * 200), tol=1e-10, max_iter=10_000).fit(points, labels)
    np.testing.assert_allclose(weights[:-1].T - weights[:-1].T.mean(dim=0), known.coef_, atol=1e-5)
    found = logits(torch.from_numpy(points), weights).softmax(dim=1)
    np.testing.assert_allclose(found, known.predict_proba(points), atol=1e-5)


def test_cross_validation_finds_the_strength_that_noise_needs() -> None:
    rng = np.random.Generator(np.random.PCG64(3))
    points, labels = torch.from_numpy(rng.normal(size=(120, 60))), torch.arange(120) % 2
    ids = [f"{place:03d}" for place in range(120)]
    clear = points.clone()
    clear[:, 0] += 8 * labels
    assert best_strength(clear, labels, ids, 2, 0) == 10.0  # all are right: the strongest of equals
    order = torch.randperm(120, generator=torch.Generator().manual_seed(0))
    again = best_strength(points[order], labels[order], [ids[place] for place in order], 2, 0)
    assert again == best_strength(points, labels, ids, 2, 0)


@pytest.mark.parametrize("classes", [2, 3, 6, 10])
def test_each_fold_has_its_share_of_each_class(classes: int) -> None:
    places = torch.arange(7 * classes) % classes
    fold = fold_of(places)
    for out in range(3):
        assert set(places[fold == out].bincount(minlength=classes).tolist()) <= {2, 3}
    assert max(fold.bincount()) - min(fold.bincount()) <= 2
    points = functional.one_hot(places).double()  # plain to see: any fold differs from the others
    assert best_strength(points, places, [f"{at:03d}" for at in range(len(places))], classes, 0) >= 0.1
    weights = fit(points[fold != 0], places[fold != 0], classes, 1e-4)
    assert (logits(points[fold == 0], weights).argmax(dim=1) == places[fold == 0]).all()


def test_no_strength_is_chosen_where_each_class_has_one_image() -> None:
    with pytest.raises(ModelError, match="no class has two of the 5 training images"):
        best_strength(torch.eye(5).double(), torch.arange(5), list("abcde"), 5, 0)


def test_few_images_are_drawn_evenly_and_as_a_function_of_their_ids() -> None:
    places, ids = torch.tensor([0, 1, 2] * 10), [f"{place:02d}" for place in range(30)]
    found = {(shots, draw): chosen for shots, draw, chosen in few_shot_draws(places, ids, (1, 2, 5), 3, 0)}
    assert len(found) == 9 and len({tuple(found[2, draw].tolist()) for draw in range(3)}) == 3
    for (shots, draw), chosen in found.items():
        assert places[chosen].bincount().tolist() == [shots] * 3
        assert set(chosen.tolist()) <= set(found[5, draw].tolist())
    turned = shuffled(places.flip(0), ids[::-1], "0/few-shot/0")
    assert [29 - place for place in turned] == shuffled(places, ids, "0/few-shot/0")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({}, ""),
        ({0: 0.0, 1: 1e9}, ""),
        ({0: torch.nan}, "1 of 6 samples have non-finite features; counted as wrong"),
        ({0: torch.inf, 2: -torch.inf, 5: torch.nan}, "3 of 6 samples have non-finite features; counted as wrong"),
        ({6: torch.nan}, ""),  # of the image that could not be read
    ],
)
def test_images_whose_features_are_not_finite_are_wrong_and_counted(
    odd: dict[int, float], said: str, tmp_path: Path
) -> None:
    labels, points = [0, 1, 2] * 4, 3 * functional.one_hot(torch.arange(12) % 3, 4).float()
    asked = HeadChoice("", 12, 3, (1, 3), 3, 0.07, (1,), 2, 0.01, 1.0)
    heads = HeadSet.fitted(asked, points, labels, [f"{place:02d}" for place in range(12)], 0)
    shown = points[:7].clone()
    for place, value in odd.items():
        shown[place, 1] = value
    predicted, precision = heads.predict(shown, labels[:7])
    columns = {name: found.tolist() for name, found in predicted.items()}
    columns |= {"label": labels[:7], "precision": precision.tolist(), "moved": [0.0] * 7, "linf": [0.0] * 7}
    columns |= {"l2": [0.0] * 7, "sample_id": list("abcdefg"), "error": [None] * 6 + ["it is broken"]}
    run = RunFolder(tmp_path)
    checkpoint = {"name": "net", "heads": asked.to_dict()}
    run.write_manifest(whole({"checkpoints": [checkpoint], "conditions": ["clean"], "data": {"n": 7}}))
    put(run, "net", "clean", pa.table(columns))
    seal(run)
    rows = {row.metric: row for row in feature_rows(RecordReader(run, run.manifest, "net", {}), ["clean"])[0]}
    wrong = sum(place < 6 and not math.isfinite(value) for place, value in odd.items())
    for metric in ("knn", "knn(1)", "knn(3)", "probe", "retrieval", "few_shot(1)"):
        assert (rows[metric].value, rows[metric].n) == (pytest.approx(1 - wrong / 6), 6)
    for row in rows.values():
        raised = [finding for finding in row.findings if finding.code == "features/non-finite"]
        assert raised == [Finding("features/non-finite", said)] * bool(said)


# A run


def test_records_are_what_scikit_learn_says_of_the_same_features(place: Path, done: Path) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import average_precision_score

    _, train, places = features(place, "train")
    ids, test, labels = features(place, "test")
    clean = rows(done, "clean")
    assert clean["sample_id"] == ids and clean["label"] == labels.tolist() and set(clean["moved"]) == {0.0}
    for k in (1, 5, 20):
        assert clean[f"knn {k}"] == theirs(train, places, k).predict(unit(test)).tolist()
    assert clean["knn"] == clean["knn 20"] and clean["knn 1"] != clean["knn 20"]
    slow = [
        average_precision_score(places == label, row)
        for label, row in zip(labels, unit(test) @ unit(train).T, strict=True)
    ]
    np.testing.assert_allclose(clean["precision"], slow, rtol=1e-5)
    kept = safetensors.torch.load_file(done / "features" / "net" / "heads.safetensors")
    np.testing.assert_allclose(kept["features"], train, atol=3e-5)
    mean = train.mean(axis=0)
    scale = np.sqrt(((train - mean) ** 2).mean())
    known = LogisticRegression(C=1 / (float(kept["strength"]) * len(train)), tol=1e-10, max_iter=10_000)
    assert clean["probe"] == known.fit((train - mean) / scale, places).predict((test - mean) / scale).tolist()
    for shots, draw, chosen in few_shot_draws(torch.from_numpy(places), features(place, "train")[0], (1, 3), 5, 0):
        few = LogisticRegression(C=1 / (0.01 * len(chosen)), tol=1e-10, max_iter=10_000)
        few.fit(((train - mean) / scale)[chosen], places[chosen])
        assert clean[f"few_shot {shots} {draw}"] == few.predict((test - mean) / scale).tolist()


def test_figures_are_means_of_records(done: Path) -> None:
    found = {(row.condition, row.metric): row for row in RunFolder(done).summary()}
    for condition in ("clean", PGD):
        read = {name: np.array(values) for name, values in rows(done, condition).items() if name != "broken_by"}
        right = {
            name: (found == read["label"]).mean()
            for name, found in read.items()
            if name.split()[0] in ("knn", "probe", "few_shot")
        }
        assert found[condition, "knn"].value == right["knn"] == right["knn 20"]
        assert found[condition, "knn(5)"].value == right["knn 5"] and found[condition, "knn"].n == 24
        shots = [right[f"few_shot 3 {draw}"] for draw in range(5)]
        assert found[condition, "few_shot(3)"].value == pytest.approx(np.mean(shots))
        assert found[condition, "few_shot_spread(3)"].value == pytest.approx(np.std(shots, ddof=1))
        assert found[condition, "retrieval"].value == pytest.approx(read["precision"].mean())
        row = found[condition, "few_shot(3)"]
        each = np.stack([read[f"few_shot 3 {draw}"] == read["label"] for draw in range(5)], axis=1).astype(float)
        assert (row.low, row.high) == pytest.approx(draws_interval(each))
    assert ("clean", "moved") not in found and found[PGD, "moved"].value > 0.003
    fog = [found[f"corruption(fog,severity={severity},preset=cifar)", "knn"].value for severity in range(1, 6)]
    assert found["corruption(fog,preset=cifar)", "knn"].value == pytest.approx(np.mean(fog))
    assert not any(row.findings for row in found.values())


def test_the_attack_moves_features_to_where_pixels_allow(place: Path, done: Path) -> None:
    """Features are means of pixels, so a change of features is as large as a change of pixels can be."""
    attacked = rows(done, PGD)
    assert max(attacked["linf"]) <= 8 / 255 + 1e-6 and min(attacked["linf"]) > 7 / 255
    _, test, _ = features(place, "test")
    rng = np.random.Generator(np.random.PCG64(5))
    corners = rng.choice([-1, 1], (2000, 12)) * (8 / 255) / np.sqrt(0.04 + 1e-5)
    tried = 1 - np.einsum(
        "nd,nkd->nk", unit(test), (moved := test[:, None] + corners) / np.linalg.norm(moved, axis=2)[..., None]
    )
    assert (np.array(attacked["moved"]) > 0.6 * tried.max(axis=1)).all()
    assert (np.array(attacked["moved"]) > 0.9 * tried.max(axis=1)).mean() > 0.7
    assert set(attacked["forwards"]) == {22} and set(attacked["backwards"]) == {20}


def test_page_terminal_comparison_and_gate_show_them(place: Path, done: Path, tmp_path: Path) -> None:
    status, out, errors = called(["report", str(done), "--details"])
    assert status == 0, errors
    for text in ("linear probe %", "kNN with k 20", "48 training images of 4 classes", "nearest neighbours"):
        assert text in out
    page = (done / "report.html").read_text("utf-8")
    assert "retrieval mAP" in page and "labels are not used" in page
    shutil.copy(place / "net.pth", tmp_path / "other.pth")
    moments = torch.load(tmp_path / "other.pth", weights_only=True)
    torch.save(moments | {"2.running_mean": torch.zeros(12)}, tmp_path / "other.pth")
    words = command(place, tmp_path / "two", "--attacks", "none")
    assert called([*words[:2], str(tmp_path / "other.pth"), *words[2:]])[0] == 0
    (pair,) = compare_with_first(Run(tmp_path / "two")).pairs
    paired = {(row.condition, row.metric): row.difference for row in pair.rows}
    found = {(row.checkpoint, row.metric): row.value for row in RunFolder(tmp_path / "two").summary()}
    for metric in ("knn", "probe", "retrieval"):
        difference = found["other", metric] - found["net", metric]
        assert paired["clean", metric].value == pytest.approx(difference) and paired["clean", metric].n == 24
    run, sides = RunFolder(tmp_path / "two"), []
    for name in ("net", "other"):
        read = run.table(name, "clean").sort_by("sample_id")
        columns = [read[f"few_shot 3 {draw}"].to_numpy() for draw in range(5)]
        sides.append(np.stack([column == read["label"].to_numpy() for column in columns], axis=1).astype(float))
    records = [CheckpointRecords(run, name) for name in ("net", "other")]
    assert TASK.difference(*records, "clean", "few_shot(3)") == of_draws(*sides)
    for value, expected in (("0.2", 0), ("0.999", 1)):
        rules = "\n".join(
            f'[[rule]]\nrequire = "{metric} under clean >= {value}"' for metric in ("knn", "knn(5)", "few_shot(3)")
        )
        (tmp_path / "policy.toml").write_text(rules)
        assert called(["check", str(done), "--policy", str(tmp_path / "policy.toml")])[0] == expected


# Going on, and not going on


@pytest.mark.slow
def test_a_resume_takes_the_heads_that_are_there_and_gives_the_same_bytes(place: Path, tmp_path: Path) -> None:
    words = command(place, tmp_path / "run", "--eps", "8/255", "--attacks", "pgd(steps=2)", "--shard-size", "8")
    assert called(words)[0] == 0
    whole, heads = files(tmp_path / "run"), tmp_path / "run" / "features" / "net" / "heads.safetensors"
    kept = heads.read_bytes()
    lost = [path.unlink() for path in sorted((tmp_path / "run" / "records").rglob("*.parquet"))[::2]]
    modified = heads.stat().st_mtime_ns
    assert len(lost) == 3 and called(words)[0] == 0 and heads.stat().st_mtime_ns == modified
    assert files(tmp_path / "run") == whole
    for damage in (kept[:-4] + b"oops", kept[:100], b""):
        heads.write_bytes(damage)
        next((tmp_path / "run" / "records").rglob("*.parquet")).unlink()
        assert called(words)[0] == 0 and heads.read_bytes() == kept and files(tmp_path / "run") == whole


def test_another_training_set_or_other_heads_are_not_mixed_in(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "train", tmp_path / "train")
    words = command(place, tmp_path / "run", "--attacks", "none")
    assert called(words)[0] == 0
    digest = json.loads((tmp_path / "run" / "run.json").read_text())["checkpoints"][0]["heads"]["training"]
    next((tmp_path / "train" / "amber").iterdir()).unlink()
    for more in (("--train", str(tmp_path / "train")), ("--shots", "2"), ("--probe", "0.5"), ("--train-limit", "40")):
        status, _, errors = called([*words, *more])
        assert status == 2 and "contains another run: heads of net is " in errors and errors.count("\n") == 1
    assert len(digest) == 64


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("--neighbours", "5,49"), r"--neighbours 49: .*train has 48 training images; expected at most as many"),
        (("--neighbours", "five"), "--neighbours 'five': expected whole numbers from 1 on, such as 5,20"),
        (("--shots", "1,13"), r"--shots 13: .*train has 12 of class amber; expected at most as many"),
        (("--shots", "0"), "--shots '0': expected whole numbers from 1 on"),
        (("--probe", "weak"), "--probe, cv or 'weak': expected a number above 0"),
        (("--train", "{test}"), r"24 of 24 images of .*test are training images, too .* each would be its own nearest"),
        (("--train", "{empty}"), r"empty: no images in it; expected a folder or zip"),
        (("--train", ""), "--train': it is empty"),
        (("--train", "{one}"), r"test has images of blue, cyan, dark, of which .*one has no training image"),
        (("--train", "nowhere"), "nowhere: no such folder or zip file"),
        (("--attacks", "fgsm"), "unknown attack 'fgsm'.* pgd"),
        (("--attacks", "pgd(loss=ce)"), "loss is 'ce'; expected one of: cosine, l2"),
        (("--protocol", "standard"), "protocol standard is for classification; use robustkit audit"),
        (("--train-limit", "0"), "--train-limit"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes: tuple[str, ...], said: str, place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(place / "train" / "amber", tmp_path / "one" / "amber")
    for index, other in enumerate(CLASSES[1:]):
        (tmp_path / "one" / f"{other}x{index}").mkdir()
    names = {"test": place / "test", "empty": tmp_path / "empty", "one": tmp_path / "one"}
    words = [word.format(**names) for word in changes]
    none = () if "--attacks" in words else ("--attacks", "none")
    status, _, errors = called([*command(place, tmp_path / "run", *none), *words])
    assert status == 2 and re.search(said, errors) and errors.count("\n") == 1, errors
    assert not (tmp_path / "run").exists()


def test_a_few_shared_files_are_noted_and_training_images_must_be_readable(place: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(place / part, tmp_path / part)
    first = next((place / "test" / "blue").iterdir())
    for copy in range(120):  # one of 144 images is a training image
        pixels = tmp_path / "test" / "blue" / f"more{copy:03d}.png"
        pixels.write_bytes(first.read_bytes() + bytes([copy]))
    shutil.copy(first, tmp_path / "train" / "blue" / "again.png")
    words = command(tmp_path_of(place, tmp_path), tmp_path / "run", "--attacks", "none")
    status, _, errors = called(words)
    assert status == 0 and "1 of 144 images are training images, too (blue/" in errors, errors
    (tmp_path / "train" / "blue" / "bad.png").write_bytes(b"no image")
    status, _, errors = called([*words, "--out", str(tmp_path / "bad")])
    assert status == 2 and "training image blue/bad.png cannot be read; repair or remove it" in errors


def tmp_path_of(place: Path, tmp_path: Path) -> Path:
    for name in ("net.py", "net.pth"):
        shutil.copy(place / name, tmp_path / name)
    return tmp_path
