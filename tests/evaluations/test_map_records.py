"""Records of maps: the clean images they need, attacks made once, any batch size, images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating import evaluate
from explained import FGSM, MODEL, NAME, results
from PIL import Image

import cam
import robustkit
import robustkit.evaluations.maps.evaluate as control_scores
import robustkit.evaluations.maps.evaluate as maps_evaluate
from cam.boxes import boxes_of
from robustkit.data.dataset import open_dataset
from robustkit.data.layouts import Sample
from robustkit.data.shapes import CLASSES
from robustkit.errors import DataError, ModelError, ProtocolError
from robustkit.evaluations.condition import Cost
from robustkit.evaluations.maps import FAITHFULNESS, map_condition, parse_cams
from robustkit.evaluations.maps.evaluate import MapsEvaluator
from robustkit.evaluations.maps.truth import Located
from robustkit.evaluations.subject import Batch, Settings
from robustkit.protocol.card import load_card
from robustkit.tasks.labelled.subject import ClassifierSubject

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")


def test_maps_need_the_clean_images(tmp_path: Path) -> None:
    for folder in ("clean", *(f"tree/fog/{severity}" for severity in "12345")):
        for name in CLASSES:
            (tmp_path / folder / name).mkdir(parents=True)
            Image.new("RGB", (64, 64)).save(tmp_path / folder / name / "0.png")
    tree = tmp_path / "tree"
    options: dict[str, Any] = {"cams": "agcam", "out": tmp_path / "run"}
    with pytest.raises(ProtocolError, match="a tree of corrupted images: expected the clean ones"):
        robustkit.audit([MODEL], data_dir=tree, **options)
    options |= {"corrupted_dir": tree, "corruptions": "fog", "stability": True}
    with pytest.raises(
        ProtocolError, match="--stability with released corruptions: it needs the clean image as well as"
    ):
        robustkit.audit([MODEL], data_dir=tmp_path / "clean", **options)


def test_an_attack_is_made_once_for_the_maps_of_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []
    run_attack = ClassifierSubject.attack

    def counted(self: ClassifierSubject, condition: Any, inputs: torch.Tensor, batch: Batch, rng: Any) -> Any:
        made.append(tuple(sample.id for sample in batch.samples))
        return run_attack(self, condition, inputs, batch, rng)

    monkeypatch.setattr(ClassifierSubject, "attack", counted)
    options: dict[str, Any] = {
        "data_dir": "embedded:shapes",
        "attacks": "fgsm,pgd(steps=2)",
        "eps": "4/255",
        "limit": 6,
    }
    options |= {"batch_size": 2, "shard_size": 4, "stability": True, "faithfulness": "none", "device": "cpu"}
    both = robustkit.audit([MODEL], cams="agcam,gradient", out=tmp_path / "both", **options)
    assert len(made) == 12  # batches of 2, 2 and 2 by two attacks: alone, and for the maps
    alone = robustkit.audit([MODEL], cams="gradient", out=tmp_path / "alone", **options)
    for under in (FGSM, "pgd(eps=4/255,steps=2)"):
        text = f"stability(gradient,under={under})"
        assert both.table(NAME, text).equals(alone.table(NAME, text))


def test_images_without_labels_have_maps_of_what_is_predicted(tmp_path: Path) -> None:
    dataset = open_dataset("embedded:shapes")
    for index, sample in enumerate(dataset.samples[:4]):
        for folder, picture in (
            ("images", dataset.image(sample)),
            ("masks", Image.fromarray(dataset.mask(sample) * 255)),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            picture.save(tmp_path / folder / f"{index}.png")
    run = robustkit.audit(
        [MODEL],
        data_dir=tmp_path / "images",
        attacks="none",
        cams="agcam",
        faithfulness="none",
        data={"layout": "unlabelled"},
        masks=tmp_path / "masks",
        out=tmp_path / "run",
        device="cpu",
    )
    rows = run.table(NAME, "cam(agcam,faithfulness=none)").to_pylist()
    assert [row["correct"] for row in rows] == [None] * 4
    assert results(run, "cam(agcam,faithfulness=none,mode=mask)")["cam_iou"].n == 4
    assert run.manifest.conditions[0] == "cam(agcam,faithfulness=none)"
    with pytest.raises(DataError, match="its images have no labels"):
        robustkit.audit(
            [MODEL], data_dir=tmp_path / "images", attacks="fgsm", cams="agcam", data={"layout": "unlabelled"}
        )


def test_a_method_that_does_not_fit_the_model_is_refused_before_any_work(place: Path, tmp_path: Path) -> None:
    from small_audit import audit

    with pytest.raises(ModelError, match=r"AG-CAM needs a vision transformer .* use grad-cam or gradient"):
        audit(place, tmp_path / "run", cams="agcam")
    assert not (tmp_path / "run").exists()
    run = audit(place, tmp_path / "run", cams="grad-cam", attacks="none")
    assert len(run.table("net", "cam(grad-cam)")) == 30
    assert run.table("net", "cam(grad-cam)").column_names.count("mask_iou") == 0  # nothing is known of the objects


def subject_of(place: Path) -> ClassifierSubject:
    classifier = robustkit.load(place / "net.pth", arch=f"{place / 'net.py'}:build")
    return ClassifierSubject(classifier, load_card("standard"), Settings(), None)


def small_batch(shown: bool = True) -> Batch:
    masks = torch.zeros(5, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 1:4] = shown
    truths = [Located(mask, boxes_of(mask)) for mask in masks]
    pixels = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    return Batch(pixels, [Sample(str(i), i % 3) for i in range(5)], truths)


@pytest.mark.parametrize("faithfulness", FAITHFULNESS)
def test_maps_ask_what_is_announced_and_share_what_all_begin_and_end_with(place: Path, faithfulness: str) -> None:
    wanted = parse_cams("grad-cam,gradient,smooth-grad(samples=3)", faithfulness)
    found = []
    for specs in (wanted, wanted[::-1]):  # whichever map asks first
        subject, asked, rows = subject_of(place), 0, {}

        def count(_: Any, inputs: tuple[torch.Tensor]) -> None:
            nonlocal asked
            asked += len(inputs[0])

        subject.classifier.network.register_forward_pre_hook(count)
        for spec in specs:
            rows[spec] = evaluate(subject, small_batch(), map_condition(spec)).columns
        announced = sum((MapsEvaluator().cost(map_condition(spec), subject.card, 3) for spec in specs), Cost(0))
        assert asked == 5 * announced.forwards + (faithfulness != "none")  # one image of nothing for all
        found.append(rows)
    assert repr(found[0]) == repr({spec: found[1][spec] for spec in wanted})


def test_a_pair_with_a_constant_map_is_alike_in_no_way(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by rank nor by IoU, which is 0 of the all-zeros map."""
    subject, batch, logits = subject_of(place), small_batch(), torch.eye(5, 3)
    maps = [torch.rand(5, 8, 8), torch.rand(5, 8, 8)]
    lost = torch.tensor([[False, True, False, True, False], [False, False, False, True, True]])
    made = [
        cam.Explanation(where.masked_fill(gone.view(5, 1, 1), 0.0), logits, logits.argmax(1), gone)
        for where, gone in zip(maps, lost, strict=True)
    ]
    monkeypatch.setattr(maps_evaluate, "_maps", lambda *arguments: made.pop(0))
    wanted, inputs = parse_cams("grad-cam")[0], torch.rand(5, 3, 8, 8)
    columns = maps_evaluate.stability(subject, inputs, inputs, batch, None, wanted, None)[1]
    for name in ("rank_correlation", "map_iou"):
        assert [value is None for value in columns[name]] == [False, True, False, True, True]


