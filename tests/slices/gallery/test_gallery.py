"""Galleries of maps: overlays, which samples are shown, names, and commands that make no sense."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from explained import MODEL, NAME
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import cam
import robustkit
from cam.overlay import COLORMAPS
from robustkit.cli.app import cli
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.class_names import class_names, target_of
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.data.shapes import CLASSES
from robustkit.errors import DataError, ModelError, ProtocolError, RunError
from robustkit.evaluations.maps.truth import open_truth
from robustkit.models.specs import find
from robustkit.pipeline.inputs import labelled_data
from robustkit.pipeline.request import ClassificationRequest
from robustkit.report.run import Run
from robustkit.slices.gallery.command import COLORMAPS as NAMES_OF_COLOURS
from robustkit.slices.gallery.drawing import Choice, is_picture, make_gallery, write_gallery
from robustkit.slices.gallery.sheet import (
    Gallery,
    GalleryRow,
    Panel,
    blended,
    choose,
    depict,
    figure_of,
    outlined,
    write_html,
)
from robustkit.tasks.labelled.subject import COPIES

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")


def test_overlays_show_the_map_and_leave_the_rest_to_be_seen() -> None:
    image = np.full((8, 8, 3), (200, 40, 40), np.uint8)
    heat = np.zeros((8, 8), np.float32)
    heat[:, 4:] = 1
    shown = blended(image, heat).astype(int)
    assert shown.shape == (224, 224, 3)
    cold, hot = shown[112, 20], shown[112, 200]
    assert (abs(hot - (0.15 * 88 + 0.85 * np.array([252, 255, 164]))) < 1.5).all()  # inferno ends in light yellow
    assert (abs(cold - (0.66 * 88 + 0.34 * np.array([0, 0, 4]))) < 1.5).all()  # grey, darker
    faint = blended(image, heat, colormap="cividis", alpha=0.5).astype(int)
    assert (abs(faint[112, 200] - (0.5 * 88 + 0.5 * np.array([254, 232, 56]))) < 1.5).all()
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
    assert choose(scores, "best", 2, order) == ["c", "b"]
    assert choose(scores, "worst", 2, order) == ["e", "b"]
    assert choose(scores, "disagreement", 2, order) == ["a", "c"]
    assert choose(scores, "random", 2, order) == ["e", "d"]


def test_a_gallery_escapes_what_it_is_told_and_explains_its_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    own = np.full((8, 8, 3), 200, np.uint8)
    tile = Panel("agcam, <u>class</u>", own, np.eye(8, dtype=np.float32), ("<i>cat</i> 90 %",))
    row = GalleryRow("<script>alert(1)</script>.png", "cat & dog", image, (tile,), checkpoint="<i>model</i>")
    gallery = Gallery("maps", (row, replace(row, sample_id="other.png")), ("a line",))
    write_html(gallery, tmp_path / "gallery.html")
    page = (tmp_path / "gallery.html").read_text("utf-8")
    assert page.count("<script>") == 1 and "<script>alert" not in page and "<u>" not in page and "<i>" not in page
    assert "cat &amp; dog" in page and page.count("data:image/webp;base64,") == 4
    assert "<p>Each map is scaled to its own minimum and maximum, so colours cannot" in page
    sheet = np.asarray(depict(gallery))
    assert sheet.shape[1] > 2 * 224 and sheet.shape[0] > 2 * 224
    scale = cv2.applyColorMap(np.arange(256, dtype=np.uint8)[None], cv2.COLORMAP_INFERNO)[0, :, ::-1]
    ends = [np.argwhere((sheet == colour).all(axis=2)) for colour in scale[[0, 255]]]
    assert [len(found) >= 10 for found in ends] == [True, True]
    assert 140 < ends[1][:, 1].max() - ends[0][:, 1].min() < 180
    drawn = blended(own, np.eye(8, dtype=np.float32))
    columns = [sheet[:, left : left + 224] for left in (272, 272 + 2 * 236)]  # the two images stand side by side
    for column in columns:
        assert sum(np.array_equal(column[top : top + 224], drawn) for top in range(len(column) - 223)) == 1
    more = np.asarray(depict(replace(gallery, lines=("a line", "and another that is drawn, too"))))
    assert more.shape[0] == sheet.shape[0] + 24
    monkeypatch.setattr("robustkit.slices.gallery.sheet.SCALE", "")
    assert depict(gallery).height <= sheet.shape[0] - 24


def test_the_page_says_whose_map_is_where_and_its_switches_name_what_they_hide(tmp_path: Path) -> None:
    def grey(level: int) -> Any:
        return np.full((8, 8, 3), level, np.uint8)

    rows, levels = [], iter(range(20, 252, 19))
    for checkpoint, under in product(("first net", "second net"), ("", "fog")):
        heat, said = np.zeros((8, 8), np.float32), f"{checkpoint} {under}"
        tiles = tuple(
            Panel(f"{name}, as asked", grey(next(levels)), heat, (f"{name} {said}",)) for name in ("agcam", "rollout")
        )
        given = {"checkpoint": checkpoint, "under": under, "lines": (f"says {said}",)}
        rows.append(GalleryRow("1.png", "cat", grey(next(levels)), tiles, **given))
    write_html(Gallery("maps", tuple(rows)), tmp_path / "gallery.html")
    page = (tmp_path / "gallery.html").read_text("utf-8")
    boxes = re.findall(r'<input type="checkbox" value="(\w+)"[^>]*>([^<]*)</label>', page)
    assert boxes[:2] == [("m0", "AG-CAM, as asked"), ("m1", "rollout, as asked")]
    assert boxes[2:] == [("c0", "first net"), ("c1", "second net"), ("u0", "clean"), ("u1", "fog")]
    assert re.findall(r'<th scope="col" data-of="(m.)">([-\w]+)<', page) == [("m0", "AG-CAM"), ("m1", "rollout")]
    assert "linear-gradient(90deg, rgb(0 0 4), " in page and ", rgb(252 255 164))" in page  # inferno, as the maps
    shown = re.findall(r'<tr data-of="(.*?)">(.*?)</tr>', page, re.DOTALL)
    assert [key for key, _ in shown] == ["c0 u0", "c0 u1", "c1 u0", "c1 u1"]
    for (_, text), row in zip(shown, rows, strict=True):
        assert f"<b>{row.checkpoint}</b><span>{row.under or 'clean'}</span><span>{row.lines[0]}</span>" in text
        assert re.findall(r'<td data-of="(m.)">.*?<span>(.*?)</span></td>', text) == [
            (f"m{place}", tile.lines[0]) for place, tile in enumerate(row.tiles)
        ]
        pictures = re.findall(r'src="data:image/webp;base64,([^"]+)"', text)
        for picture, expected in zip(pictures, (row, *row.tiles), strict=True):
            seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))), float)
            assert abs(seen - expected.drawn()).mean() < 4  # the next one is further off
    assert re.search("<h2>cat <span>1.png</span></h2>", page)
    script = page.partition("<script>")[2].partition("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in html.unescape(page)[:600]


QUEST, QUEST_NAME = "zoo:shapes-vit-quest", "shapes-vit-quest"


def cam_of(out: Path, *words: str) -> tuple[str, dict[str, Any]]:
    """The page of `robustkit cam --out`, and the maps in it by checkpoint/method/sample."""
    brief = ("--faithfulness", "none", "--save-maps", "--no-setup-check")
    words = ("cam", *words, *brief, "--out", str(out), "--device", "cpu")
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.count(f"gallery: {out / 'cams' / 'gallery.'}") == 2
    with np.load(out / "cams" / "maps.npz") as kept:
        return (out / "cams" / "gallery.html").read_text("utf-8"), dict(kept)


@pytest.mark.slow
def test_a_gallery_shows_the_maps_of_its_own_command_under_the_right_names(tmp_path: Path) -> None:
    data = ("--data-dir", "embedded:shapes", "--limit", "6", "--gallery", "2")
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
    assert page.index(f"<b>{QUEST_NAME}</b>") < page.index(f"<b>{NAME}</b>")
    page, alone = cam_of(tmp_path, QUEST, *data, "--cams", "rollout(threshold=0.3)")
    assert {name.rpartition("/test/")[0] for name in alone} == {f"{QUEST_NAME}/rollout(threshold=0.3)"}
    assert page.count("<img ") == 4
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
    request = ClassificationRequest(checkpoints=checkpoints, **options, device="cpu")
    _, page = write_gallery(run, make_gallery(run, request, choice), raw=True)
    with np.load(page.parent / "maps.npz") as kept:
        (first, heat), (second, cropped_heat) = kept.items()
    dataset = open_dataset("embedded:shapes")
    sample = next(one for one in dataset.samples if first == f"a/agcam/{one.id}")
    assert second == f"b/agcam/{sample.id}"
    whole, cropped = (Preprocessing((64, 64), crop_pct=share, interpolation="bicubic") for share in (1.0, 0.5))
    views = [to_pixels(dataset.image(sample), how).permute(1, 2, 0).numpy() for how in (whole, cropped)]
    truths = [open_truth(dataset).locate(sample, how) for how in (whole, cropped)]
    masks = [found.mask.numpy() for found in truths if found is not None]
    expected = []
    for view, map_, mask in zip(views, (heat, cropped_heat), masks, strict=True):
        expected += [outlined(view, mask), outlined(blended(view, map_), mask, 1)]
    drawn = re.findall(r'src="data:image/webp;base64,([^"]+)"', page.read_text("utf-8"))
    for text, pixels in zip(drawn, expected, strict=True):
        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), float)
        assert shown.shape == pixels.shape and abs(shown - pixels).mean() < 4  # the two frames differ by 10 and more
    write_gallery(run, make_gallery(run, replace(request, checkpoints=checkpoints[1:]), choice), raw=True)
    with np.load(page.parent / "maps.npz") as kept:
        assert list(kept) == [second]
        np.testing.assert_array_equal(kept[second], cropped_heat)
    with pytest.raises(RunError) as caught:
        make_gallery(run, replace(request, checkpoints=[QUEST]), choice)
    message = f"{run.path}: no records of {QUEST}, only of a, b; run robustkit cam with it"
    assert str(caught.value) == message
    with pytest.raises(RunError, match=r"was made with protocol standard@2:\w+, not agcam-paper@2:\w+; give that"):
        make_gallery(run, replace(request, protocol="agcam-paper"), choice)


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

    for module in ("pipeline.classification", "slices.gallery.drawing"):
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
    assert f"<span>predicts {CLASSES[target]} {100 * shares[place]:.0f} %" in page
    assert f"<span>{CLASSES[sample.label]} {100 * shares[others.index(sample.label)]:.0f} %</span>" in page


def test_maps_are_drawn_for_each_class_and_each_attack(tmp_path: Path) -> None:
    attack = "pgd(eps=8/255,steps=2)"
    words = ("--data-dir", "embedded:shapes", "--limit", "2", "--gallery", "1", "--choose", "random")
    words += ("--target", "label", "--target", "star", "--attacks", attack)
    page, maps = cam_of(tmp_path, MODEL, *words, "--cams", "agcam,smooth-grad(samples=2)")
    sample_id = next(iter(maps)).partition("/label/")[2]
    names = [f"{NAME}/{called}/{name}" for called in ("agcam", "smooth-grad(samples=2)") for name in ("label", "star")]
    assert list(maps) == [*(f"{name}/{sample_id}" for name in names), *(f"{n}/{attack}/{sample_id}" for n in names)]
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    sample = next(one for one in dataset.samples if one.id == sample_id)
    pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
    np.testing.assert_allclose(
        maps[f"{names[1]}/{sample_id}"], cam.AGCAM(model)(pixels, CLASSES.index("star"))[0], atol=1e-5
    )
    assert not np.allclose(maps[f"{names[1]}/{sample_id}"], maps[f"{names[1]}/{attack}/{sample_id}"], atol=1e-2)
    assert page.count("<img ") == 2 * 5 and page.count(f"<span>{attack}</span>") == 1


def test_both_objects_are_asked_for(tmp_path: Path) -> None:
    words = ("--data-dir", "embedded:shapes-pairs", "--limit", "2", "--gallery", "1", "--choose", "random")
    page, maps = cam_of(tmp_path, MODEL, *words, "--cams", "agcam")
    first, second = maps
    sample_id = first.partition("/first object/")[2]
    assert second == f"{NAME}/agcam/second object/{sample_id}"
    row = next(r for r in Run(tmp_path).table(NAME, "two-object(map=agcam)").to_pylist() if r["sample_id"] == sample_id)
    for key in ("first_share", "second_share"):
        assert f"{100 * row[key]:.0f} % in it, of both" in page


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


def test_own_pictures(tmp_path: Path) -> None:
    picture = tmp_path / "star.png"
    dataset, model = open_dataset("embedded:shapes"), robustkit.load(MODEL)
    dataset.image(dataset.samples[8]).save(picture)
    words = ["cam", MODEL, str(picture), "--target", "star", "--target", "heart", "--cams", "agcam", "--save-maps"]
    done = CliRunner().invoke(cli, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    sheet, maps = tmp_path / "star-cam.png", tmp_path / "star-cam.npz"
    said, *files = done.stdout.splitlines()
    assert said.startswith(f"{picture}: predicts star ") and files == [str(sheet), str(maps)]
    assert "shapes-vit-standard: input: 64x64 pixels" in done.stderr and "⚑" not in done.stderr
    with Image.open(sheet) as opened:
        assert opened.width > 3 * 224
    pixels = to_pixels(dataset.image(dataset.samples[8]), model.identity.preprocessing)[None] / 255
    with np.load(maps) as kept:
        assert list(kept) == [f"{NAME}/agcam/{name}/{picture}" for name in ("star", "heart")]
        for name, heat in zip(("star", "heart"), kept.values(), strict=True):
            np.testing.assert_allclose(heat, cam.AGCAM(model)(pixels, CLASSES.index(name))[0], atol=1e-5)
    twice = robustkit.cam([MODEL, MODEL], picture, cams="agcam")
    assert list(twice.maps) == [f"{name}/agcam/predicted/{picture}" for name in (NAME, f"{NAME}-2")]
    for out, message in (
        (picture, f"--out {picture} is one of the input images; give another name"),
        (
            tmp_path / "maps.txt",
            f"--out {tmp_path / 'maps.txt'}: expected a folder, or a name ending in .png or .pdf or .svg",
        ),
    ):
        done = CliRunner().invoke(cli, [*words, "--out", str(out)])
        assert str(done.exception) == message
    assert {path.name for path in tmp_path.iterdir()} == {"star.png", "star-cam.png", "star-cam.npz"}
    with Image.open(sheet) as opened:
        about = opened.text  # type: ignore[attr-defined]
    assert about["Description"].startswith("zoo:shapes-vit-standard (SHA-256 ") and about["Title"] == NAME
    assert about["Description"].endswith("attention standard, mean 0.5 0.5 0.5, std 0.5 0.5 0.5; maps: agcam")


SEGMENTERS = ("zoo:shapes-segmenter-quest", "zoo:shapes-segmenter-standard")


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Path, Tensor]:
    """A picture of a star, and its pixels (1, 3, 64, 64)."""
    dataset = open_dataset("embedded:shapes")
    picture = tmp_path / "scene.png"
    dataset.image(dataset.samples[8]).save(picture)
    pixels = torch.from_numpy(np.array(dataset.image(dataset.samples[8]))).permute(2, 0, 1)[None] / 255
    return picture, pixels


def test_maps_of_segmenters_are_of_a_class_in_a_region(tmp_path: Path, scene: tuple[Path, Tensor]) -> None:
    picture, pixels = scene
    words = [
        "cam",
        *SEGMENTERS,
        str(picture),
        "--target",
        "predicted",
        "--target",
        "star",
        "--cams",
        "agcam,rise(masks=9)",
    ]
    done = CliRunner().invoke(cli, [*words, "--save-maps", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.stdout.splitlines()[0] == f"{picture}, shapes-segmenter-quest: predicts background 85 %, star 15 %"
    segmenter = robustkit.load_segmenter(SEGMENTERS[1])
    predicted = segmenter(pixels).argmax(dim=1)[0]
    with np.load(tmp_path / "scene-cam.npz") as kept:
        ways = [f"{map}/{name}" for name in ("background", "star") for map in ("agcam", "rise(masks=9)")]
        assert list(kept) == [f"{spec[4:]}/{way}/{picture}" for spec in SEGMENTERS for way in ways]
        for name, number in (("background", 0), ("star", CLASSES.index("star") + 1)):
            expected = cam.AGCAM(segmenter)(pixels, cam.SegmentTarget(number, predicted == number))[0]
            np.testing.assert_allclose(kept[f"shapes-segmenter-standard/agcam/{name}/{picture}"], expected, atol=1e-5)
    place = (predicted > 0).nonzero()[0].tolist()
    regions = {
        f"component={place[0]}+{place[1]}": cam.component(predicted > 0, *place),
        f"pixel={place[0]}+{place[1]}": torch.zeros(64, 64, dtype=torch.bool),
        "box=10+20+30+64": torch.zeros(64, 64, dtype=torch.bool),
    }
    regions[f"pixel={place[0]}+{place[1]}"][place[0], place[1]] = True
    regions["box=10+20+30+64"][10:30, 20:64] = True
    for over, region in regions.items():
        made = robustkit.cam(SEGMENTERS[1], str(picture), cams="gradient", targets="star", over=over)
        (row,) = made.rows
        assert (row.tiles[0].truth == region.numpy()).all() and row.tiles[0].heading == "gradient, star"
        assert made.lines == (f"outlined: where the class is explained ({over}); without masks no map has a score",)
    every = robustkit.cam(SEGMENTERS[1], pixels[0], cams="gradient", targets=["star", "all"]).rows[0].tiles
    assert [tile.heading for tile in every] == ["gradient, star", "gradient, background"]
    pixel = robustkit.cam(SEGMENTERS[1], pixels[0], cams="gradient", over=f"pixel={place[0]}+{place[1]}").rows[0]
    assert pixel.tiles[0].lines == ("star, 0.0 %",) and pixel.tiles[0].heading == "gradient"
    nowhere = robustkit.cam(SEGMENTERS[1], pixels[0], cams="gradient", targets="heart").rows[0].tiles[0]
    assert nowhere.lines == ("no heart there",) and not nowhere.map.any()
    in_memory = robustkit.cam(segmenter, pixels[0], cams="gradient", targets="star").rows[0].tiles[0]
    assert np.allclose(
        in_memory.map,
        robustkit.cam(SEGMENTERS[1], pixels[0], cams="gradient", targets=CLASSES.index("star") + 1)
        .rows[0]
        .tiles[0]
        .map,
    )
    usual = robustkit.cam(SEGMENTERS[1], pixels[0]).maps
    assert next(iter(usual)).startswith("shapes-segmenter-standard/agcam/background/")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--over", "pixel=64+0"), "--over pixel=64+0: {} has 64 rows and 64 columns; expected a region inside"),
        (("--over", "box=5+5+5+9"), "--over box=5+5+5+9: {} has 64 rows and 64 columns; expected a region inside"),
        (
            ("--over", "pixel=3"),
            "--over pixel=3: expected predicted, true, box, component=ROW+COLUMN, pixel=ROW+COLUMN or",
        ),
        (("--over", "road"), "--over road: expected predicted, true, box, component="),
        (
            ("--over", "true"),
            "--over true: a picture of your own has no mask; give predicted, or --data-dir and --masks",
        ),
        (("--data-dir", "embedded:shapes"), "give either pictures of your own, or --data-dir with a data set"),
        (("--over", "pixel=-1+2"), "--over pixel=-1+2: expected predicted"),
        (("--target", "square root"), "no class 'square root' among the model's 11; did you mean square, arrow?"),
        (("--target", "label"), "--target label: a picture of your own has no mask; name a class, or give predicted"),
        (("--target-text", "a dog"), "--target-text a dog: segmenters have no text; name a class with --target"),
        (("--crop-pct", "0.9"), "--crop-pct: an option of classifiers; these are segmenters"),
        (("zoo:shapes-vit-quest",), "zoo:shapes-vit-quest is no segmenter, and others are; draw the maps of one kind"),
        (("--window", "32"), "No such option '--window'"),
    ],
)
def test_what_does_not_fit_a_segmenter_is_one_line(
    scene: tuple[Path, Tensor], words: tuple[str, ...], said: str
) -> None:
    command = ["cam", SEGMENTERS[1], str(scene[0]), "--cams", "gradient", *words]
    done = CliRunner().invoke(cli, command)
    assert said.format(scene[0]) in str(done.exception) + done.stderr


def test_regions_are_of_segmenters_alone(tmp_path: Path, scene: tuple[Path, Tensor]) -> None:
    for words, said in (
        ((MODEL, str(scene[0])), "--over pixel=1+1: classifiers have one class for a whole picture; leave it out"),
        ((MODEL, "--data-dir", "embedded:shapes"), "--over pixel=1+1: of segmenters on pictures of your own; leave it"),
    ):
        done = CliRunner().invoke(cli, ["cam", *words, "--over", "pixel=1+1"])
        assert str(done.exception).startswith(said)
    wide = scene[0].with_name("wide.png")
    Image.open(scene[0]).resize((96, 96)).save(wide)
    done = CliRunner().invoke(cli, ["cam", SEGMENTERS[1], str(wide), "--cams", "chefer", "--out", str(tmp_path)])
    assert str(done.exception).startswith(
        "shapes-segmenter-standard: the map begins at the tokens of a region, and the"
    )


def test_figures_for_a_paper_of_a_folder_of_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    dataset = open_dataset("embedded:shapes")
    for place in (1, 0):
        dataset.image(dataset.samples[place]).save(folder / f"{place}.png")
    (folder / "notes.txt").write_text("no picture")
    words = ["cam", MODEL, str(folder), "--cams", "agcam,rollout", "--out", str(tmp_path)]
    done = CliRunner().invoke(cli, [*words, "--format", "svg"], catch_exceptions=False)
    zero, one, path = done.stdout.splitlines()
    assert zero.startswith(f"{folder / '0.png'}: predicts ") and one.startswith(str(folder / "1.png"))
    text = Path(path).read_text("utf-8")
    assert path == str(tmp_path / "0-cam.svg") and text.count(">AG-CAM<") == text.count(">rollout<") == 1
    assert "attention standard, mean 0.5" in text and "<dc:date" not in text and 'width="481.88' in text  # 170 mm
    again = CliRunner().invoke(cli, [*words, "--format", "svg"], catch_exceptions=False)
    assert again.exit_code == 0 and Path(path).read_text("utf-8") == text
    done = CliRunner().invoke(cli, [*words, "--size", "85", "--colormap", "viridis"], catch_exceptions=False)
    with Image.open(done.stdout.split()[-1]) as opened:
        assert abs(opened.width - 85 / 25.4 * 300) <= 1
    done = CliRunner().invoke(cli, [*words, "--format", "pdf", "--target", "star"], catch_exceptions=False)
    assert Path(done.stdout.split()[-1]).read_bytes().startswith(b"%PDF")
    drawn = robustkit.cam(MODEL, [folder / "0.png", folder / "1.png"], cams="agcam,rollout")
    figure = figure_of(drawn)
    (heading,) = (text for text in figure.texts if text.get_text() == "AG-CAM")  # above the first row alone
    boxes = [axes.get_position() for axes in figure.axes]
    first, second = boxes[:3], boxes[3:]
    assert all(box.y0 > 0 and box.y1 < 1 and box.x0 >= 0 and box.x1 <= 1.001 for box in boxes)
    assert heading.get_position()[1] > max(box.y1 for box in first)
    assert min(box.y0 for box in first) > max(box.y1 for box in second)  # with a line of text between
    assert drawn.save(tmp_path / "a.png", colormap="jet") and drawn.save(tmp_path / "b.png", alpha=0.1)
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()
    for given, said in (
        (["--prompt", "a star"], "--prompt: no such option; maps for a sentence are drawn with --target-text"),
        (["--target", "a red star"], "for a sentence and a zero-shot model give --target-text"),
        (["--format", "pdf", "--out", str(tmp_path / "a.png")], "expected a folder, or a name ending in .pdf"),
    ):
        assert said in str(CliRunner().invoke(cli, [*words, *given]).exception)
    assert tuple(COLORMAPS) == NAMES_OF_COLOURS


def test_maps_of_sentences_are_alone_unless_a_class_is_asked_for() -> None:
    asked: dict[str, Any] = {"cams": "agcam", "target_text": ["a red shape", "grass"]}
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    drawn = robustkit.cam("zoo:shapes-clip", image, **asked)
    names = ["shapes-clip/agcam/text: a red shape/00000", "shapes-clip/agcam/text: grass/00000"]
    assert list(drawn.maps) == names
    both = robustkit.cam("zoo:shapes-clip", image, targets="predicted", **asked)
    assert list(both.maps) == ["shapes-clip/agcam/predicted/00000", *names]
    for size, heading in ((85, "AG-CAM\n'a red shape'"), (40, "AG-CAM\n'a red sh…")):
        figure = figure_of(replace(drawn, look=replace(drawn.look, size=size)))
        assert figure.texts[1].get_text() == heading  # the image has none


SHAPES = [MODEL, "--data-dir", "embedded:shapes", "--limit", "12"]
ONLY = "only for a data set, but single images are given; leave out, or give --data-dir instead of the images"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["cat.jpg"],
            "robustkit cam IMAGE needs a checkpoint next to the image: robustkit cam cat.jpg model.pth",
        ),
        ([MODEL], "give pictures of your own next to the checkpoint, or --data-dir with a data set"),
        (
            [MODEL, "cat.jpg", "--data-dir", "x"],
            "give either pictures of your own, or --data-dir with a data set",
        ),
        ([MODEL, "gone.jpg"], "gone.jpg: cannot be read (No such file or directory); check its name"),
        (
            [*SHAPES, "--target", "strr"],
            "no class 'strr' among the model's 10; did you mean star?",
        ),
        (
            [*SHAPES, "--eps", "1/255"],
            "--eps: needs attacks, but --attacks is none; name some, or leave it out",
        ),
        (
            [*SHAPES, "--choose", "wrost"],
            "unknown choice 'wrost'; did you mean 'worst'? known: best, disagreement, random, worst; or class:NAME "
            "(--choose)",
        ),
        (
            [*SHAPES, "--choose", "disagreement"],
            "--choose disagreement: a single checkpoint cannot disagree with another; give another one, or --choose "
            "worst",
        ),
        (
            [*SHAPES, "--choose", "class:strr"],
            "--choose class:strr: no class 'strr' among the model's 10; did you mean star?",
        ),
        (
            [*SHAPES[:-1], "1", "--choose", "class:star"],
            "--choose class:star: none of the 1 samples belongs to that class; relax --limit or --ids",
        ),
        (
            [*SHAPES, "--show", "nope"],
            "--show nope: the name does not identify exactly one of the 12 samples of embedded:shapes; an id looks "
            "like "
            "'test/00075'",
        ),
        (
            [*SHAPES, "--cams", "random"],
            "--cams random: controls only, which ignore the image; add a method such as agcam, or leave the "
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
            "--cams agcam(threshold=0.3): a single image has neither label nor score; give methods alone, such as "
            "agcam, "
            "and the class with --target",
        ),
        (
            [MODEL, "cat.jpg", "--cams", "full"],
            "--cams full: controls only, which ignore the image; give a method such as agcam",
        ),
    ],
)
def test_commands_that_make_no_sense_compute_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustkit.pipeline.scheduler.run", lambda *_, **__: pytest.fail("an audit was made"))
    done = CliRunner().invoke(cli, ["cam", *words, "--out", str(tmp_path / "run.png")])
    assert str(done.exception) == message
    assert not list(tmp_path.iterdir())


def test_a_choice_by_score_needs_one(tmp_path: Path) -> None:
    for index in range(2):
        Image.new("RGB", (64, 64)).save(tmp_path / f"{index}.png")
    choice = Choice.of([MODEL], "agcam", "none")
    request = ClassificationRequest(checkpoints=[MODEL], data_dir=tmp_path, data={"layout": "unlabelled"})
    with pytest.raises(ProtocolError) as caught:
        choice.check(request)
    assert str(caught.value) == (
        "--choose worst: no map is scored, because objects are unknown and --faithfulness is none; give "
        "--boxes or "
        "--masks, or --choose random"
    )
    choice.check(replace(request, masks=tmp_path))
    Choice.of([MODEL], "agcam").check(request)
    Choice.of([MODEL], "agcam", "none", how="random").check(request)
    with pytest.raises(DataError, match=r"--choose class:star: .* has no labels; choose disagreement, worst, best"):
        Choice.of([MODEL], "agcam", how="class:star").check(request)


def test_the_help_says_what_faithfulness_is() -> None:
    text = " ".join(CliRunner().invoke(cli, ["cam", "--help"]).output.split())
    assert "Test maps on the model itself: ABPC; all adds ROAD, insertion, deletion and a randomised head." in text
    assert "default: disagreement, or worst for one checkpoint." in text


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


def test_controls_ask_the_model_once_for_what_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robustkit.evaluations.subject import ScoringModel

    asked, forward = [], ScoringModel.forward
    monkeypatch.setattr(
        ScoringModel, "forward", lambda lens, images: (asked.append(len(images)), forward(lens, images))[1]
    )
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "attacks": "none", "setup_check": False, "device": "cpu"}
    run = robustkit.audit(MODEL, **options, cams="agcam", limit=2, out=tmp_path / "run")
    # Clean 1, the map 1, ABPC of the map and two controls 18 each, what all begin with 1; what all end with once.
    assert sum(asked) == 2 * (1 + 1 + 3 * 18 + 1) + 1 + 2 + 2 * COPIES  # and both alone, and whether they are random
    assert run.table(NAME, "cam(full)")["abpc"].to_pylist() == [0, 0]
