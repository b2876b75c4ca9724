"""Whose box or mask it is, in whose pixels, what counts as object, and that a run never mixes two truths."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from PIL import Image, PngImagePlugin
from small_audit import audit

from robustkit.common.finding import Finding
from robustkit.common.preprocessing import Preprocessing
from robustkit.data import images
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.images import image_sizes, object_mask, read_image
from robustkit.errors import BadImageError, DataError, RunError
from robustkit.evaluations.condition import name_of
from robustkit.evaluations.family import family_of
from robustkit.evaluations.maps import METRICS, only_boxes
from robustkit.evaluations.maps.tables import map_scores
from robustkit.evaluations.maps.truth import Truth, open_truth
from robustkit.results.survey import survey
from robustkit.runs.manifest import BadImage

pytestmark = pytest.mark.usefixtures("pageless")

FRAME = Preprocessing((20, 20), crop_pct=1.0, crop_mode="squash")
HEADER = "image,synset,xmin,ymin,xmax,ymax\n"
OBJECT = "<object><name>a</name><bndbox><xmin>{}</xmin><ymin>0</ymin><xmax>{}</xmax><ymax>5</ymax></bndbox></object>"


def pictures(root: Path, *names: str, size: tuple[int, int] = (20, 20)) -> Dataset:
    for name in names:
        path = root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (90, 120, 40)).save(path)
    return open_dataset(root / "images", layout="folders" if "/" in names[0] else "unlabelled")


def truth_files(root: Path, kind: str, boxes: Mapping[str, tuple[int, int]]) -> dict[str, Path]:
    """The left and right side of a box for each name, as a CSV, XML files or masks."""
    place = root / kind
    if kind == "csv":
        place.write_text(HEADER + "".join(f"{name},a,{x0},0,{x1},5\n" for name, (x0, x1) in boxes.items()))
        return {"boxes": place}
    for name, (x0, x1) in boxes.items():
        path = (place / name).with_suffix({"xml": ".xml", "masks": ".png"}[kind])
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "xml":
            path.write_text(f"<annotation>{OBJECT.format(x0, x1)}</annotation>")
        else:
            grey = np.zeros((20, 20), np.uint8)
            grey[:5, x0:x1] = 255
            Image.fromarray(grey).save(path)
    return {"masks" if kind == "masks" else "boxes": place}


def located(truth: Truth) -> dict[str, tuple[float, float]]:
    """The left and right side of what is known of each sample."""
    found = {sample.id: truth.locate(sample, FRAME) for sample in truth.dataset.samples}
    return {name: (one.boxes[0, 0].item(), one.boxes[0, 2].item()) for name, one in found.items() if one}


@pytest.mark.parametrize("kind", ["csv", "xml", "masks"])
@pytest.mark.parametrize(
    ("samples", "entries", "expected"),
    [
        # One path is of one sample, whatever its stem.
        (["cat/001.png", "dog/001.png"], {"cat/001.png": (1, 4)}, {"cat/001.png": (1, 4)}),
        (
            ["cat/001.png", "dog/001.png"],
            {"dog/001.png": (5, 9), "cat/001.png": (1, 4)},
            {"cat/001.png": (1, 4), "dog/001.png": (5, 9)},
        ),
        (
            ["cat/001.png", "dog/001.png"],
            {"val/dog/001.png": (5, 9), "val/cat/001.png": (1, 4)},
            {"cat/001.png": (1, 4), "dog/001.png": (5, 9)},
        ),
        (["001.png", "cat/001.png"], {"001.png": (1, 4)}, {"001.png": (1, 4)}),
        (["cat/001.png", "dog/002.png"], {"cat/001.png": (1, 4), "x/001.png": (5, 9)}, {"cat/001.png": (1, 4)}),
        # A stem that is unique on both sides is enough.
        (
            ["n01440764/ILSVRC2012_val_00000293.JPEG", "n01443537/ILSVRC2012_val_00000236.JPEG"],
            {"ILSVRC2012_val_00000236.JPEG": (1, 4), "ILSVRC2012_val_00000001.JPEG": (0, 2)},
            {"n01443537/ILSVRC2012_val_00000236.JPEG": (1, 4)},
        ),
        (["cat/001.png", "dog/002.png"], {"masks/002.png": (1, 4)}, {"dog/002.png": (1, 4)}),
        (["001.png"], {"val/001.png": (1, 4)}, {"001.png": (1, 4)}),
    ],
)
def test_each_sample_has_its_own(
    tmp_path: Path,
    kind: str,
    samples: list[str],
    entries: dict[str, tuple[int, int]],
    expected: dict[str, tuple[int, int]],
) -> None:
    dataset = pictures(tmp_path, *samples)
    truth = open_truth(dataset, **truth_files(tmp_path, kind, entries))
    assert located(truth) == expected
    assert f"of {len(expected)} of {len(samples)} images" in truth.notes[0]


@pytest.mark.parametrize("kind", ["csv", "xml", "masks"])
def test_the_truth_of_an_image_left_out_is_not_given_to_its_namesake(tmp_path: Path, kind: str) -> None:
    whole = pictures(tmp_path, "cat/001.png", "cat/002.png", "dog/001.png")
    files = truth_files(tmp_path, kind, {"dog/001.png": (5, 9), "cat/002.png": (1, 4)})
    assert located(open_truth(whole.select(ids=["cat/001.png", "cat/002.png"]), **files)) == {"cat/002.png": (1, 4)}


def test_folders_of_classes_tell_nothing_of_images_without_folders(tmp_path: Path) -> None:
    dataset = replace(pictures(tmp_path, "001.png"), class_names=("cat", "dog"))
    files = truth_files(tmp_path, "masks", {"cat/001.png": (1, 4)})
    assert located(open_truth(dataset, **files)) == {"001.png": (1, 4)}


def test_a_box_is_held_against_its_own_image(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/001.png")
    dataset = pictures(tmp_path, "dog/001.png", "dog/broken.png", size=(30, 20))
    (tmp_path / "images" / "dog" / "broken.png").write_bytes(b"no image")
    rows = {"dog/001.png": (25, 30), "dog/broken.png": (1, 99), "cat/001.png": (5, 20)}
    assert set(open_truth(dataset, **truth_files(tmp_path, "csv", rows)).boxes) == set(rows)
    files = truth_files(tmp_path, "csv", rows | {"cat/001.png": (5, 21)})
    with pytest.raises(DataError) as refused:
        open_truth(dataset, **files)
    assert str(refused.value) == (
        f"{tmp_path / 'csv'}, line 4: box (5, 0, 21, 5) extends beyond the image of 20x20; correct it or drop it"
    )


@pytest.mark.parametrize("kind", ["csv", "xml", "masks"])
@pytest.mark.parametrize(
    ("samples", "entries", "message"),
    [
        (
            ["cat/001.png", "dog/001.png"],
            ["001.png"],
            "{001} matches both cat/001.png and dog/001.png; include the folder of its image in its name, "
            "such as "
            "cat/001",
        ),
        (
            ["cat/001.png", "dog/001.png"],
            ["cat/001.png", "001.png"],
            "{001} matches both cat/001.png and dog/001.png; include the folder of its image in its name, "
            "such as "
            "cat/001",
        ),
        (
            ["cat/001.png", "dog/002.png"],
            ["a/001.png", "b/001.png"],
            "{a/001} and {b/001} both match cat/001.png; keep one, or rename it to cat/001",
        ),
        (
            ["cat/001.bmp", "cat/001.png"],
            ["cat/001.png"],
            "{cat/001} matches both cat/001.bmp and cat/001.png; rename one of them",
        ),
        (["cat/001.png", "dog/001.png"], ["002.png"], "{what} of none of the 2 images; expected names such as cat/001"),
    ],
)
def test_a_name_that_may_mean_two_is_refused(
    tmp_path: Path, kind: str, samples: list[str], entries: list[str], message: str
) -> None:
    dataset = pictures(tmp_path, *samples)
    files = truth_files(tmp_path, kind, dict.fromkeys(entries, (1, 4)))
    suffix = {"csv": "", "xml": ".xml", "masks": ".png"}[kind]
    shown = {name.removesuffix(".png"): name.removesuffix(".png") + suffix for name in entries}
    for name, as_shown in shown.items():
        message = message.replace(f"{{{name}}}", as_shown)
    with pytest.raises(DataError) as refused:
        open_truth(dataset, **files)
    assert str(refused.value) == f"{tmp_path / kind}: {message.replace('{what}', next(iter(files)))}"


def test_two_masks_of_one_path_are_refused(tmp_path: Path) -> None:
    dataset = pictures(tmp_path, "cat/001.png")
    files = truth_files(tmp_path, "masks", {"cat/001.png": (1, 4)})
    Image.new("L", (20, 20)).save(tmp_path / "masks" / "cat" / "001.bmp")
    with pytest.raises(DataError) as refused:
        open_truth(dataset, **files)
    where = tmp_path / "masks"
    assert str(refused.value) == f"{where}: cat/001.png and cat/001.bmp are masks of the same image; keep one"


@pytest.mark.parametrize("kind", ["xml", "masks"])
def test_the_digest_says_whose_each_file_is(tmp_path: Path, kind: str) -> None:
    digests = []
    for name in ("cat/001.png", "dog/001.png"):
        dataset = pictures(tmp_path, "cat/001.png", "dog/001.png")
        digests.append(open_truth(dataset, **truth_files(tmp_path / name[:3], kind, {name: (1, 4)})).digest)
    assert len(set(digests)) == 2


# the pixels they are in


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("<size><width>100</width><height>100</height></size>", "the annotation is of 100x100 pixels"),
        ("<size><width>30</width><height>20</height></size>", "the annotation is of 30x20 pixels"),
        ("<size><width>20</width><height>20</height></size>", "the annotation is of 20x20 pixels"),
        ("<size><width>20</width><height>30</height></size>", ""),
        ("<size><width>0</width><height>0</height></size>", ""),
        ("<size><width>0</width><height>30</height></size>", ""),
        ("<size><width>?</width><height>30</height></size>", ""),
        ("<size/>", ""),
        ("", ""),
    ],
)
def test_an_annotation_of_another_size_is_refused(tmp_path: Path, size: str, message: str) -> None:
    dataset = pictures(tmp_path, "cat/001.png", size=(20, 30))
    (tmp_path / "xml").mkdir()
    (tmp_path / "xml" / "001.xml").write_text(f"<annotation>{size}{OBJECT.format(1, 4)}</annotation>")
    if not message:
        assert located(open_truth(dataset, boxes=tmp_path / "xml")) == {"cat/001.png": (1, 4)}
        return
    with pytest.raises(DataError) as refused:
        open_truth(dataset, boxes=tmp_path / "xml")
    where = f"{tmp_path / 'xml'}: {message.replace('annotation', 'annotation of cat/001.png')}"
    assert str(refused.value) == f"{where}, the image of 20x30; expected the same, or the same proportions"


def test_a_mask_of_another_size_is_counted_among_the_unreadable_images(place: Path, tmp_path: Path) -> None:
    for index in range(2):
        Image.new("L", (8, 8) if index else (9, 8), 255).save(tmp_path / f"{index:02d}.png")
    run = audit(
        place,
        tmp_path / "run",
        attacks="none",
        cams="grad-cam(faithfulness=none)",
        masks=tmp_path,
        data={"layout": "folders"},
    )
    error = "a/00.png: the mask is of 9x8 pixels, the image of 8x8; expected the same"
    assert run.manifest.bad_images == (BadImage(sample_id="a/00.png", error=error),)
    scores = run.table("net", "cam(grad-cam,faithfulness=none)")
    assert scores["mask_iou"].is_valid().to_pylist() == [index == 1 for index in ids(scores)]


def ids(table: Any) -> list[int]:
    return [int(name[2:4]) for name in table["sample_id"].to_pylist()]


def turned(kind: str, orientation: int, late: bool = False) -> bytes:
    """A picture of 12x20 in the file, whose EXIF says how to turn it; late: after the pixels of a PNG."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 12, 3), np.uint8))
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    if not late:
        picture.save(buffer, kind, exif=exif)
        return buffer.getvalue()
    picture.save(buffer, "PNG")
    end, chunk = io.BytesIO(), exif.tobytes().removeprefix(b"Exif\0\0")
    PngImagePlugin.putchunk(end, b"eXIf", chunk)
    content = buffer.getvalue()
    return content[:-12] + end.getvalue() + content[-12:]


