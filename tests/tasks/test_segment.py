"""The audit of segmenters: records, resuming, bad input, summary, page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from figures import said_of
from PIL import Image
from safetensors.torch import save_file
from scene_records import worst_slowly

import corruptions
import robustkit
from attacks import SEA, ThreatModel
from robustkit.attention import set_attention
from robustkit.cli.app import cli
from robustkit.common.determinism import SampleRng
from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.data.layouts import Sample
from robustkit.errors import (
    BadImageError,
    CheckpointError,
    DataError,
    ModelError,
    NothingEvaluated,
    ProtocolError,
    RunError,
)
from robustkit.models.dense import Windows, build_segmenter
from robustkit.report import page
from robustkit.report.run import Run
from robustkit.tasks.segmentation import TASK
from robustkit.tasks.segmentation.pictures import Pane, Panes, collage, colour_of, coloured
from robustkit.tasks.segmentation.subject import SCENES, SceneImages
from robustkit.tasks.task import ConditionTable
from scripts.studies.segmenter_attacks.page import sections

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("road", "car", "sky")
SIZES = [(40, 56), (40, 56), (64, 48), (33, 90), (40, 56)]
PGD = "pgd(eps=4/255,steps=3)"
FOG = "corruption(fog,severity=2,variant=bethgelab)"
NOISE = "corruption(gaussian_noise,severity=3,variant=bethgelab)"


def make(path: Path, attention: str = "standard", seed: int = 0, classes: tuple[str, ...] = NAMES) -> Path:
    """A tiny Segmenter with random weights in our own layout."""
    torch.manual_seed(seed)
    kwargs = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    network = build_segmenter(
        "vit_tiny_patch16_224", len(classes), window=32, arch_kwargs=kwargs, decoder_kwargs={"depth": 1, "heads": 2}
    )
    set_attention(network, attention)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    metadata = {
        "task": "segmentation",
        "arch": "vit_tiny_patch16_224",
        "arch_kwargs": json.dumps(kwargs),
        "decoder_kwargs": json.dumps({"depth": 1, "heads": 2}),
        "attention": attention,
        "num_classes": str(len(classes)),
        "class_names": json.dumps(classes),
        "mean": "[0.5, 0.5, 0.5]",
        "std": "[0.25, 0.25, 0.25]",
        "input_size": "[32, 32]",
        "stride": "[24, 24]",
    }
    save_file(network.state_dict(), path, metadata)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes with label maps of three classes and ignored pixels, and two checkpoints."""
    place = tmp_path_factory.mktemp("scenes")
    draw = np.random.default_rng(0)
    for name in ("images", "masks"):
        (place / name).mkdir()
    for index, (height, width) in enumerate(SIZES):
        pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
        pixels[height // 2 :] //= 2
        labels = draw.choice([0, 1, 2, 255], (height, width), p=[0.4, 0.2, 0.3, 0.1]).astype(np.uint8)
        Image.fromarray(pixels).save(place / "images" / f"{index}.png")
        Image.fromarray(labels).save(place / "masks" / f"{index}.png")
    (place / "names.txt").write_text("\n".join(NAMES))
    make(place / "plain.safetensors")
    make(place / "other.safetensors", "quest", seed=1)
    return place


def segment(folder: Path, out: Path, *checkpoints: str, **options: Any) -> Run:
    defaults: dict[str, Any] = {
        "data_dir": folder / "images",
        "masks": folder / "masks",
        "classes": folder / "names.txt",
        "attacks": "pgd(steps=3)",
        "eps": "4/255",
        "corruptions": "fog(severity=2),gaussian_noise(severity=3)",
        "device": "cpu",
        "examples": 0,
    }
    specs = [str(folder / f"{name}.safetensors") for name in checkpoints or ("plain",)]
    return robustkit.segment(specs, out=out, **{**defaults, **options})


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return segment(folder, tmp_path_factory.mktemp("run") / "run", "plain", "other")


def value(run: Run, metric: str, condition: str = "clean", checkpoint: str = "plain") -> Figure:
    (found,) = (
        row for row in run.summary() if (row.checkpoint, row.condition, row.metric) == (checkpoint, condition, metric)
    )
    return found


def counted(predictions: dict[str, np.ndarray], folder: Path, classes: int = 3) -> tuple[float, float]:
    """mIoU and pixel accuracy, pixel by pixel."""
    right, union, hits, total = [0] * classes, [0] * classes, 0, 0
    for name, prediction in predictions.items():
        truth = np.asarray(Image.open(folder / "masks" / name))
        for found, label in zip(prediction.ravel().tolist(), truth.ravel().tolist(), strict=True):
            if label == 255:
                continue
            total += 1
            hits += found == label
            for k in range(classes):
                right[k] += found == k == label
                union[k] += k in (found, label)
    return sum(r / u for r, u in zip(right, union, strict=True) if u) / sum(u > 0 for u in union), hits / total


def images_of(folder: Path) -> dict[str, torch.Tensor]:
    return {
        path.name: torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)[None]
        for path in sorted((folder / "images").iterdir())
    }


