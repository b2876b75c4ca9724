"""Maps in an audit: conditions as texts, the truth in the model's frame, records, results, tables and galleries."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import cam
import robustkit
from cam.boxes import mask_of
from cam.faithfulness import abpc
from cam.localisation import MaxBoxAcc, PxAP, score
from cam.sanity import redrawn_head
from cam.similarity import iou_at, rank_correlation
from robustkit.cli.app import cli
from robustkit.cli.cam.choice import Choice
from robustkit.cli.cam.command import make_gallery
from robustkit.cli.cam.pictures import explain_pictures, is_picture
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.class_names import class_names, target_of
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.data.shapes import CLASSES
from robustkit.errors import DataError, ModelError, ProtocolError, RunError
from robustkit.evaluations.attacks.build import build_attack
from robustkit.evaluations.maps.condition import CONTROLS, METHODS, Explained, parse_cams, parse_explained, parts_of
from robustkit.evaluations.maps.evaluate import LEVELS
from robustkit.evaluations.maps.gallery import Gallery, Row, Tile, draw, outlined, overlay, pick, write_page
from robustkit.evaluations.maps.metrics import LOWER_IS_BETTER, Counted, Figures, map_rows
from robustkit.evaluations.maps.tables import map_tables
from robustkit.evaluations.maps.truth import open_truth
from robustkit.evaluations.subject import Batch
from robustkit.models.specs import find
from robustkit.pipeline.data import labelled_data
from robustkit.results.run import Run
from robustkit.tasks.classification.subject import ClassifierSubject

MODEL = "zoo:shapes-vit-standard"
NAME = "shapes-vit-standard"
FGSM = "fgsm(eps=4/255)"
pytestmark = pytest.mark.usefixtures("one_thread")


# conditions


@pytest.mark.parametrize(
    ("explained", "text"),
    [
        (Explained("agcam"), "cam(agcam)"),
        (Explained("grad-cam", 0.3, "label", "all"), "cam(grad-cam,threshold=0.3,target=label,faithfulness=all)"),
        (
            Explained("agcam", under="pgd(eps=1/255,steps=20)"),
            "stability(agcam,under=pgd(eps=1/255,steps=20))",
        ),
        (
            Explained("agcam", 0.3, under="corruption(fog,severity=3)"),
            "stability(agcam,threshold=0.3,under=corruption(fog,severity=3))",
        ),
    ],
)
def test_a_text_is_its_parts_and_back(explained: Explained, text: str) -> None:
    assert explained.text == text
    assert parse_explained(text) == explained
    assert parse_explained("pgd(eps=1/255)") is None
    if not explained.under:
        assert parts_of(text[:-1] + ",mode=box)") == (explained, "box")
    assert parts_of(text) == (explained, "")


def test_a_list_brings_the_controls_along_once() -> None:
    found = parse_cams("agcam, random, Grad-CAM(threshold=0.3)")
    assert [one.text for one in found] == [
        *("cam(agcam)", "cam(random)", "cam(grad-cam,threshold=0.3)", "cam(centre)", "cam(full)"),
        *(f"cam({name},threshold=0.3)" for name in CONTROLS),
    ]
    assert [one.faithfulness for one in parse_cams("agcam,rollout(faithfulness=none)", "all")][:2] == ["all", "none"]
    named = "cam(agcam),cam(rollout,threshold=0.3,faithfulness=none)"  # as records call them
    assert [one.text for one in parse_cams(named) if not one.is_control] == re.split(r",(?=cam)", named)
    assert tuple(cam.METHODS) == METHODS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agcm", "unknown map 'agcm'; did you mean 'agcam'?"),
        ("agcam(treshold=1)", "unknown parameter 'treshold'; did you mean 'threshold'?"),
        ("agcam(threshold=1.5)", "threshold 1.5; expected a number above 0, at most 1"),
        ("agcam(threshold=half)", "threshold 'half': expected a number"),
        ("agcam(target=predicted class)", "unknown target 'predicted class'; did you mean 'predicted'?"),
        (",", "none is left; expected methods such as agcam,grad-cam"),
    ],
)
def test_maps_that_are_not_understood(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_cams(text)
    assert message in str(caught.value)


# the truth


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes with a picture of 80x40 and one of 30x60."""
    for name, size in (("a/one", (80, 40)), ("b/two", (30, 60))):
        path = tmp_path / "images" / f"{name}.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", size, (90, 120, 40)).save(path)
    return tmp_path


SQUASHED = Preprocessing((20, 20), crop_pct=1.0, crop_mode="squash")
CENTRED = Preprocessing((20, 20), crop_pct=1.0, crop_mode="center")


def test_boxes_follow_the_image_squashed_and_cropped(pictures: Path) -> None:
    table = pictures / "boxes.csv"
    table.write_text("image,synset,xmin,ymin,xmax,ymax\none.png,a,8,10,40,20\none.png,a,70,0,80,40\n")
    dataset = open_dataset(pictures / "images")
    truth = open_truth(dataset, boxes=table)
    one, two = dataset.samples
    squashed, centred = (truth.locate(one, how) for how in (SQUASHED, CENTRED))
    assert squashed is not None and centred is not None
    assert squashed.boxes.tolist() == [[2, 5, 10, 10], [17, 0, 20, 20]]  # x by 1/4, y by 1/2, outwards
    assert torch.equal(squashed.mask, mask_of(squashed.boxes, 20, 20))
    assert (centred.boxes.tolist(), centred.vanished) == ([[0, 5, 10, 10]], 1)  # by 1/2, less 10 on the left
    assert truth.locate(two, SQUASHED) is None
    assert truth.notes == (f"boxes of 1 of 2 images from {table}",)