@pytest.mark.parametrize(
    ("kind", "late"), [("JPEG", False), ("PNG", False), ("PNG", True), ("WEBP", False), ("TIFF", False)]
)
def test_the_size_is_of_the_upright_image(kind: str, late: bool) -> None:
    for orientation in range(1, 9):
        data = turned(kind, orientation, late)
        width, height = read_image(data, "a").size
        assert (width, height) == ((20, 12) if orientation > 4 else (12, 20)), orientation
        assert (sizes := image_sizes(data)) and sizes.upright == (width, height), orientation


def test_the_size_of_a_plain_png_is_had_without_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, orientated = encoded(Image.new("RGB", (12, 20))), turned("PNG", 6)
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", None)
    assert (sizes := image_sizes(plain)) and sizes.upright == (12, 20)
    monkeypatch.setattr(images, "MAX_PIXELS", 239)  # nor those of a picture too large to be read
    assert image_sizes(orientated) is None
    assert image_sizes(b"no image") is None


@pytest.mark.parametrize("kind", ["csv", "xml", "masks"])
def test_truth_is_in_the_pixels_of_the_upright_image(tmp_path: Path, kind: str) -> None:
    """The file holds 12x20, the image is 20x12; a box from 15 to 20 is inside the latter only."""
    pictures(tmp_path, "cat/001.jpg")
    (tmp_path / "images" / "cat" / "001.jpg").write_bytes(turned("JPEG", 6))
    files = truth_files(tmp_path, kind, {"001.jpg": (15, 20)})
    if kind == "xml":
        size = "<size><width>20</width><height>12</height></size>"
        (tmp_path / "xml" / "001.xml").write_text(f"<annotation>{size}{OBJECT.format(15, 20)}</annotation>")
    if kind == "masks":
        grey = np.zeros((12, 20), np.uint8)
        grey[:5, 15:20] = 255
        Image.fromarray(grey).save(tmp_path / "masks" / "001.png")
    truth = open_truth(open_dataset(tmp_path / "images"), **files)
    one = truth.locate(truth.dataset.samples[0], FRAME)
    assert one is not None
    # 5 rows of 12 are 8 1/3 of 20: a box is widened, of a mask the pixel under the centre counts.
    assert one.boxes.tolist() == [[15, 0, 20, 8 if kind == "masks" else 9]]
    assert one.mask[0].tolist() == [False] * 15 + [True] * 5