def test_clean_figures_are_those_of_a_plain_loop(run: Run, folder: Path) -> None:
    for name in ("plain", "other"):
        model = robustkit.load_segmenter(folder / f"{name}.safetensors")
        found = {key: model(pixels / 255).argmax(1)[0].numpy() for key, pixels in images_of(folder).items()}
        miou, accuracy = counted(found, folder)
        assert value(run, "miou", checkpoint=name).value == pytest.approx(miou, abs=1e-9)
        assert value(run, "pixel_accuracy", checkpoint=name).value == pytest.approx(accuracy, abs=1e-9)
        assert len({int(one) for prediction in found.values() for one in np.unique(prediction)}) > 1
    assert run.table("plain", "clean").schema.names == [*SCENES.names, "digest", "digest_at_32"]
    assert value(run, "miou").n == len(SIZES)
    assert run.manifest.checkpoints[1].attention == "quest"
    assert run.manifest.checkpoints[0].windows == {"size": [32, 32], "stride": [24, 24], "short_side": None}


def test_corruptions_act_on_the_whole_image(run: Run, folder: Path) -> None:
    model = robustkit.load_segmenter(folder / "plain.safetensors")
    for text, name, severity in ((FOG, "fog", 2), (NOISE, "gaussian_noise", 3)):
        made = corruptions.CORRUPTIONS[name](variant="bethgelab")
        found = {}
        for key, pixels in images_of(folder).items():
            rng = SampleRng.of([key], seed=0, condition=text, device=torch.device("cpu"))
            shown = made.apply(pixels, made.draw(pixels.shape[1:], severity, rng))
            found[key] = model(shown / 255).argmax(1)[0].numpy()
        assert value(run, "miou", text).value == pytest.approx(counted(found, folder)[0], abs=1e-9)
    assert value(run, "miou", FOG).value != value(run, "miou").value


def test_attacks_stay_in_their_ball_and_cost_what_they_say(run: Run) -> None:
    rows = run.table("plain", PGD).to_pylist()
    assert all(
        row["linf"] <= 4 / 255 + 1e-6 and row["steps"] == row["forwards"] == row["backwards"] == 3 for row in rows
    )
    assert value(run, "linf_max", PGD).value == pytest.approx(4 / 255, abs=1e-6)
    assert value(run, "nll", PGD).value > value(run, "nll").value
    assert value(run, "miou", PGD).value < value(run, "miou").value
    assert not any(each.code == "attack/exceeds-eps" for row in run.summary() for each in row.findings)