@pytest.mark.parametrize(("rows", "again"), [(30, 2), (29, 3)])  # of six controls; the first ones stay
def test_no_checkpoint_compares_controls_with_the_truth_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, rows: int, again: int
) -> None:
    monkeypatch.setattr(control_scores, "_CACHE", {})
    monkeypatch.setattr(control_scores, "_ROWS", rows)
    made: list[int] = []

    def counted(*arguments: Any) -> Any:
        made.append(len(arguments[0]))
        return localisation(*arguments)

    localisation = maps_evaluate.localised
    monkeypatch.setattr(maps_evaluate, "localised", counted)
    specs = parse_cams("grad-cam,grad-cam(threshold=0.3)", "none")
    columns = []
    for turn, shown in enumerate((True, True, False)):  # the third time, there is another truth
        made.clear()
        subject = subject_of(place)
        columns.append([repr(evaluate(subject, small_batch(shown), map_condition(spec)).columns) for spec in specs])
        assert len(made) == (again if turn == 1 else 8)
    assert columns[0] == columns[1] != columns[2]


TOKENS = """
from torch import nn

class Tokens(nn.Module):
    def forward(self, x):
        return x.flatten(2).transpose(1, 2)

class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)

def build(num_classes=3):
    net = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), Tokens(), nn.LayerNorm(4), Mean(), nn.Linear(4, 3))
    net.default_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "input_size": (3, 8, 8)}
    return net
"""


def test_a_network_whose_last_features_are_tokens_is_refused_before_any_work(place: Path, tmp_path: Path) -> None:
    """It has no blocks as timm's ViTs, and tells only in a pass that there is no map: such as Swin of transformers."""
    (tmp_path / "net.py").write_text(TOKENS)
    scope: dict[str, Any] = {}
    exec(TOKENS, scope)
    torch.save(scope["build"]().state_dict(), tmp_path / "net.pth")
    model, out = {"arch": f"{tmp_path / 'net.py'}:build", "num_classes": 3}, tmp_path / "run"
    options: dict[str, Any] = {"data_dir": place / "images", "attacks": "none", "limit": 2, "device": "cpu"}
    for cams in ("grad-cam", "layer-cam", "score-cam", "agcam,grad-cam-pp"):
        with pytest.raises(ModelError, match=r"net: (no module of .* gives its last features as a map|AG-CAM needs)"):
            robustkit.audit([tmp_path / "net.pth"], cams=cams, model=model, out=out, **options)
        assert not out.exists()