# what counts as object

SHAPE = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", palette: list[int] | None = None) -> bytes:
    buffer = io.BytesIO()
    if palette:
        image = image.convert("P") if image.mode != "P" else image
        image.putpalette(palette)
    image.save(buffer, kind)
    return buffer.getvalue()


def indexed(indices: np.ndarray[Any, Any]) -> Image.Image:
    image = Image.new("P", indices.shape[::-1])
    image.putdata(indices.ravel().tolist())
    return image


RGB = Image.fromarray(np.repeat(SHAPE[..., None] * 255, 3, axis=2))
VOC = [0, 0, 0, 128, 0, 0, 0, 128, 0, 1, 1, 1]
ENCODINGS = {
    "1 bit": encoded(Image.fromarray(SHAPE * 255).convert("1")),
    "0 and 255": encoded(Image.fromarray(SHAPE * 255)),
    "0 and 1": encoded(Image.fromarray(SHAPE)),
    "127 and 128": encoded(Image.fromarray(SHAPE + 127)),
    "soft, with a 1": encoded(Image.fromarray(SHAPE * 199 + np.eye(2, 4, dtype=np.uint8))),
    "RGB": encoded(RGB),
    "RGBA of 0 and 1": encoded(Image.fromarray(np.dstack([SHAPE] * 3 + [SHAPE * 0 + 255]))),
    "palette": encoded(indexed(SHAPE), palette=VOC),
    "palette, second class": encoded(indexed(SHAPE * 2), palette=VOC),
    "palette, dark third class": encoded(indexed(SHAPE * 3), palette=VOC),
    "palette, grey": encoded(indexed(SHAPE * 255), palette=[grey for grey in range(256) for _ in range(3)]),
    "palette, white first": encoded(indexed(1 - SHAPE), palette=[255, 255, 255, 0, 0, 0]),
    "GIF": encoded(indexed(SHAPE), "GIF", palette=VOC),
    "16 bits, 0 and 1": encoded(Image.fromarray(SHAPE.astype(np.uint16))),
    "16 bits, 0 and 255": encoded(Image.fromarray(SHAPE.astype(np.uint16) * 255)),
    "16 bits, soft": encoded(Image.fromarray(SHAPE.astype(np.uint16) * 20000 + 20000)),
    "16 bits, 0 and 65535": encoded(Image.fromarray(SHAPE.astype(np.uint16) * 65535)),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_binary_masks_in_the_usual_encodings(encoding: str) -> None:
    assert object_mask(ENCODINGS[encoding], "a").pixels.tolist() == (SHAPE == 1).tolist()


@pytest.mark.parametrize(
    "pixels", [SHAPE * 0, SHAPE * 0 + 1, SHAPE * 127, SHAPE * 0 + 255], ids=["0", "1", "127", "255"]
)
def test_masks_of_one_or_two_greys(pixels: np.ndarray[Any, Any]) -> None:
    assert object_mask(encoded(Image.fromarray(pixels)), "a").pixels.tolist() == (pixels > 0).tolist()


def test_a_palette_is_turned_as_grey_is() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for image in (indexed(SHAPE), Image.fromarray(SHAPE), Image.fromarray(SHAPE.astype(np.uint16))):
        if image.mode == "P":
            image.putpalette(VOC)
        buffer = io.BytesIO()
        image.save(buffer, "PNG", exif=exif)
        assert object_mask(buffer.getvalue(), "a").pixels.tolist() == np.rot90(SHAPE == 1, -1).tolist()


def test_a_mask_that_is_cut_off_is_named() -> None:
    with pytest.raises(BadImageError, match=r"^masks/a\.png: "):
        object_mask(encoded(indexed(np.tile(SHAPE, (90, 90))), palette=VOC)[:-40], "masks/a.png")


def test_masks_that_are_all_empty_are_refused_and_some_are_told(tmp_path: Path) -> None:
    dataset = pictures(tmp_path, "cat/001.png", "dog/002.png")
    files = truth_files(tmp_path, "masks", {"001.png": (0, 0), "002.png": (0, 0)})
    where = files["masks"]
    with pytest.raises(DataError) as refused:
        open_truth(dataset, **files)
    assert str(refused.value) == (
        f"{where}: none of the 2 masks has an object; expected 0 and 255, 0 and 1, or a palette whose first "
        f"colour is the background"
    )
    truth_files(tmp_path, "masks", {"002.png": (1, 4)})
    assert open_truth(dataset, **files).notes == (f"masks of 2 of 2 images from {where}, 1 of them without an object",)
    (where / "001.png").write_bytes(b"no image")
    truth = open_truth(dataset, **files)
    assert truth.notes == (f"masks of 2 of 2 images from {where}",)
    with pytest.raises(BadImageError, match=r"001\.png: not an image of a supported format"):
        located(truth)


# one truth in a run

OPTIONS: dict[str, Any] = {"attacks": "none", "limit": 4}
MAPS: dict[str, Any] = OPTIONS | {"cams": "grad-cam", "faithfulness": "none"}


def boxes_of(root: Path, place: Path, side: int) -> Path:
    names = sorted(path.name for path in (place / "images").rglob("*.png"))
    (root / f"{side}.csv").write_text(HEADER + "".join(f"{name},a,0,0,{side},8\n" for name in names))
    return root / f"{side}.csv"


def test_a_run_with_maps_keeps_to_its_truth(place: Path, tmp_path: Path) -> None:
    boxes, others = (boxes_of(tmp_path, place, side) for side in (4, 5))
    data = open_dataset(place / "images")
    first, second = (open_truth(data, boxes=table).digest for table in (boxes, others))
    bare, scored = tmp_path / "bare", tmp_path / "scored"
    audit(place, bare, **MAPS)
    audit(place, scored, **MAPS, boxes=boxes)
    for run, given, there, here in (
        (bare, {"boxes": boxes}, "none", first),
        (bare, {"boxes": boxes, "cams": "gradient(threshold=0.3)"}, "none", first),
        (scored, {}, first, "none"),
        (scored, {"cams": "gradient(threshold=0.3)"}, first, "none"),
        (scored, {"boxes": others}, first, second),
    ):
        before = (run / "run.json").read_bytes()
        with pytest.raises(RunError) as refused:
            audit(place, run, **MAPS | given)
        assert str(refused.value) == (
            f"{run} contains another run: the digest of boxes or masks is {there} there and {here} here; use another "
            "--out, or delete the folder"
        )
        assert (run / "run.json").read_bytes() == before
    audit(place, bare, **MAPS)
    audit(place, scored, **OPTIONS)  # no maps are asked for, none can be mixed
    more = audit(place, scored, **MAPS | {"cams": "gradient", "boxes": boxes})
    assert more.table("net", "cam(gradient,faithfulness=none)")["mask_iou"].null_count == 0


def test_maps_may_join_a_run_that_has_none(place: Path, tmp_path: Path) -> None:
    boxes = boxes_of(tmp_path, place, 4)
    run = audit(place, tmp_path / "run", **OPTIONS, boxes=boxes)
    assert run.manifest.corrupted.digests == {}
    audit(place, run.path, **MAPS, boxes=boxes)
    old = audit(place, tmp_path / "old", **MAPS)
    assert set(old.manifest.corrupted.digests.values()) == {"none"}
    there = old.manifest
    old.write_manifest(structs.replace(there, corrupted=structs.replace(there.corrupted, digests={})))
    with pytest.raises(RunError, match="the digest of boxes or masks is none there and "):
        audit(place, old.path, **MAPS, boxes=boxes)
    again = audit(place, old.path, **MAPS)
    assert set(again.manifest.corrupted.digests.values()) == {"none"}


# boxes that may be something else, and masks with void


def one_image(root: Path, size: tuple[int, int] = (100, 60), orientation: int = 1) -> Dataset:
    place = root / "images" / "a.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size).save(place, exif=exif)
    return open_dataset(root / "images", layout="unlabelled")


def table(root: Path, *rows: str, columns: str = "xmin,ymin,xmax,ymax") -> Path:
    (root / "boxes.csv").write_text(f"image,synset,{columns}\n" + "".join(f"a.png,n,{row}\n" for row in rows))
    return root / "boxes.csv"


@pytest.mark.parametrize("row", ["0.1,0.2,0.5,0.9", "0,0,1,1", "0.0,0.5,1.0,0.75"])
def test_boxes_as_shares_of_the_sides_are_refused(tmp_path: Path, row: str) -> None:
    with pytest.raises(DataError, match="lies within one pixel; expected pixels, not fractions of the sides"):
        open_truth(one_image(tmp_path), table(tmp_path, "10,10,90,50", row))


def test_columns_say_what_the_numbers_of_a_box_are(tmp_path: Path) -> None:
    dataset = one_image(tmp_path)
    assumed = "boxes were assumed to be xmin, ymin, xmax, ymax; each would also fit its image"
    sides = open_truth(dataset, table(tmp_path, "10,5,30,20", columns="x,y,width,height"))
    assert sides.boxes["a.png"].boxes == ((10, 5, 40, 25),) and len(sides.notes) == 1
    edges = open_truth(dataset, table(tmp_path, "10,5,30,20", columns="left,top,right,bottom"))
    assert edges.boxes["a.png"].boxes == ((10, 5, 30, 20),) and len(edges.notes) == 1
    either = open_truth(dataset, table(tmp_path, "10,5,30,20", "0,0,40,30"))
    finding = Finding.parse(either.notes[1])
    assert finding and finding.code == "maps/boxes-assumed" and finding.text.startswith(assumed)
    for row in ("60,5,90,20", "0,0,30,20"):  # no width, or the same either way
        assert len(open_truth(dataset, table(tmp_path, row)).notes) == 1
    with pytest.raises(DataError, match=r"line 2: box \(60, 20, 30, 25\) is empty"):
        open_truth(dataset, table(tmp_path, "60,20,30,25"))
    with pytest.raises(DataError, match=r"line 2: box \(60, 20, 50, 5\) extends beyond"):
        open_truth(dataset, table(tmp_path, "60,20,50,5", columns="x,y,width,height"))


def test_a_finding_on_boxes_is_on_the_scores_of_maps_alone(place: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in (place / "images").rglob("*.png"))
    (tmp_path / "b.csv").write_text(HEADER + "".join(f"{name},a,1,1,4,4\n" for name in names))
    run = audit(place, tmp_path / "run", **MAPS, boxes=tmp_path / "b.csv")
    raised = {
        row.condition.partition("(")[0]: any(each.code == "maps/boxes-assumed" for each in row.findings)
        for row in run.summary()
    }
    assert raised == {"clean": False, "cam": True}
    again = audit(place, run.path, **OPTIONS)  # goes on without boxes, and knows them still
    assert any("boxes were assumed" in note for note in again.manifest.data.notes)


@pytest.mark.parametrize("given", ["boxes", "masks"])
def test_scores_of_maps_are_called_by_what_they_are_against(place: Path, tmp_path: Path, given: str) -> None:
    names = sorted(path.name for path in (place / "images").rglob("*.png"))
    files = (
        truth_files(tmp_path, "csv", dict.fromkeys(names, (2, 7))) if given == "boxes" else {"masks": tmp_path / "m"}
    )
    for name in names if given == "masks" else ():
        (tmp_path / "m").mkdir(exist_ok=True)
        Image.fromarray(np.repeat([[255, 0]], 4, axis=1).repeat(8, axis=0).astype(np.uint8)).save(tmp_path / "m" / name)
    run = audit(place, tmp_path / "run", **MAPS, **files)
    run = audit(place, run.path, **OPTIONS) if given == "boxes" else run  # which says nothing of boxes
    results, condition = survey(run), "cam(grad-cam,faithfulness=none,mode=mask)"
    every = [
        name_of(condition, "table", run.manifest),
        *(table.title for table in family_of("cam").presenter.tables(results)),
    ]
    every += [entry.score for entry in map_scores(results, only_boxes(run.manifest))]
    every += [row.label for row in family_of("cam").presenter.brief([(condition, "cam_iou")], run.manifest, METRICS[0])]
    text = "\n".join(
        [
            *every,
            *(
                clause.text
                for clause in family_of("cam").presenter.clauses(results.cells["net"], run.manifest, METRICS[0])
            ),
        ]
    )
    of_masks = [word in text for word in ("IoU of pixels", "Grad-CAM, masks", "aps, mask mode")]
    of_boxes = [
        word in text for word in ("IoU with boxes", "Grad-CAM, pixels against boxes", "aps, pixels against boxes")
    ]
    assert of_masks == [given == "masks"] * 3 and of_boxes == [given == "boxes"] * 3


XML = (
    "<annotation>{size}<object><name>n</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
    "</bndbox>{more}</object></annotation>"
)


def xml(root: Path, *corners: int, size: tuple[int, int] | None = None, more: str = "") -> Path:
    (root / "xml").mkdir(exist_ok=True)
    stated = "" if size is None else "<size><width>{}</width><height>{}</height></size>".format(*size)
    (root / "xml" / "a.xml").write_text(XML.format(*corners, size=stated, more=more))
    return root / "xml"


def test_boxes_of_xml_follow_the_image_where_its_proportions_are_those_stated(tmp_path: Path) -> None:
    dataset = one_image(tmp_path)
    for size, scale in (((200, 120), 0.5), ((50, 30), 2), ((500, 301), 0.2)):
        truth = open_truth(dataset, xml(tmp_path, 10, 10, 45, 30, size=size))
        assert truth.boxes["a.png"].boxes[0] == pytest.approx(
            [10 * scale, 10 * scale, 45 * scale, 30 * scale], rel=0.01
        )
        assert "boxes of 1 images are scaled from the size that their files state" in truth.notes
    with pytest.raises(DataError, match="of 60x100 pixels, the image of 100x60; expected the same, or the same propor"):
        open_truth(dataset, xml(tmp_path, 10, 10, 45, 30, size=(60, 100)))
    with pytest.raises(DataError, match="a box extends beyond the image of 100x60"):
        open_truth(dataset, xml(tmp_path, 10, 10, 145, 30))


@pytest.mark.parametrize(
    "more",
    [
        "<bndbox><xmin>50</xmin><ymin>2</ymin><xmax>70</xmax><ymax>40</ymax></bndbox>",
        "<bndbox><xmax>70</xmax></bndbox>",
        "<bndbox/>",
    ],
)
def test_an_object_has_one_box(tmp_path: Path, more: str) -> None:
    with pytest.raises(DataError, match=r"a\.xml, line 1: a second <\w+> in one <object>; give one each"):
        open_truth(one_image(tmp_path), xml(tmp_path, 1, 2, 30, 40, more=more))
    part = "<part><name>head</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></part>"
    assert len(open_truth(one_image(tmp_path), xml(tmp_path, 1, 2, 30, 40, more=part)).boxes["a.png"].boxes) == 1


def test_boxes_of_an_image_that_exif_data_turn_are_of_the_pixels_that_they_fit(tmp_path: Path) -> None:
    """100x60 as it is stored, 60x100 upright: (x, y) is at (60 - y, x)."""
    dataset = one_image(tmp_path, orientation=6)
    stored = open_truth(dataset, table(tmp_path, "70,10,90,50"))
    assert stored.boxes["a.png"].boxes == ((10, 70, 50, 90),) and "of stored pixels" in stored.notes[1]
    upright = open_truth(dataset, table(tmp_path, "10,70,50,90"))
    assert upright.boxes["a.png"].boxes == ((10, 70, 50, 90),) and len(upright.notes) == 1
    with pytest.raises(
        DataError, match=r"EXIF data rotate a\.png, and it is unclear whether the boxes match the stored or"
    ):
        open_truth(dataset, table(tmp_path, "10,10,50,50"))
    sized = open_truth(dataset, xml(tmp_path, 10, 20, 50, 50, size=(200, 120)))  # stored, and twice as large
    assert sized.boxes["a.png"].boxes == ((35, 5, 50, 25),)
    for size, turn in (((100, 60), 3), ((60, 60), 6)):  # the size tells nothing
        dataset = one_image(tmp_path, size, turn)
        for boxes in (table(tmp_path, "10,10,50,50"), xml(tmp_path, 10, 10, 50, 50, size=size)):
            with pytest.raises(DataError, match=r"EXIF data rotate a\.png"):
                open_truth(dataset, boxes)
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.new("L", size, 255).save(tmp_path / "masks" / "a.png")
        with pytest.raises(BadImageError, match="EXIF data rotate the image, and it is unclear whether the mask"):
            located(open_truth(dataset, masks=tmp_path / "masks"))


def test_one_decided_image_tells_of_which_pixels_the_other_boxes_are(tmp_path: Path) -> None:
    one_image(tmp_path, orientation=6)
    (tmp_path / "images" / "a.png").rename(tmp_path / "images" / "b.png")
    dataset = one_image(tmp_path, orientation=6)
    file = table(tmp_path, "10,10,50,50")
    file.write_text(file.read_text() + "b.png,n,70,10,90,50\n")
    assert open_truth(dataset, file).boxes["a.png"].boxes == ((10, 10, 50, 50),)
    file.write_text(file.read_text().replace("a.png,n,10,10,50,50", "a.png,n,10,20,30,50"))
    assert open_truth(dataset, file).boxes["a.png"].boxes == ((10, 10, 40, 30),)
    file.write_text(file.read_text().replace("b.png,n,70,10,90,50", "b.png,n,20,10,30,50"))
    with pytest.raises(DataError, match=r"EXIF data rotate a\.png and 1 more"):
        open_truth(dataset, file)


RING = np.kron([[0, 255, 255, 255], [0, 255, 15, 255], [0, 255, 255, 255]], np.ones((4, 4))).astype(np.uint8)
PALETTE = [0, 0, 0, *[192, 128, 128] * 254, 224, 224, 192]


def as_palette(numbers: np.ndarray[Any, Any]) -> Image.Image:
    image = Image.frombytes("P", numbers.shape[::-1], numbers.tobytes())
    image.putpalette(PALETTE)
    return image


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(RING),
        as_palette(RING),
        Image.fromarray(RING.astype(np.uint16)),
        Image.fromarray(np.where(RING == 255, 65535, RING.astype(int) * 100).astype(np.uint16)),
        Image.fromarray(np.repeat(RING[..., None], 3, axis=2)),
        as_palette(np.where(RING == 15, 200, RING).astype(np.uint8)),
    ],
    ids=["grey", "palette", "16 bits", "16 bits, 65535", "equal channels", "a large index"],
)
def test_255_next_to_labels_is_void(image: Image.Image) -> None:
    assert object_mask(encoded(image), "a").pixels.tolist() == (RING == 15).tolist()


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(np.where(RING == 15, 128, RING).astype(np.uint8)),  # a trimap, or soft?
        Image.fromarray(np.where(RING == 0, 2, RING // 255 + 1).astype(np.uint8)),  # no background
        Image.fromarray(np.linspace(0, 120, 96).reshape(8, 12).astype(np.uint8)),  # dim
        Image.fromarray(np.dstack([RING * 0, RING, RING * 0])),
        Image.fromarray(np.dstack([RING, RING, RING, RING])),
        Image.fromarray(RING.astype(np.float32) / 255),
    ],
    ids=["three greys", "no 0", "dim", "colours", "alpha", "floats"],
)
def test_masks_that_may_mean_several_things_are_refused(image: Image.Image) -> None:
    with pytest.raises(BadImageError, match=r"^a: a mask of .*expected (0 for the background|one number per pixel)"):
        object_mask(encoded(image, "TIFF" if image.mode == "F" else "PNG"), "a")