def test_sea_records_each_of_its_runs_and_sums_up_the_worst(folder: Path, tmp_path: Path) -> None:
    run = segment(folder, tmp_path / "run", attacks="segpgd(steps=3),sea(steps=4)", corruptions=None)
    sea = "sea(eps=4/255,steps=4)"
    rows = run.table("plain", sea).to_pylist()
    parts = [
        [row | {name: row[f"{name} {of}"] for name in ("intersections", "predicted")} for row in rows]
        for of in ("segpgd", "js", "masked", "balanced")
    ]
    for place, row in enumerate(rows):
        right = [sum(part[place]["intersections"]) for part in parts]
        assert sum(row["intersections"]) == min(right)
        assert any(row["predicted"] == part[place]["predicted"] for part in parts)
    model, image = robustkit.load_segmenter(str(folder / "plain.safetensors")), folder / "images" / "1.png"
    pixels = torch.from_numpy(np.array(Image.open(image))).permute(2, 0, 1)[None] / 255
    mask = np.array(Image.open(folder / "masks" / "1.png")).astype(np.int64)
    mask[mask == 255] = -1
    rng = SampleRng.of([rows[1]["sample_id"]], seed=0, condition=sea, device="cpu")
    attacked = SEA(ThreatModel("linf", 4 / 255), steps=4).run(model, pixels, torch.from_numpy(mask)[None], rng=rng)
    for of, ends in zip(attacked.runs, attacked.ends, strict=True):
        with torch.no_grad():
            found = model(ends)[0].argmax(dim=0).numpy()
        known = [int(((found == k) & (mask == k)).sum()) for k in range(3)]
        assert known == pytest.approx(rows[1][f"intersections {of}"], abs=2)  # pixels at the boundary, in other batches
    figures = {(row.condition, row.metric): row for row in run.summary()}
    assert figures[sea, "miou_worst"].value == pytest.approx(worst_slowly([rows, *parts]), abs=1e-12)
    assert figures[sea, "miou_worst"].value <= figures[sea, "miou"].value
    assert ("segpgd(eps=4/255,steps=3)", "miou_worst") not in figures
    (shared,) = run.export("hf-eval-results", dataset_id="acme/scenes", task_ids=[f"{sea}=sea"])
    (entry,) = yaml.safe_load(shared.read_text("utf-8"))
    assert (
        entry["value"] == pytest.approx(figures[sea, "miou_worst"].value, abs=1e-6)
        and "worst-case mIoU" in entry["notes"]
    )
    worst = "worst-case mIoU % [95 %]"
    shown = {row["condition"]: row[worst] for row in ConditionTable.of(TASK, run.summary(), run.manifest).rows}

    def shown_as(text: str, metric: str) -> str:
        return f"{100 * figures[text, metric].value:.1f}"

    called = "SEA, 4/255, 4 steps"
    assert shown[called] == shown_as(sea, "miou_worst") and shown["clean"] == "–"
    assert worst.split(" %")[0] in (run.path / "report.html").read_text()
    heading, page = sections(run, "plain")
    clean, first, ours, worst = ([cell.strip() for cell in line.split("|")] for line in page.splitlines()[2:])
    assert heading == "## plain at 4/255, 5 images" and clean[1:4] == ["`clean`", shown_as("clean", "miou"), ""]
    assert (ours[1:3], worst[2]) == ([f"`{sea}`", shown_as(sea, "miou")], shown_as(sea, "miou_worst"))
    assert float(worst[3]) == pytest.approx(float(first[2]) - float(worst[2]), abs=0.11)
    assert ours[5].endswith(" of 5") and clean[5] == first[5] == worst[5] == ""


