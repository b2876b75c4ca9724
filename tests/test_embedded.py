"""The embedded set is the same everywhere, its truth is exact, and its checkpoints are what their metadata say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors import safe_open
from skimage.morphology import convex_hull_image

from robustkit import embedded
from robustkit.attention import set_attention
from robustkit.data import open_dataset
from robustkit.embedded import shapes
from robustkit.errors import DataError

FOLDER = Path(embedded.__file__).parent
CHECKPOINTS = ("shapes-vit-standard", "shapes-vit-quest")


def test_bytes_never_change() -> None:
    dataset = open_dataset("embedded:shapes")
    assert len(dataset) == 1000
    first = dataset.select(ids=[f"test/{index:05d}" for index in range(100)])
    assert first.digest() == "6353dad6b598f5f3f436c345897cd74961ca67e29ed27cfa3500823d7c2727f0"


def test_a_sample_depends_on_seed_split_and_index_only() -> None:
    alone = shapes.render("test", 777).pixels
    assert np.array_equal(alone, shapes.render("test", 777).pixels)
    others = [shapes.render("train", 777), shapes.render("test", 787), shapes.render("test", 777, seed=1)]
    assert all(other.label == 7 and not np.array_equal(other.pixels, alone) for other in others)


def test_masks_boxes_and_pixels_agree() -> None:
    dataset = open_dataset("embedded:shapes")
    for sample in dataset.samples[:200]:
        mask, box, image = dataset.mask(sample), dataset.box(sample), dataset.image(sample)
        assert mask is not None
        assert box is not None
        x0, y0, x1, y1 = box
        assert mask.shape == image.size == (64, 64)
        assert set(np.unique(mask)) == {0, 1}
        assert mask[y0:y1, x0:x1].sum() == mask.sum() >= 60
        assert all(edge.any() for edge in (mask[y0], mask[y1 - 1], mask[:, x0], mask[:, x1 - 1]))
        assert not (mask[0].any() or mask[-1].any() or mask[:, 0].any() or mask[:, -1].any())


def test_the_background_is_a_photograph_and_the_mask_is_where_it_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    black = np.zeros((400, 400, 3), np.uint8)
    for index in range(40):
        covered = shapes.render("test", index)
        with monkeypatch.context() as patch:
            patch.setattr(shapes, "_colours", lambda draw, name, background: (np.full(3, 255.0), np.full(3, 255.0)))
            patch.setattr(shapes, "photograph", lambda name: black)
            drawn = shapes.render("test", index).pixels[..., 0]
        assert np.array_equal(drawn >= 128, covered.mask == 1)


def test_colour_is_a_shortcut_that_is_mostly_right() -> None:
    usual = 0
    for index in range(1000):
        draw = shapes._Draws(f"robustkit shapes 2/0/test/{index}")
        name = shapes.CLASSES[shapes.label(index)]
        first, _ = shapes._colours(draw, name, np.zeros((64, 64, 3)))
        nearest = min(shapes.OWN, key=lambda own: float(np.abs(first - shapes.OWN[own]).sum()))
        usual += nearest == name
    assert 890 <= usual <= 930  # 18 of 20, and a few by chance


def test_outlines_are_those_of_their_names() -> None:
    convex = {"disc", "hexagon", "square", "triangle"}
    for index in range(100):
        mask = shapes.render("test", index).mask.astype(bool)
        solidity = mask.sum() / convex_hull_image(mask, offset_coordinates=False).sum()
        name = shapes.CLASSES[shapes.label(index)]
        assert (solidity > 0.995) == (name in convex), (index, name, solidity)
        ys, xs = np.nonzero(mask)
        middle = bool(mask[round(float(ys.mean())), round(float(xs.mean()))])
        assert middle != (name == "ring") or name == "crescent", (index, name)


def test_classes_are_balanced_and_bad_samples_refused() -> None:
    labels = [sample.label for sample in open_dataset("embedded:shapes-train").samples]
    assert np.bincount(labels).tolist() == [1000] * 10
    for split, index in (("val", 0), ("test", -1)):
        with pytest.raises(DataError, match=f"embedded shapes have no sample {split}/{index}; splits are train, test"):
            shapes.render(split, index)


def read(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(FOLDER / f"{name}.safetensors", "pt") as file:
        return {key: file.get_tensor(key).float() for key in file.keys()}, dict(file.metadata())  # noqa: SIM118


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoints_are_what_they_say(name: str) -> None:
    state, metadata = read(name)
    listed = json.loads((FOLDER / "checkpoints.json").read_text("utf-8"))[name]
    path = FOLDER / listed["file"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == listed["sha256"]
    assert path.stat().st_size < 2_000_000
    assert metadata["attention"] == listed["attention"] == name.rpartition("-")[2]
    assert tuple(json.loads(metadata["class_names"])) == shapes.CLASSES
    assert float(metadata["accuracy"]) == listed["accuracy"] >= 0.85

    model = timm.create_model(metadata["arch"], num_classes=10, **json.loads(metadata["arch_kwargs"]))
    set_attention(model, metadata["attention"]).load_state_dict(state)
    mean, std = (torch.tensor(json.loads(metadata[key])).view(3, 1, 1) for key in ("mean", "std"))
    samples = [shapes.render("test", index) for index in range(300)]
    pixels = torch.from_numpy(np.stack([sample.pixels for sample in samples])).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        predictions = model.eval()((pixels - mean) / std).argmax(1)
    right = (predictions == torch.tensor([sample.label for sample in samples])).float().mean().item()
    assert abs(right - float(metadata["accuracy"])) < 0.05


def test_checkpoints_share_one_recipe() -> None:
    first, second = (read(name)[1] for name in CHECKPOINTS)
    same = {"arch", "arch_kwargs", "data", "data_digest", "recipe", "epochs", "mean", "std", "seed"}
    assert {key: first[key] for key in same} == {key: second[key] for key in same}
