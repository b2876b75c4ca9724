"""Training segmenters: batches that are functions of the step, the encoder's start, and runs that go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import robustkit
from robustkit.attention import get_attention
from robustkit.data.scenes import open_scenes
from robustkit.errors import RunError
from scripts.zoo import segmenter_recipe, train_segmenter

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def code() -> Any:
    """The scripts' modules."""
    return SimpleNamespace(script=train_segmenter, recipe=segmenter_recipe)


@pytest.fixture(scope="module")
def scenes(code: Any) -> Any:
    return code.recipe.Scenes.of(open_scenes("embedded:shapes-train").select(40))


def test_a_batch_is_a_function_of_seed_and_step(code: Any, scenes: Any) -> None:
    recipe = replace(code.recipe.RECIPES["smoke"], batch=8)
    images, labels = code.recipe.batch(scenes, recipe, 0, 3)
    again = code.recipe.batch(scenes, recipe, 0, 3)
    assert torch.equal(images, again[0]) and torch.equal(labels, again[1])
    assert images.shape == (8, 3, 64, 64) and labels.shape == (8, 64, 64)
    assert images.min() >= -1 and images.max() <= 1 and labels.min() >= 0 and labels.max() <= 10
    for seed, step in ((1, 3), (0, 4)):
        assert not torch.equal(labels, code.recipe.batch(scenes, recipe, seed, step)[1])
    order = [code.recipe.batch(scenes, replace(recipe, jitter=0, scales=(1.0, 1.0)), 0, step)[1] for step in range(5)]
    areas = sorted(int((one > 0).sum()) for part in order for one in part)
    assert areas == sorted(int((one > 0).sum()) for one in scenes.labels)  # each image once an epoch, and whole


def test_image_and_labels_are_cut_and_turned_together(code: Any) -> None:
    labels = torch.zeros(90, 120, dtype=torch.int64)
    labels[20:60, 30:100] = 1
    image = (255 * labels).to(torch.uint8)[None].repeat(3, 1, 1)
    scenes = code.recipe.Scenes([image], [labels], ("a", "b"), "x", "x")
    recipe = replace(code.recipe.RECIPES["smoke"], batch=1, jitter=0, scales=(0.7, 2.0))
    for step in range(12):
        pixels, cut = code.recipe.batch(scenes, recipe, 0, step)
        agree = (pixels[0, 0] > 0) == (cut[0] == 1)
        assert agree.float().mean() > 0.97  # except for the border, where pixels are between the two


def test_the_encoder_starts_as_the_classifier(code: Any) -> None:
    recipe = code.recipe.RECIPES["smoke"]
    network = code.recipe.build(recipe, "quest", 11, "zoo:shapes-vit-quest", 0, 0.1)
    start = robustkit.load("zoo:shapes-vit-quest").network.state_dict()
    own = network.encoder.state_dict()
    assert get_attention(network) == "quest"
    assert all(torch.equal(own[name], start[name]) for name in own) and len(own) == len(start) - 2
    other = code.recipe.build(recipe, "quest", 11, "zoo:shapes-vit-quest", 1, 0.1)
    assert not torch.equal(network.decoder.cls_emb, other.decoder.cls_emb)


@pytest.mark.slow
def test_a_stopped_run_ends_in_the_same_bytes_and_is_loaded(code: Any, tmp_path: Path, monkeypatch: Any) -> None:
    tiny = replace(code.recipe.RECIPES["smoke"], train_images=24, batch=8)
    monkeypatch.setitem(code.recipe.RECIPES, "smoke", tiny)
    words = ["--attention", "quest", "--preset", "smoke", "--threads", "1", "--device", "cpu", "--work"]
    assert code.script.main([*words, str(tmp_path / "whole")]) == 0
    step, calls = code.script.Training._step, []

    def stopping(self: Any, *arguments: Any) -> None:
        calls.append(self.step)
        if len(calls) == 5:
            raise KeyboardInterrupt
        step(self, *arguments)

    monkeypatch.setattr(code.script.Training, "_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        code.script.main([*words, str(tmp_path / "cut")])
    assert code.script.main([*words, str(tmp_path / "cut")]) == 0
    assert calls == [0, 1, 2, 3, 4, 3, 4, 5]  # the second epoch again
    name = "smoke-segmenter-quest.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert code.script.main([*words, str(tmp_path / "cut"), "--epochs", "3"]) == RunError.exit_code
    listed = json.loads((tmp_path / "cut" / "checkpoints.json").read_text())["smoke-segmenter-quest"]
    model = robustkit.load_segmenter(tmp_path / "cut" / name)
    assert (model.identity.attention, model.identity.attention_source) == ("quest", "metadata")
    assert model.windows == {"size": [64, 64], "stride": [64, 64], "short_side": None}
    run = robustkit.segment(
        [tmp_path / "cut" / name],
        data_dir="embedded:shapes",
        attacks="none",
        limit=24,
        out=tmp_path / "run",
        examples=0,
    )
    (miou,) = (row for row in run.summary() if row.metric == "miou")
    assert miou.value == pytest.approx(listed["miou"], abs=1e-4)  # its own figure, of the same 24 images
    assert float(model.identity.metadata["miou"]) == listed["miou"]