def test_another_batch_a_resumed_and_an_extended_run_give_the_same(run: Run, folder: Path, tmp_path: Path) -> None:
    again = segment(folder, tmp_path / "run", "plain", batch_size=1, shard_size=2, attacks="none", corruptions=None)
    assert len(list(again.path.rglob("*.parquet"))) == 3
    lines: list[str] = []
    segment(folder, again.path, "plain", batch_size=1, say=lines.append)
    assert "3 units of work were already done and were not recomputed" in lines
    for condition in ("clean", PGD, FOG, NOISE):
        first, second = run.table("plain", condition).to_pylist(), again.table("plain", condition).to_pylist()
        for row, other in zip(first, sorted(second, key=lambda row: row["sample_id"]), strict=True):
            assert row["labelled"] == other["labelled"]
            assert row["nll"] == pytest.approx(other["nll"], abs=1e-4)
            assert np.abs(np.subtract(row["predicted"], other["predicted"])).max() <= 2
    shard = next(path for path in again.path.rglob("00001.parquet") if "pgd" in str(path))
    content = shard.read_bytes()
    shard.unlink()
    segment(folder, again.path, "plain", batch_size=1)
    assert shard.read_bytes() == content
    with pytest.raises(RunError, match=r"windows of plain is .* there and .* here; use another --out"):
        segment(folder, again.path, "plain", model={"stride": 16})


def test_the_data_pipeline_of_ade20k_is_part_of_the_run(folder: Path, tmp_path: Path) -> None:
    chosen: Any = {"attacks": "none", "corruptions": None, "limit": 1, "examples": 0}
    made = segment(folder, tmp_path / "run", "plain", model={"resize": "ade20k"}, **chosen)
    assert made.manifest.checkpoints[0].windows["resize"] == "ade20k"
    assert "resized as the data pipeline of ade20k does" in (made.path / "report.html").read_text("utf-8")
    plain = segment(folder, tmp_path / "other", "plain", **chosen)
    assert value(plain, "nll").value != value(made, "nll").value
    with pytest.raises(RunError, match=r"windows of plain is .*'ade20k'.* there and .* here; use another --out"):
        segment(folder, made.path, "plain", **chosen)


def test_records_of_scenes_say_of_what_they_are(run: Run, folder: Path, tmp_path: Path) -> None:
    """Those of another condition, of another checkpoint and of another shard are refused, and computed again."""
    out = Run(tmp_path / "run")
    whole = segment(folder, tmp_path / "whole", "plain", shard_size=2)
    for source, place, reason in (
        (run.shard_path("plain", PGD, 0), 0, "its run is|its condition is|other samples"),
        (whole.shard_path("plain", "clean", 0), 1, "its shard is 0 instead of 1"),
        (whole.shard_path("plain", FOG, 1), 1, re.escape(f"its condition is {FOG} instead of clean")),
    ):
        shutil.copytree(whole.path, out.path)
        path = out.shard_path("plain", "clean", place)
        for one in (path, out._timing_path(path)):
            one.unlink()
        shutil.copyfile(source, path)
        with pytest.raises(RunError, match=reason):
            out.results()
        lines: list[str] = []
        segment(folder, out.path, "plain", shard_size=2, say=lines.append)
        assert any(line.startswith(f"{path}: ") and line.endswith("; recomputed") for line in lines)
        assert path.read_bytes() == whole.shard_path("plain", "clean", place).read_bytes()
        path.unlink()
        assert "incomplete" in str(out.results()["flags"].tolist())
        shutil.rmtree(out.path)


def test_bfloat16_searches_and_float32_scores(run: Run, folder: Path, tmp_path: Path) -> None:
    low = segment(folder, tmp_path / "run", dtype="bfloat16", corruptions=None)
    assert value(low, "nll").value == pytest.approx(value(run, "nll").value, rel=0.02)
    assert value(low, "nll").value != value(run, "nll").value
    assert value(low, "nll", PGD).value == pytest.approx(value(run, "nll", PGD).value, rel=0.02)
    assert all(row["linf"] <= 4 / 255 + 1e-6 for row in low.table("plain", PGD).to_pylist())


