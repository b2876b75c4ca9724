"""What `inspect` and `audit` say about the set-up of well-known checkpoints, where the folder shared/ is there."""

from pathlib import Path
from typing import Any

import pytest
from places import SHARED, SUPPORT
from setup_oracles import check_same_verdicts

import robustkit
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.models import load
from robustkit.models.setup_check import BETTER, FITS, UNKNOWN, PartFit
from robustkit.slices.inspect.search import SetupSearch, makes_no_difference, verdict_text

CIFAR = SHARED / "data" / "cifar10-test.zip"
VAL = SHARED / "data" / "imagenet-val" / "val"
RESNET = SHARED / "weights" / "cifar10" / "resnet20-12fca82f.th"
VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
ARCH = {"arch": f"{SUPPORT / 'cifar_resnets.py'}:resnet20"}
NONE = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real data and weights of ../shared"),
]


def fits(checkpoint: str | Path, data: Path, count: int, **options: Any) -> dict[str, PartFit]:
    model = load(checkpoint, **options)
    names = model.identity.class_names
    dataset: Dataset = open_dataset(data, num_classes=model.identity.num_classes, class_names=names)
    return {fit.part: fit for fit in SetupSearch(model, dataset.select(limit=count), 20, 0).fit()[0]}


@pytest.mark.slow
def test_a_cifar_resnet_names_imagenets_normalisation_and_no_crop() -> None:
    found = fits(RESNET, CIFAR, 300, **ARCH)
    assert [found[part].best.name for part in ("normalisation", "crop", "channels", "labels")] == [
        *("ImageNet", "1", "RGB", "as given")
    ]
    assert makes_no_difference(found["interpolation"]) and found["channels"].verdict == FITS
    assert all(fit.verdict != BETTER for fit in found.values())
    eight = fits(RESNET, CIFAR, 8, **ARCH)
    assert {fit.verdict for fit in eight.values()} == {UNKNOWN}


@pytest.mark.slow
def test_the_right_one_ranks_before_a_wrong_one_in_use() -> None:
    found = fits("zoo:cifar10-vit-quest", CIFAR, 100, **NONE)
    assert found["normalisation"].verdict == BETTER and found["normalisation"].best.name == "CIFAR-10"
    assert "give --mean '0.4914 0.4822 0.4465' --std '0.247 0.2435 0.2616'" in verdict_text(found["normalisation"])


def test_an_audit_of_a_resnet_without_its_normalisation_warns(tmp_path: Path) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"data_dir": CIFAR, "attacks": "none", "limit": 64, "device": "cpu", "browse": 0}
    robustkit.audit([RESNET], model=ARCH | NONE, out=tmp_path / "wrong", say=lines.append, **options)
    assert any("⚑ resnet20-12fca82f: normalisation does not fit: " in line for line in lines)
    right: list[str] = []
    run = robustkit.audit([RESNET], model=ARCH, out=tmp_path / "right", say=right.append, **options)
    assert not any("⚑" in line for line in right) and not any(run.results()["flags"].map(bool))


@pytest.mark.slow
def test_the_real_vit_tiny_names_its_own() -> None:
    own = fits(VIT, VAL, 100, arch="vit_tiny_patch16_224")
    assert own["normalisation"].best.name in ("0.5 / 0.5", "127 / 128 of 255")
    assert all(fit.verdict != BETTER for fit in own.values())
    assert (own["channels"].verdict, own["labels"].verdict) == (FITS, FITS)
    assert "0.9" in {own["crop"].best.name, *own["crop"].open}
    assert "bicubic" in {own["interpolation"].best.name, *own["interpolation"].open}
    found = fits(VIT, VAL, 100, arch="vit_tiny_patch16_224", **IMAGENET)
    assert found["normalisation"].verdict == BETTER
    assert found["normalisation"].best.name in ("0.5 / 0.5", "127 / 128 of 255")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "data", "count", "options", "most"),
    [
        (VIT, VAL, 60, {"arch": "vit_tiny_patch16_224"}, 15),
        (VIT, VAL, 60, {"arch": "vit_tiny_patch16_224", **IMAGENET}, 16),
        (VIT, VAL, 60, {"arch": "vit_tiny_patch16_224", "attention": "quest"}, 22),
        (RESNET, CIFAR, 300, ARCH, 12),
        (RESNET, CIFAR, 300, ARCH | NONE, 24),
        ("zoo:cifar10-vit-quest", CIFAR, 100, NONE, 24),
    ],
)
def test_halving_has_the_verdicts_of_the_full_search(
    checkpoint: str | Path, data: Path, count: int, options: dict[str, Any], most: float
) -> None:
    model = load(checkpoint, **options)
    names = model.identity.class_names
    dataset = open_dataset(data, num_classes=model.identity.num_classes, class_names=names)
    assert check_same_verdicts(model, dataset.select(limit=count)) <= most
