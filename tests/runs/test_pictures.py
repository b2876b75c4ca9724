"""The images that a run keeps for its report: which, of whom, and that they are what the model was shown."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_audit
import torch
from PIL import Image

import robustkit
from attacks import FGSM, ThreatModel
from corruptions import corrupt
from robustkit.data.dataset import open_dataset
from robustkit.evaluations.subject import SIDE, encode_picture
from robustkit.report.run import Run
from robustkit.runs.kept_images import Picture, read_pictures

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined", "pageless")
NAME = "shapes-vit-standard"
NOISE, BRIGHT = "corruption(gaussian_noise,severity=3)", "corruption(brightness,severity=4)"
FGSM_TEXT = "fgsm(eps=8/255)"
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def pixels(data: bytes | None) -> Pixels:
    assert data is not None
    return np.array(Image.open(io.BytesIO(data)))


def chw(image: Pixels) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def audited(out: Path, **options: Any) -> Run:
    options = {"limit": 24, "shard_size": 10, "setup_check": False} | options
    return robustkit.audit([f"zoo:{NAME}"], data_dir="embedded:shapes", out=out, device="cpu", **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return audited(
        tmp_path_factory.mktemp("pictures") / "run",
        attacks="fgsm",
        eps="8/255",
        corruptions="gaussian_noise,brightness(severity=2+4)",
        cams="agcam(faithfulness=none)",
        stability=True,
        browse=7,
    )


def test_a_balanced_few_are_chosen_once(run: Run) -> None:
    chosen = run.manifest.pictures
    dataset = open_dataset("embedded:shapes").select(limit=24)
    labels = {sample.id: sample.label for sample in dataset.samples}
    assert len({labels[name] for name in chosen}) == len(chosen) == 7
    kept = {condition: set(read_pictures(run, NAME, condition)) for condition in run.manifest.conditions}
    full = {condition for condition, samples in kept.items() if samples == set(chosen)}
    assert full == {condition for condition, samples in kept.items() if samples}
    assert {c for c in full if c.startswith("corruption(")} == {NOISE, BRIGHT}
    assert {"clean", FGSM_TEXT} <= full
    under = {c for c in full if c.startswith("stability(")}
    assert len(under) == 3 and all(any(text in c for text in (NOISE, BRIGHT, FGSM_TEXT)) for c in under)


def test_images_are_what_the_model_was_shown(run: Run) -> None:
    model, dataset = robustkit.load(f"zoo:{NAME}"), open_dataset("embedded:shapes")
    samples = {sample.id: sample for sample in dataset.samples}
    attacked, bright = read_pictures(run, NAME, FGSM_TEXT), read_pictures(run, NAME, BRIGHT)
    for name, kept in read_pictures(run, NAME, "clean").items():
        image = np.array(dataset.image(samples[name]))
        np.testing.assert_array_equal(pixels(kept.image), image)
        assert kept.difference is None and kept.heat is None
        x = chw(image) / 255
        label = torch.tensor([samples[name].label])
        adversarial = FGSM(ThreatModel(eps=8 / 255))(model, x[None], label)[0]
        np.testing.assert_array_equal(chw(pixels(attacked[name].image)), (adversarial * 255).round().byte())
        expected = 127.5 + 127.5 * (adversarial - x) / (8 / 255)
        assert (chw(pixels(attacked[name].difference)).float() - expected).abs().max() <= 1
        made = corrupt(chw(image)[None], "brightness", severity=4)[0]
        np.testing.assert_array_equal(chw(pixels(bright[name].image)), made)
        assert bright[name].difference is None


def test_maps_are_kept_from_their_lowest_to_their_highest(run: Run) -> None:
    for kind in ("cam(agcam", "stability(agcam"):
        condition = next(c for c in run.manifest.conditions if c.startswith(kind))
        maps = [pixels(kept.heat) for kept in read_pictures(run, NAME, condition).values()]
        assert len(maps) == 7 and all(found.shape == (64, 64) for found in maps)
        assert all((found.min(), found.max()) == (0, 255) for found in maps if found.any())
        assert any(found.any() for found in maps)


def test_in_normalised_units_too_they_are_pixels(place: Path, tmp_path: Path) -> None:
    run = small_audit.audit(place, tmp_path / "run", attacks="fgsm", protocol="quest-paper", eps=None, browse=2)
    attack = next(c for c in run.manifest.conditions if c.startswith("fgsm"))
    found = read_pictures(run, "net", attack)
    assert len(found) == 2
    for name, kept in found.items():
        gap = pixels(kept.image).astype(int) - np.array(Image.open(place / "images" / name))
        assert np.abs(gap).max() <= 1  # a step of 1/255 times a standard deviation of at most one half


def test_keeping_changes_no_record_and_an_earlier_choice_stays(tmp_path: Path) -> None:
    options: dict[str, Any] = {"attacks": "fgsm", "corruptions": "brightness(severity=2)", "batch_size": 7}
    options |= {"limit": 10, "shard_size": 4, "setup_check": False}
    some, none = audited(tmp_path / "some", browse=30, **options), audited(tmp_path / "none", browse=0, **options)
    assert none.manifest.pictures == () and not (none.path / "pictures").exists()
    assert read_pictures(none, NAME, "clean") == {} and len(read_pictures(some, NAME, "clean")) == 10
    records = [
        {name: data for name, data in small_audit.files(one.path).items() if not name.startswith("pictures/")}
        for one in (some, none)
    ]
    assert records[0] == records[1]
    options |= {"attacks": "pgd(steps=1)", "corruptions": None}
    again = audited(tmp_path / "some", browse=3, **options)
    assert len(read_pictures(again, NAME, "pgd(eps=1/255,steps=1)")) == 10


def test_large_images_are_made_smaller_and_nothing_is_not_finite() -> None:
    wide = encode_picture(
        image=torch.rand(3, 300, 500), delta=torch.zeros(3, 300, 500), heat=torch.full((300, 500), torch.nan)
    )
    assert pixels(wide.image).shape == (SIDE * 300 // 500, SIDE, 3)
    assert set(pixels(wide.difference).flatten().tolist()) <= {127, 128, 129}
    assert pixels(wide.heat).shape == (38, 64) and not pixels(wide.heat).any()
    row = torch.tensor([-0.02, -0.01, 0, 0.01, 0.02]).expand(3, 1, 5)
    assert pixels(encode_picture(delta=row).difference)[0, :, 0].tolist() == [0, 64, 128, 191, 255]
    assert encode_picture() == Picture()