def test_void_is_void_in_every_mask_of_a_set_and_said(tmp_path: Path) -> None:
    dataset = pictures(tmp_path, "a.png", "b.png", size=RING.shape[::-1])
    (tmp_path / "m").mkdir()
    Image.fromarray(RING).save(tmp_path / "m" / "a.png")
    Image.fromarray(np.where(RING == 15, 0, RING)).save(tmp_path / "m" / "b.png")  # only the void is left
    truth = open_truth(dataset, masks=tmp_path / "m")
    assert truth.notes[0].endswith(", 1 of them without an object")
    assert truth.notes[1] == "numbers that count as object: 15; 255 is void and does not"
    frame = replace(FRAME, input_size=RING.shape)
    first, second = (truth.locate(sample, frame) for sample in truth.dataset.samples)
    assert first is not None and second is not None
    assert first.mask.tolist() == (RING == 15).tolist() and not second.mask.any()


def test_a_run_without_a_readable_truth_has_no_scores_of_maps(place: Path, tmp_path: Path) -> None:
    for path in (place / "images").rglob("*.png"):
        Image.new("L", (9, 8), 255).save(tmp_path / path.name)
    rows = audit(place, tmp_path / "run", **MAPS, masks=tmp_path).summary()
    assert not any(each.condition.startswith("cam(") for each in rows)
