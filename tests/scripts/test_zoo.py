"""The shipped checkpoints: whole, small, what their metadata say, and of the formula that they declare."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from places import SHARED
from safetensors import safe_open

import robustkit.embedded
from robustkit.cli.app import cli
from robustkit.data import shapes
from robustkit.errors import CheckpointError, ModelError
from robustkit.models import specs
from scripts.zoo import card as zoo_card

FOLDER = Path(robustkit.embedded.__file__).parent
SHIPPED: dict[str, dict[str, Any]] = json.loads((FOLDER / "checkpoints.json").read_text("utf-8"))
LISTED = {name: entry for name, entry in SHIPPED.items() if "task" not in entry}
SEGMENTERS = {name: entry for name, entry in SHIPPED.items() if entry.get("task") == "segmentation"}
LEAST = {"cifar10": 0.70, "shapes": 0.85}
FORMULAS = {
    "cifar10": ("standard", "quest", "elliptical-quest"),
    "shapes": ("standard", "quest", "elliptical", "elliptical-quest", "qnorm", "qknorm-hs", "qknorm-ds"),
}
REQUIRED = [f"{family}-vit-{attention}" for family in LEAST for attention in FORMULAS[family]]
CIFAR10 = SHARED / "data" / "cifar10-test.zip"
KEYS = (
    "arch arch_kwargs attention num_classes class_names mean std input_size data data_digest test_data test_digest "
    "recipe preset seed epochs ema accuracy license"
)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def card() -> Any:
    """The script that writes the model card."""
    return zoo_card


def metadata(name: str) -> dict[str, str]:
    with safe_open(FOLDER / LISTED[name]["file"], "pt") as file:
        return dict(file.metadata())


def images_of(name: str) -> str:
    if name.startswith("shapes"):
        return "embedded:shapes"
    if not CIFAR10.exists():
        pytest.skip("needs CIFAR-10's test images in ../shared")
    return str(CIFAR10)


def test_all_are_there_whole_and_small() -> None:
    assert set(REQUIRED) == set(LISTED)
    files = {name: FOLDER / entry["file"] for name, entry in LISTED.items()}
    assert {path.name for path in files.values()} == {path.name for path in FOLDER.glob("*-vit-*.safetensors")}
    assert len(SHIPPED) == len(list(FOLDER.glob("*.safetensors")))
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == LISTED[name]["sha256"]
        assert path.stat().st_size <= 3_000_000
    assert sum(path.stat().st_size for path in files.values()) <= 15_000_000


@pytest.mark.parametrize("name", REQUIRED)
def test_the_metadata_are_complete_and_those_of_one_recipe(name: str) -> None:
    said, entry = metadata(name), LISTED[name]
    assert set(KEYS.split()) <= set(said)
    assert said["attention"] == entry["attention"] == name.partition("-vit-")[2]
    assert float(said["accuracy"]) == entry["accuracy"]
    assert entry["accuracy"] >= LEAST[name.partition("-vit-")[0]]
    apart = {"attention", "accuracy"}
    first = metadata(f"{name.partition('-vit-')[0]}-vit-standard")
    for each in (said, first):  # three were trained later, in another precision
        each["recipe"] = re.sub("(bfloat16 autocast|float32); scripts/.*", "", each["recipe"])
    assert {k: v for k, v in said.items() if k not in apart} == {k: v for k, v in first.items() if k not in apart}
    with safe_open(FOLDER / entry["file"], "pt") as file:
        assert {file.get_tensor(tensor).dtype for tensor in file.offset_keys()} == {torch.float16}


@pytest.mark.parametrize(
    "name", [n if n == "shapes-vit-quest" else pytest.param(n, marks=pytest.mark.slow) for n in LISTED]
)
def test_the_declared_formula_has_the_lowest_loss_of_all_nine(card: Any, name: str) -> None:
    count = 250 if name == "cifar10-vit-elliptical-quest" else 100  # fewer do not rank its own first
    found = card.ranking(f"zoo:{name}", images_of(name), count)
    assert len(found.rows) == (6 if "qknorm" in name else 9)  # scales in the file say whose they are
    assert found.best == found.declared == LISTED[name]["attention"]
    assert abs(found.rows[0].top1 - LISTED[name]["accuracy"]) < 4 * math.sqrt(0.25 / count)
    classes = robustkit.load(f"zoo:{name}").identity.class_names
    assert classes == shapes.CLASSES if name.startswith("shapes") else classes[3:6] == ("cat", "deer", "dog")


def test_a_checkpoint_that_is_not_the_shipped_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = tmp_path / "embedded"
    shutil.copytree(FOLDER, zoo)
    monkeypatch.setattr(specs, "_zoo", lambda: zoo)
    assert robustkit.load("zoo:shapes-vit-quest").identity.attention == "quest"
    path = zoo / LISTED["shapes-vit-quest"]["file"]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last bit of a weight
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()[:12]
    with pytest.raises(CheckpointError) as caught:
        robustkit.load("zoo:shapes-vit-quest")
    assert str(caught.value) == (
        f"zoo:shapes-vit-quest: {path} has sha256 {found}…, expected {LISTED['shapes-vit-quest']['sha256'][:12]}…: it "
        "is not the checkpoint that was shipped; install RobustKit again from its source"
    )
    listed = json.loads(CliRunner().invoke(cli, ["list", "models", "--json"]).output)
    clean = {entry["name"]: entry["clean"] for entry in listed}
    assert len(clean) == len(SHIPPED)
    assert clean["zoo:shapes-vit-quest"].startswith(f"{path} has sha256 {found}")
    assert "top-1" in clean["zoo:shapes-vit-standard"]
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing; install RobustKit again"):
        robustkit.load("zoo:shapes-vit-quest")
    assert robustkit.load("zoo:shapes-vit-standard").identity.attention == "standard"
    with pytest.raises(ModelError, match="unknown zoo model 'shapes-vit-qest'; did you mean 'shapes-vit-quest'"):
        robustkit.load("zoo:shapes-vit-qest")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LISTED)
def test_the_accuracy_is_that_of_all_test_images_and_the_formula_fits_beyond_chance(card: Any, name: str) -> None:
    found = card.ranking(f"zoo:{name}", images_of(name), 10_000)
    assert f"{found.rows[0].top1:.4f}" == metadata(name)["accuracy"]
    assert (found.verdict, found.n) == ("fits", 1000 if name.startswith("shapes") else 10_000)


def test_list_models_shows_each_with_its_figures() -> None:
    entries = json.loads(CliRunner().invoke(cli, ["list", "models", "--json"], catch_exceptions=False).output)
    assert [entry["name"] for entry in entries] == [f"zoo:{name}" for name in SHIPPED]
    entry = next(entry for entry in entries if "cifar10-vit-quest" in entry["name"])
    clean = f"top-1 {100 * LISTED['cifar10-vit-quest']['accuracy']:.1f} %"
    shown = [entry[key] for key in ("attention", "clean", "test data", "parameters", "input")]
    assert shown == ["quest", clean, "CIFAR-10: 10000 test images", "1.36 M", "32x32"]


def test_the_segmenters_are_whole_and_small() -> None:
    assert list(SEGMENTERS) == ["shapes-segmenter-quest", "shapes-segmenter-standard"]
    for entry in SEGMENTERS.values():
        path = FOLDER / entry["file"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"] and path.stat().st_size < 3_000_000
        with safe_open(path, "pt") as file:
            said = dict(file.metadata())
        assert said["attention"] == entry["attention"] and float(said["miou"]) == entry["miou"] > 0.65
        assert said["encoder"] == f"zoo:shapes-vit-{entry['attention']}" and said["epochs"] == "6"
        assert said["license"] == "Apache-2.0" and "/" not in said["data"]
    done = CliRunner().invoke(cli, ["list", "models"], catch_exceptions=False)
    assert "mIoU 70" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("name", SEGMENTERS)
def test_a_segmenter_has_its_own_formula_and_figure(name: str, tmp_path: Path) -> None:
    words = ["inspect", f"zoo:{name}", "--data-dir", "embedded:shapes", "--limit", "80"]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    own = SEGMENTERS[name]["attention"]
    assert f"{own} attention fits best, as declared" in done.output
    run = robustkit.segment(
        [f"zoo:{name}"], data_dir="embedded:shapes", attacks="none", limit=80, out=tmp_path, examples=0
    )
    (miou,) = (row for row in run.summary() if row.metric == "miou")
    assert miou.value == pytest.approx(SEGMENTERS[name]["miou"], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEGMENTERS)
def test_the_figure_of_a_segmenter_on_all_images(name: str, tmp_path: Path) -> None:
    run = robustkit.segment([f"zoo:{name}"], data_dir="embedded:shapes", attacks="none", out=tmp_path, examples=0)
    (miou,) = (row for row in run.summary() if row.metric == "miou")
    assert miou.value == pytest.approx(SEGMENTERS[name]["miou"], abs=1e-4)