def test_bad_masks_are_named_left_out_and_counted(run: Run, folder: Path, tmp_path: Path) -> None:
    broken: dict[str, Callable[[Path], Any]] = {
        "0.png": lambda path: Image.new("L", (10, 20)).save(path),
        "1.png": lambda path: Image.new("L", (56, 40), 7).save(path),
        "2.png": lambda path: path.unlink(),
        "3.png": lambda path: Image.new("RGB", (90, 33)).save(path),
    }
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in (folder / "masks").iterdir():
        (masks / path.name).write_bytes(path.read_bytes())
    for name, spoil in broken.items():
        spoil(masks / name)
    words = [str(folder / "plain.safetensors"), "--data-dir", str(folder / "images"), "--masks", str(masks)]
    words += ["--classes", str(folder / "names.txt"), "--attacks", "none", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(cli, ["segment", *words])
    assert isinstance(done.exception, DataError)
    assert str(done.exception).startswith("4 of 5 images could not be read and were left out, the first: ")
    bad = Run.existing(tmp_path / "run")
    errors = {row["sample_id"]: row["error"] for row in bad.table("plain", "clean").to_pylist() if row["error"]}
    assert errors.keys() == broken.keys()
    assert f"{masks / '0.png'}: the mask is of 10x20 pixels, the image of 56x40" in errors["0.png"]
    assert "label 7 on 2240 pixels" in errors["1.png"]
    assert "2.png: no mask for this image" in errors["2.png"]
    assert str(masks / "3.png") in errors["3.png"]
    assert value(bad, "miou").n == 1
    unread = Finding("data/unreadable", "4 of 5 images could not be read; excluded", "limit")
    assert unread in value(bad, "miou").findings
    own = next(row for row in run.table("plain", "clean").to_pylist() if row["sample_id"] == "4.png")
    assert value(bad, "pixel_accuracy").value == pytest.approx(sum(own["intersections"]) / own["pixels"])
    assert CliRunner().invoke(cli, ["segment", *words, "--skip-bad"]).exit_code == 0
    assert "images that could not be read" in (tmp_path / "run" / "report.html").read_text("utf-8").lower()


@pytest.mark.parametrize(("options", "size"), [({}, (16, 40_000)), ({"resize": "ade20k"}, (1, 100_000))])
def test_a_picture_too_thin_for_windows_is_one_that_cannot_be_read(options: Any, size: tuple[int, int]) -> None:
    """Enlarged until its short side is a window's, it would exhaust the memory."""
    images = SceneImages(cast("Any", None), Windows((512, 512), (480, 480), **options))
    with pytest.raises(
        BadImageError, match=rf"a.png: {size[1]} x {size[0]} pixels are too thin: for windows they would"
    ):
        images.locate(Sample("a.png", 0), torch.zeros(3, *size))


def test_an_ignored_class_is_never_right_and_has_no_iou(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "masks").iterdir():
        labels = np.array(Image.open(path))
        labels[labels == 255] = 1
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(labels).save(tmp_path / "masks" / path.name)
    void = segment(folder, tmp_path / "run", masks=tmp_path / "masks", ignore=(1,), attacks="none", corruptions=None)
    for row in void.table("plain", "clean").to_pylist():
        assert row["predicted"][1] == row["labelled"][1] == 0
        assert sum(row["predicted"]) < row["pixels"]  # some are predicted as the class that does not count
    assert {each.code for each in value(void, "miou").findings} <= {"labels/no-better-than-chance"}  # a random network
    page = (void.path / "report.html").read_text("utf-8")
    assert "windows of 32 x 32 every 24 x 24" in page and "none crop" not in page
    assert not any(row.metric == "iou(car)" for row in void.summary())


def test_masks_of_another_convention_are_told_by_what_the_network_says(folder: Path, tmp_path: Path) -> None:
    """Masks are what the network says, stored as they are, or by one more, with 0 for what it calls sky."""
    model = robustkit.load_segmenter(folder / "plain.safetensors")
    for name, pixels in images_of(folder).items():
        with torch.no_grad():
            answers = model(pixels / 255).argmax(dim=1)[0].numpy().astype(np.uint8)
        for kind, stored in (
            ("plain", answers),
            ("more", answers + 1),
            ("none", np.where(answers < 2, answers + 1, 0)),
        ):
            (tmp_path / kind).mkdir(exist_ok=True)
            Image.fromarray(stored.astype(np.uint8)).save(tmp_path / kind / name)

    def scored(kind: str, reduced: bool) -> tuple[float, str]:
        options: dict[str, Any] = {"attacks": "none", "corruptions": None, "reduce_zero_label": reduced}
        run = segment(folder, tmp_path / f"{kind}-{reduced}", masks=tmp_path / kind, **options)
        row = value(run, "pixel_accuracy")
        return row.value, " ".join(text for text in said_of(row) if "reduce" in text)

    assert scored("plain", False) == scored("more", True) == scored("none", True) == (1, "")
    fits = "100.0% of pixels would be right if masks store class k as k + 1, with 0 for none; give --reduce-zero-label"
    assert scored("none", False)[1].endswith(fits)
    assert scored("plain", True)[1].endswith("if masks store class k as k; leave out --reduce-zero-label")
    assert scored("more", False)[1].endswith(fits)  # of the images without sky; others cannot be read
    errors = Run(tmp_path / "more-False").table("plain", "clean")["error"].drop_null().to_pylist()
    assert errors and all("or give --reduce-zero-label if 0 is no class" in error for error in errors)
    random = segment(folder, tmp_path / "random", attacks="none", corruptions=None)
    assert not any("reduce" in text for row in random.summary() for text in said_of(row))


def test_the_page_and_the_terminal_show_all(run: Run, folder: Path, tmp_path: Path) -> None:
    words = [str(folder / f"{name}.safetensors") for name in ("plain", "other")]
    words += ["--data-dir", str(folder / "images"), "--masks", str(folder / "masks"), "--out", str(tmp_path / "run")]
    words += [
        "--attacks",
        "segpgd(steps=2)",
        "--corruptions",
        "noise",
        "--examples",
        "2",
        "--window",
        "32x32",
        "--details",
    ]
    done = CliRunner().invoke(cli, ["segment", *words], catch_exceptions=False)
    assert done.exit_code == 0
    made = Run.existing(tmp_path / "run")
    assert made.manifest.data.class_names == tuple(NAMES)  # of the checkpoints, as no file names them
    page = (made.path / "report.html").read_text("utf-8")
    for text in ("segpgd(eps=1/255,steps=2)", "shot_noise", "retention %", "other against plain, paired by image"):
        assert text in done.output
        assert text in re.sub(r"<wbr>|</?a\b[^>]*>", "", page)
    places = [page.index(f'<th scope="col" class="num">{name}</th>') for name in ("plain", "other")]
    assert places == sorted(places)
    assert "data:image/png;base64," in page
    with Image.open(made.path / "scenes" / "examples.png") as sheet:
        assert sheet.width > 8 * 240
    clean = [value(made, "miou", checkpoint=name).value for name in ("plain", "other")]
    assert f"{100 * (clean[1] - clean[0]):+.1f}" in page
    report = CliRunner().invoke(cli, ["report", str(made.path), "--details"], catch_exceptions=False)
    assert report.output.count("other against plain") == 1


def test_an_overlay_has_the_colour_of_its_class_and_leaves_ignored_pixels_grey() -> None:
    image = np.full((240, 240, 3), 100, np.uint8)
    labels = np.zeros((240, 240), np.int16)
    labels[:, 80:160], labels[:, 160:] = 1, -1
    shown = coloured(Pane(image, labels))
    for column, place in ((40, 0), (120, 1)):
        expected = [round(0.4 * 100 + 0.6 * part) for part in colour_of(place)]
        assert shown[120, column].tolist() == expected
    assert shown[120, 200].tolist() == [100, 100, 100]
    assert coloured(Pane(image, labels), plain=[0])[120, 40].tolist() == [100, 100, 100]
    assert len({colour_of(place) for place in range(150)}) == 150
    sheet = collage(Panes("t", "l", (("image", ""), ("truth", "")), ((Pane(image, None), Pane(image, labels)),), NAMES))
    legend = {tuple(pixel) for pixel in np.asarray(sheet)[100:124].reshape(-1, 3).tolist()}
    assert {colour_of(0), colour_of(1)} <= legend and colour_of(2) not in legend


def test_what_does_not_go_together_is_said(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(DataError, match=r"class 0 is 'car' in .* and 'road' in plain; give the classes in the order"):
        (tmp_path / "names.txt").write_text("car\nroad\nsky")
        segment(folder, out, classes=tmp_path / "names.txt")
    make(tmp_path / "four.safetensors", classes=(*NAMES, "tree"))
    with pytest.raises(DataError, match="plain has 3 classes and four 4; evaluate them in separate runs"):
        robustkit.segment(
            [folder / "plain.safetensors", tmp_path / "four.safetensors"],
            data_dir=folder / "images",
            masks=folder / "masks",
            out=out,
        )
    with pytest.raises(ProtocolError, match="protocol standard is for classification; use robustkit audit"):
        segment(folder, out, protocol="standard")
    with pytest.raises(ProtocolError, match="protocol segmentation is for segmentation; use robustkit segment"):
        robustkit.audit(["zoo:shapes-vit-quest"], data_dir="embedded:shapes", protocol="segmentation", out=out)
    with pytest.raises(ProtocolError, match="unknown attack 'autoattack'"):
        segment(folder, out, attacks="autoattack")
    with pytest.raises(ProtocolError, match="engine torchattacks: only attacks classifiers"):
        segment(folder, out, attacks="pgd(engine=torchattacks)")
    with pytest.raises(CheckpointError, match="is a segmenter; evaluate it with robustkit segment"):
        robustkit.load(folder / "plain.safetensors")
    with pytest.raises(CheckpointError, match=r"not a Segmenter \(its tensors begin .*\); expected encoder"):
        robustkit.load_segmenter("zoo:shapes-vit-quest")
    with pytest.raises(ModelError, match="timm provides classifiers only"):
        robustkit.load_segmenter("timm:vit_tiny_patch16_224")
    assert not out.exists()
    for words, message in (
        (["--ignore", "void"], "--ignore 'void': expected labels such as 255, or 0,255"),
        (["--ignore", "²"], "--ignore '²': expected labels such as 255, or 0,255"),
        (["--window", "0"], "--window '0': expected pixels, such as 512 or 512x1024 (height x width)"),
    ):
        given = [str(folder / "plain.safetensors"), "--data-dir", str(folder / "images"), *words]
        assert str(CliRunner().invoke(cli, ["segment", *given]).exception) == message


MIRRORED = """
from robustkit.evaluations.condition import Vocabulary
from robustkit.evaluations.family import Family

class Words(Vocabulary):
    in_results = True

class Mirrored(Family):
    name, words = "mirrored images", Words()
    def show(self, subject, batch, condition, rng):
        return subject.show_pixels(batch, batch.inputs.flip(-1))

class Darker(Mirrored):
    name, words, keeps_places = "darker images", Words(), True
    def show(self, subject, batch, condition, rng):
        return subject.show_pixels(batch, batch.inputs // 2)

PLUGINS = {"families": {"flip": Mirrored(), "dark": Darker()}}
"""


def test_masks_are_only_for_pixels_that_stay_in_place(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plugin.py").write_text(MIRRORED)
    given = {"attacks": "none", "corruptions": None, "limit": 2}
    with robustkit.plugin_session():
        robustkit.load_plugin(tmp_path / "plugin.py")
        for text, shown in (("flip", "mirrored images"), ("region-noise(random)", "regions")):
            with pytest.raises(
                ProtocolError, match=f"--evaluations {re.escape(text[:9])}.*: masks may not fit what {shown}"
            ):
                segment(folder, tmp_path / "run", evaluations=text, **given)
        with pytest.raises(ProtocolError, match="unknown parameter of dark 'axis'; there is none"):
            segment(folder, tmp_path / "run", evaluations="dark(axis=1)", **given)
        run = segment(folder, tmp_path / "run", evaluations="dark", **given)
    assert 0 < value(run, "miou", "dark").value != value(run, "miou").value


def test_inspect_ranks_the_formulas_of_a_segmenter_by_its_pixels(folder: Path, tmp_path: Path) -> None:
    words = ["inspect", str(folder / "other.safetensors"), "--data-dir", str(folder / "images")]
    words += ["--masks", str(folder / "masks"), "--classes", str(folder / "names.txt")]
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert "windows  size [32, 32], stride [24, 24]" in done.output and "acc. %" in done.output
    losses = []
    for attention in ("quest", "standard"):
        model = robustkit.load_segmenter(folder / "other.safetensors", attention=attention)
        means = []
        for name, pixels in images_of(folder).items():
            labels = torch.from_numpy(np.array(Image.open(folder / "masks" / name))).long()[None]
            logits = model(pixels / 255).log_softmax(1).gather(1, labels.clamp(max=2)[:, None])[:, 0]
            means.append(-logits[labels < 255].mean().item())
        losses.append(sum(means) / len(means))
    for name, loss in zip(("quest", "standard"), losses, strict=True):
        (line,) = (line for line in done.output.splitlines() if line.startswith(f"{name} "))
        assert f" {loss:.3f} " in line
    facts = CliRunner().invoke(cli, ["inspect", "zoo:shapes-vit-quest"], catch_exceptions=False)
    assert "64x64 pixels (by the network's shape)" in facts.output and "windows" not in facts.output


def test_the_picture_is_of_scenes_that_could_be_read(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "masks").iterdir():
        (tmp_path / "masks").mkdir(exist_ok=True)
        shown = Image.open(path) if path.name == "3.png" else Image.new("L", (5, 5))
        shown.save(tmp_path / "masks" / path.name)
    one = segment(folder, tmp_path / "run", masks=tmp_path / "masks", attacks="none", corruptions=None, examples=2)
    with Image.open(one.path / "scenes" / "examples.png") as sheet:
        assert sheet.width == 72 + 3 * 240 + 2 * 12
    segment(folder, one.path, masks=tmp_path / "masks", attacks="none", corruptions=None, examples=0)
    assert not (one.path / "scenes" / "examples.png").exists()
    assert "data:image/png" not in (one.path / "report.html").read_text("utf-8")


def test_nothing_to_evaluate(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    for path in (folder / "masks").iterdir():
        with Image.open(path) as mask:
            Image.new("L", mask.size, 255).save(tmp_path / "void" / path.name)
    with pytest.raises(NothingEvaluated, match="no pixel of any image counts; check --masks and --ignore"):
        segment(folder, tmp_path / "none", masks=tmp_path / "void", attacks="none", corruptions=None)
    (tmp_path / "masks").mkdir()
    for path in (folder / "masks").iterdir():
        Image.new("RGB", (4, 4)).save(tmp_path / "masks" / path.name)
    with pytest.raises(NothingEvaluated, match="none of the 5 images was evaluated; the first: "):
        segment(folder, tmp_path / "run", masks=tmp_path / "masks", examples=2)


def test_a_run_with_examples_makes_its_page_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bool] = []
    write = page.write_report

    def counting(run: Any, rows: Any, *more: Any) -> None:
        written.append((run.path / "scenes" / "examples.png").exists())
        write(run, rows, *more)

    monkeypatch.setattr(page, "write_report", counting)
    segment(folder, tmp_path / "run", attacks="none", corruptions=None, limit=2, examples=1)
    assert written == [True]