def test_masks_follow_the_image_and_have_boxes(pictures: Path) -> None:
    (pictures / "masks").mkdir()
    grey = np.zeros((60, 30), np.uint8)
    grey[30:45, 0:15] = 200
    Image.fromarray(grey).save(pictures / "masks" / "two.png")
    dataset = open_dataset(pictures / "images")
    truth = open_truth(dataset, masks=pictures / "masks")
    found = truth.locate(dataset.samples[1], SQUASHED)
    assert found is not None
    assert found.boxes.tolist() == [[0, 10, 10, 15]]
    assert torch.equal(found.mask, mask_of(found.boxes, 20, 20))
    embedded = open_dataset("embedded:shapes")
    own = open_truth(embedded).locate(embedded.samples[3], Preprocessing((64, 64), crop_pct=1.0))
    assert own is not None
    assert torch.equal(own.mask, torch.from_numpy(embedded.mask(embedded.samples[3])).bool())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no column image, synset, xmin, ymin, xmax, ymax"),
        ("image,synset,xmin,ymin,xmax,ymax\n", "no boxes; expected a row for each box below the header"),
        ("image,synset,xmin,ymin,xmax,ymax\none.png,a,0,0,81,40\n", "reaches outside the image of 80x40"),
        ("image,synset,xmin,ymin,xmax,ymax\nother.png,a,0,0,8,4\n", "boxes of none of the 2 images"),
    ],
)
def test_tables_of_boxes_that_cannot_be_used(pictures: Path, content: str, message: str) -> None:
    table = pictures / "boxes.csv"
    table.write_text(content)
    dataset = open_dataset(pictures / "images")
    with pytest.raises(DataError) as caught:
        open_truth(dataset, boxes=table)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_truth_that_cannot_be_used(pictures: Path) -> None:
    dataset = open_dataset(pictures / "images")
    with pytest.raises(DataError, match="expected one of the two"):
        open_truth(dataset, boxes="a.csv", masks="b")
    with pytest.raises(DataError, match=r"gone.csv: cannot be read \(No such file or directory\)"):
        open_truth(dataset, boxes=pictures / "gone.csv")
    with pytest.raises(DataError, match="no such folder; expected mask images"):
        open_truth(dataset, masks=pictures / "gone")
    (pictures / "xml").mkdir()
    (pictures / "xml" / "one.xml").write_text("<annotation><size/></annotation>")
    with pytest.raises(DataError, match="no object; expected <object> with <name> and <bndbox>"):
        open_truth(dataset, boxes=pictures / "xml")


