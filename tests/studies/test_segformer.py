"""A stopped training of a SegFormer continues to the same weights, and `hf:DIR` loads what it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robustkit.errors import RunError
from robustkit.models.segmenter import load_segmenter

pytest.importorskip("transformers", reason='transformers is an extra: pip install ".[hf]"')
from scripts.studies.segformer import train as train_segformer
from scripts.studies.segformer.train import Training, class_weights, main, mean_iou, network
from scripts.zoo.segmenter_recipe import Scenes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SMALL = ["--images", "8", "--epochs", "1", "1"]


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = tuple(replace(phase, window=64) for phase in train_segformer.phases((1, 1)))
    monkeypatch.setattr(train_segformer, "phases", lambda epochs: phases)
    assert main([*SMALL, "--work", str(tmp_path / "whole")]) == 0
    save = Training.save

    def killed(training: Training) -> None:
        save(training)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "save", killed)
        main([*SMALL, "--work", str(tmp_path / "parts")])
    assert main([*SMALL, "--work", str(tmp_path / "parts")]) == 0
    whole, parts = (torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("whole", "parts"))
    assert all(torch.equal(value, parts["average"][name]) for name, value in whole["average"].items())
    rows = [json.loads(line) for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2] and 0 <= rows[-1]["miou"] <= 1
    model = load_segmenter(f"hf:{tmp_path / 'parts' / 'segformer-b0'}")
    named = torch.rand(1, 3, 64, 64)
    assert model(named).shape[1] == len(model.identity.class_names or ())
    with pytest.raises(RunError, match="holds a run with seed 0, not 1; give another --work"):
        training = Training.__new__(Training)
        training.folder, training.identity = tmp_path / "parts", {"seed": "1"}
        training.resume()


def test_weights_and_scores_by_hand() -> None:
    labels = [torch.tensor([[0, 0, 0, 1], [0, 0, -1, -1]]), torch.tensor([[0, 1, 2, 2]])]
    scenes = Scenes([torch.zeros(3, 64, 64, dtype=torch.uint8)] * 2, labels, ("a", "b", "c"), "s", "d")
    share = torch.tensor([0.6, 0.2, 0.2])
    expected = 1 / torch.log(1.1 + share)
    torch.testing.assert_close(class_weights(scenes), expected / (expected * share).sum())
    assert class_weights(scenes)[2] > class_weights(scenes)[0]
    tensors = network(scenes.class_names).state_dict()
    tensors["decode_head.classifier.weight"].zero_()
    tensors["decode_head.classifier.bias"].copy_(torch.tensor([0.0, 1.0, 0.0]))  # everything is a `b`
    whole = Scenes(scenes.images, [torch.zeros(64, 64).long(), torch.ones(64, 64).long()], scenes.class_names, "s", "d")
    assert mean_iou(tensors, whole, (64, 64)) == pytest.approx((0 + 0.5) / 2)