# records and results


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One checkpoint, 24 images, AG-CAM with all scores and its stability."""
    return robustkit.audit(
        [MODEL],
        data_dir="embedded:shapes",
        attacks=f"{FGSM},fgsm(eps=0)",
        cams="agcam",
        faithfulness="all",
        stability=True,
        limit=24,
        batch_size=9,
        out=tmp_path_factory.mktemp("maps") / "run",
        device="cpu",
    )


AGCAM = "cam(agcam,faithfulness=all)"


def results(run: Run, condition: str) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in run.summary() if row["condition"] == condition}


@pytest.fixture(scope="module")
def alone(run: Run) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """The records by id, and for the right samples maps and masks that were made one by one."""
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    rows = {row["sample_id"]: row for row in run.table(NAME, AGCAM).to_pylist()}
    maps, masks = [], []
    for name, row in rows.items():
        sample = next(one for one in dataset.samples if one.id == name)
        pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
        found = cam.AGCAM(model).explain(pixels)
        mask = torch.from_numpy(dataset.mask(sample)).bool()
        scores = score(found.maps, mask[None])
        curves = abpc(model, pixels, found.maps, found.target, fill=0.5)
        assert row["target"] == row["prediction"] == int(found.target[0])
        assert row["mask_iou"] == pytest.approx(scores.iou.item(), abs=0.02)  # a pixel at the threshold may fall
        assert row["abpc"] == pytest.approx(curves.abpc.item(), abs=1e-3)
        alike = 0.0
        for seed in range(5):
            with redrawn_head(model.network, seed):
                alike += rank_correlation(found.maps, cam.AGCAM(model)(pixels, found.target)).item() / 5
        assert row["head_correlation"] == pytest.approx(alike, abs=1e-3)
        if row["correct"]:
            maps.append(found.maps[0])
            masks.append(mask)
    return rows, torch.stack(maps), torch.stack(masks)


def test_results_are_means_over_the_right_samples(
    run: Run, alone: tuple[dict[str, Any], torch.Tensor, torch.Tensor]
) -> None:
    rows, maps, masks = alone
    right = [row for row in rows.values() if row["correct"]]
    assert 12 < len(right) < 24
    plain = results(run, AGCAM)
    for mode in ("mask", "box"):
        found = results(run, f"{AGCAM[:-1]},mode={mode})")
        for name in ("pixel_accuracy", "iou", "dice", "precision", "recall"):
            expected = np.mean([row[f"{mode}_{name}"] for row in right])
            assert found[f"cam_{name}"]["value"] == pytest.approx(expected, abs=1e-6)
            assert found[f"cam_{name}"]["n"] == len(right)
        assert found["cam_iou"]["ci_low"] < found["cam_iou"]["value"] < found["cam_iou"]["ci_high"]
    for metric, column in (("abpc", "abpc"), ("insertion_auc", "insertion"), ("pointing_game", "pointing_game")):
        assert plain[metric]["value"] == pytest.approx(np.mean([row[column] for row in right]), abs=1e-6)
    changed = [row["head_correlation"] for row in right]
    assert plain["head_correlation"]["value"] == pytest.approx(np.mean(changed), abs=1e-6)
    assert plain["abpc"]["flags"] == [f"{24 - len(right)} of 24 samples are predicted wrong and left out"]
    pooled, best = PxAP(LEVELS), MaxBoxAcc()
    pooled.update(maps, masks)
    best.update(maps, [open_boxes(mask) for mask in masks])
    assert plain["pxap"]["value"] == pytest.approx(pooled.compute(), abs=2e-3)
    assert plain["max_box_acc"]["value"] == pytest.approx(best.compute(), abs=0.03)


def open_boxes(mask: torch.Tensor) -> torch.Tensor:
    return cam.boxes.boxes_of(mask)


def test_the_lead_over_the_best_control_is_paired(run: Run) -> None:
    for metric, column, sign in (("abpc", "abpc", 1), ("deletion_auc", "deletion", -1)):
        values = {}
        for method in ("agcam", *CONTROLS):
            rows = run.table(NAME, f"cam({method},faithfulness=all)").to_pylist()
            values[method] = np.array([row[column] for row in rows if row["correct"]])
        best = max(CONTROLS, key=lambda name: sign * values[name].mean())
        lead = results(run, AGCAM)[f"{metric}_over_control"]
        gaps = sign * (values["agcam"] - values[best])
        assert (lead["value"], lead["flags"]) == (pytest.approx(gaps.mean(), abs=1e-6), [f"best control: {best}"])
        assert lead["ci_high"] - lead["ci_low"] == pytest.approx(2 * 1.96 * gaps.std() / len(gaps) ** 0.5, rel=0.3)
    assert LOWER_IS_BETTER == ("deletion_auc",)
    box = f"{AGCAM[:-1]},mode=box)"
    ours, everything = (run.table(NAME, f"cam({m},faithfulness=all)").to_pylist() for m in ("agcam", "full"))
    pairs = [
        (a["box_pixel_accuracy"], b["box_pixel_accuracy"])
        for a, b in zip(ours, everything, strict=True)
        if a["correct"]
    ]
    lead = results(run, box)["cam_pixel_accuracy_over_control"]  # objects are small: marking nothing is the rival
    assert lead["flags"] == ["best control: nothing"]
    assert lead["value"] == pytest.approx(np.mean([a - (1 - b) for a, b in pairs]), abs=1e-6)


def test_the_best_control_is_found_anew_in_every_resample() -> None:
    generator = np.random.default_rng(0)
    scores = {name: generator.normal(0.5, 0.1, 40) for name in ("agcam", "random", "centre")}
    figures = [
        Figures(Explained(name), [str(i) for i in range(40)], {(f"cam({name})", "abpc"): values})
        for name, values in scores.items()
    ]
    rows = {(condition, metric): row for condition, metric, *row in map_rows(figures)}
    value, n, low, high, flags = rows["cam(agcam)", "abpc_over_control"]
    counts = resampled(40)
    means = {name: counts @ values / 40 for name, values in scores.items()}
    leads = means["agcam"] - np.maximum(means["random"], means["centre"])
    assert (low, high) == pytest.approx(tuple(np.percentile(leads, [2.5, 97.5])), abs=0.004)
    best = max(("random", "centre"), key=lambda name: scores[name].mean())
    assert (value, n, flags) == (
        pytest.approx(scores["agcam"].mean() - scores[best].mean()),
        40,
        [f"best control: {best}"],
    )


def resampled(n: int) -> Any:
    """How often each of n samples is drawn, in 20000 resamples."""
    return np.random.default_rng(1).multinomial(n, [1 / n] * n, size=20000)


def test_few_samples_and_maxima_have_no_interval() -> None:
    nine = Figures(Explained("agcam"), list("abcdefghi"), {("cam(agcam)", "abpc"): np.linspace(0, 1, 9)})
    ((_, _, value, n, low, high, _),) = map_rows([nine])
    assert (value, n, math.isnan(low), math.isnan(high)) == (pytest.approx(0.5), 9, True, True)
    assert list(map_rows([Figures(Explained("agcam"), [], {("cam(agcam)", "abpc"): np.zeros(0)})])) == []
    ids = [str(i) for i in range(30)]
    hits = np.tile([[1, 0, 0], [0, 1, 1]], (15, 2))
    counted = Counted("max_box_acc", np.arange(30), lambda: hits)
    ((_, _, value, n, low, high, _),) = map_rows(
        [Figures(Explained("agcam"), ids, {("cam(agcam)", "max_box_acc"): counted})]
    )
    assert (value, n, math.isnan(low), math.isnan(high)) == (0.5, 30, True, True)


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
    with pytest.raises(ProtocolError, match="--stability with released corruptions: it needs the clean image beside"):
        robustkit.audit([MODEL], data_dir=tmp_path / "clean", **options)


def test_stability_is_of_the_same_attack_and_1_without_one(run: Run) -> None:
    still = run.table(NAME, "stability(agcam,under=fgsm(eps=0))").to_pylist()
    assert all(row["held"] and row["map_iou"] == 1 for row in still)
    assert [row["rank_correlation"] for row in still] == pytest.approx([1.0] * 24)
    moved = run.table(NAME, f"stability(agcam,under={FGSM})").to_pylist()
    attacked = run.table(NAME, FGSM).to_pylist()
    assert [row["prediction"] for row in moved] == [row["prediction"] for row in attacked]
    clean = {row["sample_id"]: row["prediction"] for row in run.table(NAME, "clean").to_pylist()}
    assert [row["held"] for row in moved] == [row["prediction"] == clean[row["sample_id"]] for row in moved]
    right = {row["sample_id"]: row["correct"] for row in run.table(NAME, "clean").to_pylist()}
    assert [row["clean_correct"] for row in moved] == [right[row["sample_id"]] for row in moved]
    counted = [row for row in moved if row["clean_correct"]]
    assert 0 < len(counted) < len(moved)
    held = [row["rank_correlation"] for row in counted if row["held"]]
    fell = [row["rank_correlation"] for row in counted if not row["held"]]
    found = results(run, f"stability(agcam,under={FGSM})")
    assert (found["rank_correlation_held"]["value"], found["rank_correlation_held"]["n"]) == (
        pytest.approx(np.mean(held), abs=1e-6),
        len(held),
    )
    assert found["rank_correlation_fell"]["value"] == pytest.approx(np.mean(fell), abs=1e-6)
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    sample = next(one for one in dataset.samples if one.id == moved[0]["sample_id"])
    pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
    attack = build_attack(
        robustkit.evaluations.attacks.condition.parse_condition(FGSM, robustkit.protocol.card.load_card("standard")),
        robustkit.protocol.card.load_card("standard"),
    )
    shown = attack(model, pixels, torch.tensor([sample.label]))
    target = model(pixels).argmax(1)
    first, second = (cam.AGCAM(model)(images, target) for images in (pixels, shown))
    assert moved[0]["rank_correlation"] == pytest.approx(rank_correlation(first, second).item(), abs=1e-3)
    assert moved[0]["map_iou"] == pytest.approx(iou_at(first, second).item(), abs=0.02)


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
        "limit": 12,
    }
    options |= {"batch_size": 4, "shard_size": 8, "stability": True, "faithfulness": "none", "device": "cpu"}
    both = robustkit.audit([MODEL], cams="agcam,gradient", out=tmp_path / "both", **options)
    assert len(made) == 12  # batches of 4, 4 and 4 by two attacks: alone, and for the maps
    alone = robustkit.audit([MODEL], cams="gradient", out=tmp_path / "alone", **options)
    for under in (FGSM, "pgd(eps=4/255,steps=2)"):
        text = f"stability(gradient,under={under})"
        assert both.table(NAME, text).equals(alone.table(NAME, text))


def test_another_batch_size_and_a_kept_run_give_the_same(run: Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "attacks": "none", "cams": "agcam", "limit": 24}
    again = robustkit.audit(
        [MODEL], out=tmp_path, device="cpu", faithfulness="none", keep_misclassified=True, batch_size=24, **options
    )
    rows = again.table(NAME, "cam(agcam,faithfulness=none)").to_pylist()
    for row, other in zip(rows, run.table(NAME, AGCAM).to_pylist(), strict=True):
        assert (row["sample_id"], row["target"]) == (other["sample_id"], other["target"])
        assert row["mask_iou"] == pytest.approx(other["mask_iou"], abs=0.02)
        assert row["energy_inside"] == pytest.approx(other["energy_inside"], abs=1e-4)
    drawn = [again.table(NAME, "cam(random,faithfulness=none)"), run.table(NAME, "cam(random,faithfulness=all)")]
    assert drawn[0]["energy_inside"].to_pylist() == drawn[1]["energy_inside"].to_pylist()
    found = {r["metric"]: r for r in again.summary() if r["condition"] == "cam(agcam,faithfulness=none)"}
    assert found["pointing_game"]["n"] == 24
    assert "abpc" not in found


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
    assert results(run, "cam(agcam,faithfulness=none,mode=mask)")["cam_iou"]["n"] == 4
    assert run.manifest["conditions"][0] == "cam(agcam,faithfulness=none)"
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


def test_the_tables_have_a_row_a_score_with_its_lead_below_and_the_controls_last(run: Run) -> None:
    tables = {table.title: table for table in map_tables(run.summary())}
    mask = tables["maps, mask mode at threshold 0.5"]
    assert mask.headings == ("score", "n", "agcam [95 %]", *CONTROLS)
    place = [row[0] for row in mask.rows].index("IoU")
    shown, below = mask.rows[place : place + 2]
    found = results(run, f"{AGCAM[:-1]},mode=mask)")
    iou, lead = found["cam_iou"], found["cam_iou_over_control"]
    best = lead["flags"][0].removeprefix("best control: ")
    full = results(run, "cam(full,faithfulness=all,mode=mask)")["cam_iou"]
    span = f"{iou['value']:.3f} [{iou['ci_low']:.3f}, {iou['ci_high']:.3f}]"
    assert (shown[1:3], shown[-1]) == ((str(iou["n"]), span), f"{full['value']:.3f}")
    span = f"{lead['value']:+.3f} [{lead['ci_low']:+.3f}, {lead['ci_high']:+.3f}]"
    assert below == (f"  – {best}", "", span, "", "", "")
    assert mask.rows[-1][0] == "recall"  # alone it is nothing to be ahead in
    stable = tables["agcam: alike to the clean map"]
    assert [row[0] for row in stable.rows] == [FGSM, "fgsm(eps=0)"]
    right = sum(row["correct"] for row in run.table(NAME, "clean").to_pylist())
    assert stable.rows[1][1:3] == (str(right), "1.000 [1.000, 1.000]")
    left = f"stability(agcam,under={FGSM}): {24 - right} of 24 samples are predicted wrong and left out"
    assert left in stable.flags
    page = (run.path / "report.html").read_text("utf-8")
    assert page.count("agcam: alike to the clean map") == 2  # heading and label of the table


def test_the_page_says_where_a_control_wins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.pages import maps as maps_page
    from scripts.pages import maps_text

    class Told:
        manifest: ClassVar[dict[str, Any]] = {"checkpoints": [{"name": "vit"}]}

        def summary(self) -> list[dict[str, Any]]:
            leads = (("mask", "cam_iou", -0.3, -0.1), ("mask", "cam_recall", -0.9, -0.8), ("box", "cam_dice", 0.1, 0.2))
            free = (("", "pxap", -0.1, 0.2), ("", "abpc", 0.02, 0.3), ("", "energy_inside", -0.1, -0.0001))
            return [
                {
                    "checkpoint": "vit",
                    "condition": f"cam(agcam{',mode=' * bool(mode)}{mode})",
                    "metric": f"{metric}_over_control",
                    "value": (low + high) / 2,
                    "ci_low": low,
                    "ci_high": high,
                    "flags": ["best control: full"],
                }
                for mode, metric, low, high in (*leads, *free)
            ] + [
                {
                    "checkpoint": "vit",
                    "condition": "cam(agcam)",
                    "metric": "max_box_acc_over_control",
                    **dict.fromkeys(("ci_low", "ci_high")),
                    "value": 0.053,
                    "flags": ["best control: centre"],
                }
            ]

    told: Any = Told()
    assert list(maps_text.behind(told)) == [
        "- vit, agcam: Ahead of every control in DICE (box); ABPC. Behind the best one in IoU (mask), by 0.200 (full). "
        "Not told apart from it in PxAP +0.050 (full); energy inside -0.050 (full). Without an interval MaxBoxAccV2 "
        "+0.053 (centre)."
    ]
    assert maps_text.leads(told, "vit")["PxAP"]["agcam"] == (pytest.approx(0.05), -0.1, 0.2, "full")
    assert "recall (mask)" not in maps_text.leads(told, "vit")
    last = maps_text.in_short([("Part", told)]).splitlines()[-1].split("|")
    assert [cell.strip() for cell in last[1:-1]] == [
        *("Part", "vit, agcam", "1 ahead, 0 level, 1 behind", "0 ahead, 2 level, 0 behind", "+0.053", "ahead (+0.160)")
    ]
    part = maps_page.Part("zoo", "The zoo", [MODEL])
    page = maps_page.page([(part, run)], "python -m scripts.pages.maps", [("maps/a.png", "a picture")])
    assert page.count("| score ") == 3 and "![a picture](maps/a.png)" in page
    assert "head redrawn" in page and f"⚑ {NAME}, agcam" in page
    digest = run.manifest["data"]["digest"][:12]
    assert f"24 images of `embedded:shapes` (digest {digest}…)" in page and "-0.000" not in page
    own = results(run, AGCAM)["pointing_game"]["value"]
    (line,) = (line for line in maps_text.side_by_side(run).splitlines() if line.startswith("| pointing"))
    assert f" {own:.3f} [" in line and line in page


def test_a_control_is_drawn_when_it_is_named() -> None:
    choice = Choice.of([MODEL], "centre,agcam")
    assert [one.method for one in choice.shown] == ["agcam", "centre"]
    assert [one.method for one in Choice.of([MODEL], "agcam").shown] == ["agcam"]
    with pytest.raises(ProtocolError, match="controls only"):
        Choice.of([MODEL], "centre,full")


# galleries


def test_overlays_show_the_map_and_leave_the_rest_to_be_seen() -> None:
    image = np.full((8, 8, 3), (200, 40, 40), np.uint8)
    heat = np.zeros((8, 8), np.float32)
    heat[:, 4:] = 1
    shown = overlay(image, heat).astype(int)
    assert shown.shape == (224, 224, 3)
    cold, hot = shown[112, 20], shown[112, 200]
    assert hot[0] > 150 and hot[1] > 140 and hot[2] < 110  # cividis ends in yellow
    assert abs(cold - cold.mean()).max() < 40  # grey, with a little of its dark blue
    truth = np.zeros((8, 8), bool)
    truth[1:7, 1:7] = True
    truth[3:5, 3:5] = False
    line = outlined(image, truth)
    for edge in (28, 84, 139, 195):  # of the object, and of the hole in it
        assert (line[112, edge - 3 : edge + 4] == 255).all(axis=1).any()
    assert all(tuple(line[112, x]) == (200, 40, 40) for x in (10, 56, 112, 168))


def test_samples_are_picked_by_their_scores() -> None:
    scores = {"a": [0.1, 0.9], "b": [0.5, 0.5], "c": [0.9, 0.8], "d": [math.nan, 0.9], "e": [0.2, 0.15]}
    order = ["e", "d", "c", "b", "a"]
    assert pick(scores, "best", 2, order) == ["c", "b"]
    assert pick(scores, "worst", 2, order) == ["e", "b"]
    assert pick(scores, "disagreement", 2, order) == ["a", "c"]
    assert pick(scores, "random", 2, order) == ["e", "d"]


def test_a_gallery_escapes_what_it_is_told_and_explains_its_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    own = np.full((8, 8, 3), 200, np.uint8)
    tile = Tile("agcam, <b>model</b>", own, np.eye(8, dtype=np.float32), ("<i>cat</i> 90%",))
    row = Row("<script>alert(1)</script>.png", "cat & dog", image, (tile,))
    gallery = Gallery("maps", (row, row), ("a line",))
    write_page(gallery, tmp_path / "gallery.html")
    page = (tmp_path / "gallery.html").read_text("utf-8")
    assert "<script>" not in page and "<b>" not in page and "<i>cat" not in page
    assert "cat &amp; dog" in page and page.count("data:image/png;base64,") == 4
    assert "<p>Each map runs from its own lowest to its own highest value, so the colours of two tiles cannot" in page
    sheet = np.asarray(draw(gallery))
    assert sheet.shape[1] > 2 * 224 and sheet.shape[0] > 2 * 224
    scale = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[None], cv2.COLORMAP_CIVIDIS)[0, :, ::-1]
    ends = [np.argwhere((sheet == colour).all(axis=2)) for colour in scale[[0, 255]]]
    assert [len(found) >= 10 for found in ends] == [True, True]
    assert 140 < ends[1][:, 1].max() - ends[0][:, 1].min() < 180
    column, drawn = sheet[:, 272:496], overlay(own, np.eye(8, dtype=np.float32))
    assert sum(np.array_equal(column[top : top + 224], drawn) for top in range(len(column) - 223)) == 2
    more = np.asarray(draw(replace(gallery, lines=("a line", "and another that is drawn, too"))))
    assert more.shape[0] == sheet.shape[0] + 24
    monkeypatch.setattr("robustkit.evaluations.maps.gallery.SCALE", "")
    assert draw(gallery).height <= sheet.shape[0] - 24


QUEST, QUEST_NAME = "zoo:shapes-vit-quest", "shapes-vit-quest"


def cam_of(out: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """The page of `robustkit cam --out`, and the maps in it by checkpoint/method/sample."""
    words = ("cam", *words, "--faithfulness", "none", "--save-maps", "--out", str(out), "--device", "cpu")
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.count(f"gallery: {out / 'cams' / 'gallery.'}") == 2
    with np.load(out / "cams" / "maps.npz") as kept:
        return (out / "cams" / "gallery.html").read_text("utf-8"), dict(kept)


def test_a_gallery_shows_the_maps_of_its_own_command_under_the_right_names(tmp_path: Path) -> None:
    data = ("--data-dir", "embedded:shapes", "--limit", "12", "--gallery", "2")
    page, first = cam_of(tmp_path, MODEL, QUEST, *data, "--cams", "agcam")
    assert "where the checkpoints differ most in IoU at 0.5 of agcam; protocol standard@2" in page
    condition = "cam(agcam,faithfulness=none)"
    tables = [Run(tmp_path).table(name, condition).to_pylist() for name in (NAME, QUEST_NAME)]
    spread = {a["sample_id"]: abs(a["mask_iou"] - b["mask_iou"]) for a, b in zip(*tables, strict=True)}
    widest = sorted(spread, key=lambda one: -spread[one])[:2]
    assert set(first) == {f"{name}/agcam/{one}" for name in (NAME, QUEST_NAME) for one in widest}
    dataset = open_dataset("embedded:shapes")
    for name, heat in first.items():
        model = robustkit.load(f"zoo:{name.partition('/')[0]}")
        sample = next(one for one in dataset.samples if name.endswith(one.id))
        pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
        np.testing.assert_allclose(heat, cam.AGCAM(model)(pixels)[0], atol=1e-5)
    wrong = [row for table in tables for row in table if row["sample_id"] in widest and not row["correct"]]
    assert page.count(" (wrong)") == len(wrong)
    page, turned = cam_of(tmp_path, QUEST, MODEL, *data, "--cams", "agcam")
    assert turned.keys() == first.keys()
    for name, heat in turned.items():
        np.testing.assert_array_equal(heat, first[name])
    assert page.index(f"agcam, {QUEST_NAME}<") < page.index(f"agcam, {NAME}<")
    page, alone = cam_of(tmp_path, QUEST, *data, "--cams", "rollout(threshold=0.3)")
    assert {name.rpartition("/test/")[0] for name in alone} == {f"{QUEST_NAME}/rollout(threshold=0.3)"}
    assert page.count("<figure>") == 4
    assert "lowest IoU at 0.3 of rollout(threshold=0.3); protocol" in page


def test_checkpoints_are_told_apart_by_content_and_drawn_in_their_own_frame(tmp_path: Path) -> None:
    files = [tmp_path / folder / "net.safetensors" for folder in "ab"]
    for path, crop in zip(files, ("1.0", "0.5"), strict=True):
        path.parent.mkdir()
        with safe_open(find(MODEL).path, "pt") as file:
            save_file({key: file.get_tensor(key) for key in file.keys()}, path, file.metadata() | {"crop_pct": crop})  # noqa: SIM118
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "model": {}}
    checkpoints = [str(path) for path in files]
    run = robustkit.audit(
        checkpoints,
        **options,
        attacks="none",
        cams="agcam",
        faithfulness="none",
        limit=3,
        out=tmp_path / "run",
        device="cpu",
    )
    choice = Choice.of(checkpoints, "agcam", "none", how="random", count=1)
    _, page = make_gallery(run, checkpoints, choice, **options, data={}, device="cpu", raw=True)
    with np.load(page.parent / "maps.npz") as kept:
        (first, heat), (second, cropped_heat) = kept.items()
    dataset = open_dataset("embedded:shapes")
    sample = next(one for one in dataset.samples if first == f"net/agcam/{one.id}")
    assert second == f"net-2/agcam/{sample.id}"
    whole, cropped = (Preprocessing((64, 64), crop_pct=share, interpolation="bicubic") for share in (1.0, 0.5))
    views = [to_pixels(dataset.image(sample), how).permute(1, 2, 0).numpy() for how in (whole, cropped)]
    truths = [open_truth(dataset).locate(sample, how) for how in (whole, cropped)]
    masks = [found.mask.numpy() for found in truths if found is not None]
    expected = [outlined(views[0], masks[0])]
    expected += [outlined(overlay(v, h), m, 1) for v, h, m in zip(views, (heat, cropped_heat), masks, strict=True)]
    drawn = re.findall(r'src="data:image/png;base64,([^"]+)"', page.read_text("utf-8"))
    for text, pixels in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))), pixels)
    make_gallery(run, checkpoints[1:], choice, **options, data={}, device="cpu", raw=True)
    with np.load(page.parent / "maps.npz") as kept:
        assert list(kept) == [second]
        np.testing.assert_array_equal(kept[second], cropped_heat)
    with pytest.raises(RunError) as caught:
        make_gallery(run, [QUEST], choice, **options, data={}, device="cpu")
    message = f"{run.path}: no records of {QUEST}, only of net, net-2; run robustkit cam with it"
    assert str(caught.value) == message
    with pytest.raises(RunError, match=r"was made with protocol standard@2:\w+, not agcam-paper@2:\w+; give that"):
        make_gallery(run, checkpoints, choice, **options, data={}, device="cpu", protocol="agcam-paper")


def test_the_class_explained_is_among_those_that_compete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    for sample in dataset.samples:
        pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
        logits = model(pixels)[0]
        if (best := int(logits.argmax())) not in (0, sample.label) and sample.label:
            break
    others = [index for index in range(1, 10) if index != best]  # so that no place is the class itself
    (tmp_path / "ids.txt").write_text(sample.id)

    def some_compete(*arguments: Any, **options: Any) -> Any:
        return replace(labelled_data(*arguments, **options), valid_labels=tuple(others))

    for module in ("pipeline.audit", "cli.cam.command"):
        monkeypatch.setattr(f"robustkit.{module}.labelled_data", some_compete)
    words = ("--data-dir", "embedded:shapes", "--ids", str(tmp_path / "ids.txt"), "--cams", "agcam,agcam(target=label)")
    words += ("--keep-misclassified",)
    page, maps = cam_of(tmp_path / "run", MODEL, *words)
    place = int(logits[others].argmax())
    target = others[place]
    np.testing.assert_allclose(maps[f"{NAME}/agcam/{sample.id}"], cam.AGCAM(model)(pixels, target)[0], atol=1e-5)
    own = maps[f"{NAME}/agcam(target=label)/{sample.id}"]
    np.testing.assert_allclose(own, cam.AGCAM(model)(pixels, sample.label)[0], atol=1e-5)
    assert Run(tmp_path / "run").table(NAME, "cam(agcam,faithfulness=none)")["target"].to_pylist() == [target]
    shares = logits[others].softmax(0)
    assert f"<span>{CLASSES[target]} {shares[place]:.0%}" in page
    assert f"<span>{CLASSES[sample.label]} {shares[others.index(sample.label)]:.0%}</span>" in page


def test_what_cannot_be_read_is_not_drawn_and_abpc_chooses_where_no_objects_are_known(tmp_path: Path) -> None:
    dataset = open_dataset("embedded:shapes")
    for index, sample in enumerate(dataset.samples[:4]):
        path = tmp_path / "images" / CLASSES[sample.label] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        dataset.image(sample).save(path)
    path.write_bytes(b"no image")
    broken = f"{CLASSES[sample.label]}/3.png"
    data = ["cam", MODEL, "--data-dir", str(tmp_path / "images"), "--cams", "agcam", "--skip-bad"]
    data += ["--protocol", "agcam-paper", "--device", "cpu", "--out", str(tmp_path / "run")]
    for how, words in (
        ((), "lowest ABPC of agcam; protocol agcam-paper@2:"),
        (("--choose", "random"), "chosen at random; protocol"),
        (("--choose", f"class:{CLASSES[dataset.samples[0].label]}"), "chosen at random; protocol"),
    ):
        done = CliRunner().invoke(cli, [*data, *how], catch_exceptions=False)
        page = (tmp_path / "run" / "cams" / "gallery.html").read_text("utf-8")
        assert done.exit_code == 0 and words in page and broken not in page
        rows = [row for row in Run(tmp_path / "run").table(NAME, "cam(agcam)").to_pylist() if row["error"] is None]
        shown = re.findall(r"<h2>.*<span>(.*)</span></h2>", page)
        if how[1:] in ((), ("random",)):
            assert len(shown) == len(rows) == 3
        if not how:
            assert shown == [row["sample_id"] for row in sorted(rows, key=lambda row: row["abpc"])]
    done = CliRunner().invoke(cli, [*data, "--show", "3"])
    assert str(done.exception).startswith(f"--show {broken}: ") and str(done.exception).endswith(
        "; show another sample"
    )


def test_the_page_of_maps_has_two_galleries(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.pages import maps as maps_page

    monkeypatch.setattr(maps_page, "SHAPES", (MODEL, MODEL))
    assert [path for path, _ in maps_page.draw(run, tmp_path / "maps")] == [
        "maps/shapes-disagreement.png",
        "maps/shapes-controls.png",
    ]
    assert len({path.read_bytes() for path in (tmp_path / "maps").iterdir()}) == 2


def test_own_pictures(tmp_path: Path) -> None:
    picture = tmp_path / "star.png"
    dataset, model = open_dataset("embedded:shapes"), robustkit.load(MODEL)
    dataset.image(dataset.samples[8]).save(picture)
    words = ["cam", MODEL, str(picture), "--target", "star", "--target", "heart", "--cams", "agcam", "--save-maps"]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    sheet, maps = tmp_path / "star-cam.png", tmp_path / "star-cam.npz"
    assert done.output.split() == [str(sheet), str(maps)]
    with Image.open(sheet) as opened:
        assert opened.width > 3 * 224
    pixels = to_pixels(dataset.image(dataset.samples[8]), model.identity.preprocessing)[None] / 255
    with np.load(maps) as kept:
        assert list(kept) == [f"{NAME}/agcam/{name}/{picture}" for name in ("star", "heart")]
        for name, heat in zip(("star", "heart"), kept.values(), strict=True):
            np.testing.assert_allclose(heat, cam.AGCAM(model)(pixels, CLASSES.index(name))[0], atol=1e-5)
    twice = explain_pictures([str(picture)], [MODEL, MODEL], [], "agcam", model={}, out=tmp_path, raw=True)
    with np.load(twice[1]) as kept:
        assert list(kept) == [f"{name}/agcam/predicted/{picture}" for name in (NAME, f"{NAME}-2")]
    for out, message in (
        (picture, f"--out {picture} is one of the pictures itself; give another name"),
        (
            tmp_path / "maps",
            f"--out {tmp_path / 'maps'}: maps of pictures are a PNG; give a name that ends in .png, or a folder",
        ),
    ):
        done = CliRunner().invoke(cli, [*words, "--out", str(out)])
        assert str(done.exception) == message
    assert {path.name for path in tmp_path.iterdir()} == {"star.png", "star-cam.png", "star-cam.npz"}


SHAPES = [MODEL, "--data-dir", "embedded:shapes", "--limit", "12"]
ONLY = "only for a data set, and pictures of your own are given; leave out, or give --data-dir in place of the pictures"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["cat.jpg"],
            "robustkit cam IMAGE needs a checkpoint beside the image: robustkit cam cat.jpg model.pth",
        ),
        ([MODEL], "give pictures of your own beside the checkpoint, or --data-dir with a data set"),
        (
            [MODEL, "cat.jpg", "--data-dir", "x"],
            "give either pictures of your own, or --data-dir with a data set",
        ),
        ([MODEL, "gone.jpg"], "gone.jpg: cannot be read (No such file or directory); check its name"),
        (
            [*SHAPES, "--target", "star"],
            "--target is for pictures of your own; for a data set: --cams 'agcam(target=label)'",
        ),
        (
            [*SHAPES, "--choose", "wrost"],
            "unknown choice 'wrost'; did you mean 'worst'? known: best, disagreement, random, worst; or class:NAME "
            "(--choose)",
        ),
        (
            [*SHAPES, "--choose", "disagreement"],
            "--choose disagreement: a single checkpoint has none to disagree with; give another one, or --choose worst",
        ),
        (
            [*SHAPES, "--choose", "class:strr"],
            "--choose class:strr: no class 'strr' among the model's 10; did you mean star?",
        ),
        (
            [*SHAPES[:-1], "1", "--choose", "class:star"],
            "--choose class:star: none of the 1 samples is of that class; loosen --limit or --ids",
        ),
        (
            [*SHAPES, "--show", "nope"],
            "--show nope: no single one of the 12 samples of embedded:shapes is named so; an id looks like "
            "'test/00075'",
        ),
        (
            [*SHAPES, "--cams", "random"],
            "--cams random: controls only, which do not look at the image; add a method such as agcam, or leave the "
            "gallery out with --gallery 0",
        ),
        ([MODEL, "cat.jpg", "--limit", "3"], f"--limit: {ONLY}"),
        (
            [MODEL, "cat.jpg", "--boxes=x", "--masks=x", "--faithfulness=all", "--protocol=standard"],
            f"--boxes, --masks, --faithfulness, --protocol: {ONLY}",
        ),
        ([MODEL, "cat.jpg", "--gallery=12", "--choose=best", "--show=x"], f"--gallery, --choose, --show: {ONLY}"),
        (
            [MODEL, "cat.jpg", "--cams", "agcam(threshold=0.3)"],
            "--cams agcam(threshold=0.3): a picture has neither label nor score; give methods alone, such as agcam, "
            "and the class with --target",
        ),
        (
            [MODEL, "cat.jpg", "--cams", "full"],
            "--cams full: controls only, which do not look at the image; give such as agcam",
        ),
    ],
)
def test_commands_that_make_no_sense_compute_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustkit.pipeline.audit.audit", lambda *_, **__: pytest.fail("an audit was made"))
    done = CliRunner().invoke(cli, ["cam", *words, "--out", str(tmp_path / "run.png")])
    assert str(done.exception) == message
    assert not list(tmp_path.iterdir())


def test_a_choice_by_score_needs_one(tmp_path: Path) -> None:
    for index in range(2):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{index}.png")
    choice = Choice.of([MODEL], "agcam", "none")
    options: dict[str, Any] = {"data_dir": str(tmp_path), "data": {"layout": "unlabelled"}, "model": {}}
    with pytest.raises(ProtocolError) as caught:
        choice.check(MODEL, **options)
    assert str(caught.value) == (
        "--choose worst: no map is scored, where no objects are known and --faithfulness is none; give --boxes or "
        "--masks, or --choose random"
    )
    choice.check(MODEL, **options, located=True)
    Choice.of([MODEL], "agcam").check(MODEL, **options)
    Choice.of([MODEL], "agcam", "none", how="random").check(MODEL, **options)
    with pytest.raises(DataError, match=r"--choose class:star: .* has no labels; choose disagreement, worst, best"):
        Choice.of([MODEL], "agcam", how="class:star").check(MODEL, **options)


def test_the_help_says_what_faithfulness_is() -> None:
    text = " ".join(CliRunner().invoke(cli, ["cam", "--help"]).output.split())
    assert "Ask the model itself: ABPC; all adds insertion, deletion and a head drawn anew." in text
    assert "disagreement, of one checkpoint worst, if left out." in text


def test_a_class_is_found_by_number_name_and_synonym() -> None:
    names = ("tench, Tinca tinca", "zebra", "crane", "crane, a machine")
    assert target_of("tinca tinca", names) == 0
    assert target_of("Zebra", names) == target_of("1", names) == 1
    nothing = "among the model's 4; expected a name or a number from 0 to 3"
    for text, message in (
        ("zebar", "no class 'zebar' among the model's 4; did you mean zebra?"),
        ("7", "target 7: the model has 4 classes, 0 to 3"),
        ("-1", "target -1: the model has 4 classes, 0 to 3"),
        ("crane", "target 'crane' names classes 2, 3; give the number"),
        ("--5", f"no class '--5' {nothing}"),
        ("²", f"no class '²' {nothing}"),
        ("9" * 5000, f"no class '{'9' * 5000}' {nothing}"),
    ):
        with pytest.raises(ModelError) as caught:
            target_of(text, names)
        assert str(caught.value) == message
    assert class_names(None, 1000)[0] == "tench, Tinca tinca"
    assert class_names(("n01440764",), 1) == ("tench, Tinca tinca",)
    assert class_names(None, 2) == ("0", "1")
    assert [is_picture(name) for name in ("a.JPG", "zoo:a.png", "model.pth")] == [True, False, False]
