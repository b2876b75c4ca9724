"""Label maps: the numbers as files store them, which of them count, whose mask it is, and what is refused."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places import SHARED

from robustkit.data import ade20k, shapes
from robustkit.data.dataset import Sample
from robustkit.data.images import read_image, read_index_mask
from robustkit.data.scenes import LabelledScenes, open_scenes
from robustkit.errors import BadImageError, DataError

Pixels = np.ndarray[Any, Any]
NUMBERS = np.array([[0, 1, 2, 3], [3, 0, 0, 1]], np.uint8)
PALETTE = [255, 255, 255, 0, 0, 0, 9, 200, 9, 1, 1, 1]
CAMVID = SHARED / "data" / "camvid"


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def indexed(numbers: Pixels) -> Image.Image:
    image = Image.fromarray(numbers).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette(PALETTE)
    return image


def packed(numbers: Pixels, depth: int) -> list[bytes]:
    """Rows of numbers of `depth` bits each."""
    text = [f"{int(''.join(f'{n:0{depth}b}' for n in row).ljust(8, '0'), 2):x}" for row in numbers]
    return [bytes.fromhex(row.zfill(len(row) + len(row) % 2)) for row in text]


def grey_png(numbers: Pixels, depth: int) -> bytes:
    height, width = numbers.shape
    rows = b"".join(b"\0" + row for row in packed(numbers, depth))
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def grey_tiff(numbers: Pixels, depth: int, photometric: int = 1) -> bytes:
    height, width = numbers.shape
    rows = numbers.tobytes() if depth == 8 else b"".join(packed(numbers, depth))
    tags = {256: width, 257: height, 258: depth, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height, 279: len(rows)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(rows)) + rows + directory


ENCODINGS = {
    "palette": encoded(indexed(NUMBERS)),
    "palette of 2 bits": encoded(indexed(NUMBERS), bits=2),
    "palette with transparency": encoded(indexed(NUMBERS), transparency=0),
    "GIF": encoded(indexed(NUMBERS), "GIF"),
    "palette TIFF": encoded(indexed(NUMBERS), "TIFF"),
    "grey": encoded(Image.fromarray(NUMBERS)),
    "grey with transparency": encoded(Image.fromarray(NUMBERS), transparency=0),
    "grey TIFF": grey_tiff(NUMBERS, 8),
    "grey of 4 bits": grey_png(NUMBERS, 4),
    "grey of 2 bits": grey_png(NUMBERS, 2),
    "16 bits": encoded(Image.fromarray(NUMBERS.astype(np.uint16))),
    "TIFF of 16 bits": encoded(Image.fromarray(NUMBERS.astype(np.uint16)), "TIFF"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_numbers_are_read_as_they_are_stored(encoding: str) -> None:
    read = read_index_mask(ENCODINGS[encoding], "a")
    assert (read.dtype, read.tolist()) == (np.int32, NUMBERS.tolist())


def test_numbers_of_1_and_of_16_bits() -> None:
    bits = Image.fromarray((NUMBERS > 0).astype(np.uint8) * 255).convert("1")
    assert read_index_mask(encoded(bits), "a").tolist() == [[0, 1, 1, 1], [1, 0, 0, 1]]
    large = NUMBERS.astype(np.uint16) * 20000
    for data in (encoded(Image.fromarray(large)), encoded(Image.fromarray(large), "TIFF")):
        assert read_index_mask(data, "a").tolist() == [[0, 20000, 40000, 60000], [60000, 0, 0, 20000]]
    sixteen = np.arange(16, dtype=np.uint8).reshape(8, 2)
    assert read_index_mask(grey_png(sixteen, 4), "a").tolist() == sixteen.tolist()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_masks_are_turned_as_images_are(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = np.asarray(read_image(encoded(Image.fromarray(NUMBERS), exif=exif), "a"))[..., 0].tolist()
    assert upright != NUMBERS.tolist() or orientation == 1
    for image in (indexed(NUMBERS), Image.fromarray(NUMBERS), Image.fromarray(NUMBERS.astype(np.uint16))):
        assert read_index_mask(encoded(image, exif=exif), "a").tolist() == upright


GREY = Image.fromarray(NUMBERS)
REMEDY = "save it as a palette or index PNG"
NO_NUMBERS = {
    "RGB": (encoded(GREY.convert("RGB")), f"a mask in mode RGB, expected one label number a pixel; {REMEDY}"),
    "RGBA": (encoded(GREY.convert("RGBA")), f"a mask in mode RGBA, expected one label number a pixel; {REMEDY}"),
    "LA": (encoded(GREY.convert("LA")), f"a mask in mode LA, expected one label number a pixel; {REMEDY}"),
    "F": (encoded(GREY.convert("F"), "TIFF"), f"a mask in mode F, expected one label number a pixel; {REMEDY}"),
    "JPEG": (encoded(GREY, "JPEG"), f"a mask in JPEG, expected PNG, GIF or TIFF; {REMEDY}"),
    "PGM": (encoded(GREY, "PPM"), f"a mask in PPM, expected PNG, GIF or TIFF; {REMEDY}"),
    "2 bits": (grey_tiff(NUMBERS, 2), f"a TIFF of 2 bits; {REMEDY}"),
    "4 bits": (grey_tiff(NUMBERS, 4), f"a TIFF of 4 bits; {REMEDY}"),
    "inverted": (grey_tiff(NUMBERS, 8, 0), f"a TIFF of 8 bits that counts from white; {REMEDY}"),
    "text": (
        b"no image",
        "not an image of a format that is read (starts with b'no image'); expected JPEG, PNG, WEBP, BMP, TIFF, GIF, "
        "PPM or AVIF",
    ),
    "empty": (b"", "the file is empty (0 bytes); expected an image"),
    "cut off": (encoded(indexed(np.tile(NUMBERS, (90, 90))))[:-40], "broken image: "),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_holds_no_numbers_is_refused(kind: str) -> None:
    data, message = NO_NUMBERS[kind]
    with pytest.raises(BadImageError, match=f"^masks/a: {re.escape(message)}" + "$" * (kind != "cut off")):
        read_index_mask(data, "masks/a")


# folders


def tree(root: Path, files: Mapping[str, Pixels | bytes | None]) -> Path:
    """Files by path: numbers as a grey PNG, None as a picture of 4x2, bytes as they are."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            Image.new("RGB", (4, 2), (90, 120, 40)).save(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else encoded(Image.fromarray(content)))
    return root


def maps(scenes: LabelledScenes) -> dict[str, Any]:
    return {sample.id: scenes.labels(sample, (2, 4)).tolist() for sample in scenes.dataset.samples}


FLAT = NUMBERS * 0


def test_names_ignored_labels_and_paths(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "images/été/straße 1.jpg": None,
            "images/b.png": None,
            "masks/été/straße 1.png": np.array([[0, 1, 2, 255], [7, 0, 0, 1]], np.uint8),
            "masks/b.png": FLAT,
            "classes.txt": "\ufeff# of the city\nroad\n\n  sky line \nvoid\n".encode(),
        },
    )
    options: dict[str, Any] = {"masks": root / "masks", "classes": root / "classes.txt"}
    scenes = open_scenes(root / "images", ignore=[255, 7], num_classes=3, **options)
    assert scenes.class_names == ("road", "sky line", "void")
    assert maps(scenes) == {"b.png": FLAT.tolist(), "été/straße 1.jpg": [[0, 1, 2, -1], [-1, 0, 0, 1]]}
    sample = scenes.dataset.samples[1]
    assert (sample.label, scenes.labels(sample, (2, 4)).dtype, len(scenes)) == (-1, np.int16, 2)
    assert (scenes.layout, scenes.dataset.layout, scenes.dataset.class_names) == ("folders", "folders", ())
    masks = f"masks of 2 of 2 images from {root / 'masks'}"
    assert scenes.notes == scenes.dataset.notes == ("layout folders: 3 classes, ignored 7, 255", masks)
    # A class that is ignored stays a class of the model.
    scenes = open_scenes(root / "images", ignore=[2, 255, 7], **options)
    assert maps(scenes)["été/straße 1.jpg"] == [[0, 1, -1, -1], [-1, 0, 0, 1]] and len(scenes.class_names) == 3
    assert scenes.notes[1] == "label 2 is ignored, although it is class 'void'"
    assert scenes.unjudged == (2,)
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=8, ignore=[65535, 0, 8])
    assert scenes.unjudged == (0,) and len(scenes.notes) == 3
    assert maps(scenes.select(ids=["b"])) == {"b.png": (FLAT - 1).astype(np.int8).tolist()}
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=256, ignore=())
    assert maps(scenes)["été/straße 1.jpg"] == [[0, 1, 2, 255], [7, 0, 0, 1]]
    assert scenes.notes == ("layout folders: 256 classes", masks)
    for count in (1, 32767):
        assert len(open_scenes(root / "images", masks=root / "masks", num_classes=count).class_names) == count
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=8)
    assert scenes.class_names == ("0", "1", "2", "3", "4", "5", "6", "7")
    assert maps(scenes)["été/straße 1.jpg"] == [[0, 1, 2, -1], [7, 0, 0, 1]]
    assert scenes.notes == ("layout folders: 8 classes, ignored 255", masks)


def test_images_may_come_from_a_zip_and_masks_not(tmp_path: Path) -> None:
    root = tree(tmp_path, {"images/a.png": None, "masks/test/a.png": FLAT + 1, "masks/train/a.png": FLAT})
    place = root / "masks" / "images.zip"  # a zip may lie where it likes
    with zipfile.ZipFile(place, "w") as archive:
        archive.write(root / "images" / "a.png", "test/a.png")
        archive.write(root / "images" / "a.png", "train/a.png")
    assert maps(open_scenes(place, masks=root / "masks", num_classes=2)) == {"a.png": (FLAT + 1).tolist()}
    refuse(
        f"{place}: not a folder; masks are not read from files such as a zip; give a folder of masks "
        f"with the names of the images (--masks)",
        root / "images",
        masks=place,
    )
    refuse(
        f"{place}: no masks, and not ADE20K's images/validation and annotations/validation; give a "
        f"folder of masks (--masks), and unpack a zip that holds them",
        place,
    )


@pytest.mark.parametrize(
    ("images", "masks", "expected"),
    [
        # The path first, then a stem that only one image and one mask have.
        (["a/1.jpg", "b/1.jpg"], ["b/1.png", "a/1.png"], {"a/1.jpg": 1, "b/1.jpg": 0}),
        (["a/1.jpg", "b/2.jpg"], ["2.png", "1.png"], {"a/1.jpg": 1, "b/2.jpg": 0}),
        # A split that was chosen among the images is chosen among the masks.
        (["test/1.jpg", "train/1.jpg"], ["train/1.png", "test/1.png"], {"1.jpg": 1}),
        (["test/1.jpg", "test/2.jpg", "train/2.jpg"], ["train/2.png", "test/1.png"], {"1.jpg": 1}),
        (["x/val/1.jpg", "x/val/2.jpg"], ["x/val/2.png", "x/val/1.png"], {"val/1.jpg": 1, "val/2.jpg": 0}),
    ],
)
def test_whose_mask_it_is(tmp_path: Path, images: list[str], masks: list[str], expected: dict[str, int]) -> None:
    tree(tmp_path / "images", dict.fromkeys(images))
    tree(tmp_path / "masks", {name: FLAT + place for place, name in enumerate(masks)})
    scenes = open_scenes(tmp_path / "images", masks=tmp_path / "masks", num_classes=2)
    found = [sample for sample in scenes.dataset.samples if sample.id in scenes.masks]
    assert {sample.id: scenes.labels(sample, (2, 4))[0, 0].item() for sample in found} == expected


def test_a_mask_of_another_folder_is_not_taken_by_its_name_alone(tmp_path: Path) -> None:
    tree(tmp_path, {"images/a/1.jpg": None, "images/b/2.jpg": None, "masks/b/2.png": FLAT, "masks/c/1.png": FLAT})
    with pytest.raises(
        DataError, match=r"c/1.png has the name of a/1.jpg but lies in another folder; expected the same"
    ):
        open_scenes(tmp_path / "images", masks=tmp_path / "masks", num_classes=2)


def test_names_do_not_steer_a_terminal(tmp_path: Path) -> None:
    tree(tmp_path, {"images/1.jpg": None, "masks/1.png": FLAT})
    (tmp_path / "names.txt").write_text("re\x1b[31md\nli\u202eve\n", "utf-8")
    scenes = open_scenes(tmp_path / "images", masks=tmp_path / "masks", classes=tmp_path / "names.txt")
    assert scenes.class_names == ("re[31md", "live")


def test_a_folder_of_images_named_as_a_part_of_the_masks(tmp_path: Path) -> None:
    tree(tmp_path, {"images/test/1.jpg": None, "masks/test/1.png": FLAT, "masks/train/1.png": FLAT + 1})
    scenes = open_scenes(tmp_path / "images" / "test", masks=tmp_path / "masks", num_classes=2)
    assert maps(scenes) == {"1.jpg": FLAT.tolist()}
    tree(tmp_path, {"deep/images/test/1.png": FLAT + 1, "deep/other/test/1.png": FLAT})
    scenes = open_scenes(tmp_path / "images" / "test", masks=tmp_path / "deep", num_classes=2)
    assert maps(scenes) == {"1.jpg": (FLAT + 1).tolist()}
    tree(tmp_path, {"a/a/1.jpg": None, "a/b/2.jpg": None, "labels/a/1.png": FLAT, "labels/b/2.png": FLAT + 1})
    scenes = open_scenes(tmp_path / "a", masks=tmp_path / "labels", num_classes=2)
    assert maps(scenes) == {"a/1.jpg": FLAT.tolist(), "b/2.jpg": (FLAT + 1).tolist()}


def test_an_image_without_a_mask_is_told_and_then_named(tmp_path: Path) -> None:
    root = tree(tmp_path, {"images/a.png": None, "images/b.png": None, "masks/b.png": FLAT})
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=2)
    note = f"masks of 1 of 2 images from {root / 'masks'}; 1 without a mask cannot be evaluated"
    assert scenes.notes[1] == note
    with pytest.raises(BadImageError) as refused:
        scenes.labels(scenes.dataset.samples[0], (2, 4))
    assert str(refused.value) == (
        "a.png: no mask for this image, though others have one; add it or leave it out (--ids)"
    )
    assert maps(scenes.select(ids=["b.png"])) == {"b.png": FLAT.tolist()}


NINES = np.array([[0, 9, 9, 12], [9, 0, 1, 200]], np.uint8)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (
            encoded(Image.fromarray(NINES)),
            "label 9 on 3 pixels, 12 on 1 pixels; expected 0 … 8, ignored 200; name its class (--classes) or ignore it "
            "(--ignore)",
        ),
        (
            encoded(Image.fromarray(NINES.astype(np.int32) - 1), "TIFF"),
            "label -1 on 2 pixels, 11 on 1 pixels, 199 on 1 pixels; expected 0 … 8, ignored 200; name its class "
            "(--classes) or ignore it (--ignore)",
        ),
        (encoded(GREY.resize((5, 2))), "the mask is of 5x2 pixels, the image of 4x2; expected the same"),
        (encoded(GREY.resize((2, 4))), "the mask is of 2x4 pixels, the image of 4x2; expected the same"),
        NO_NUMBERS["RGB"],
        NO_NUMBERS["text"],
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_bad_mask_is_named(tmp_path: Path, mask: bytes | None, message: str) -> None:
    root = tree(tmp_path, {"images/a.png": None, "masks/a.tiff": mask or b"gone"})
    scenes = open_scenes(root / "images", masks=root / "masks", ignore=[200], num_classes=9)
    if mask is None:
        (root / "masks" / "a.tiff").unlink()
    with pytest.raises(BadImageError) as refused:
        scenes.labels(scenes.dataset.samples[0], (2, 4))
    assert str(refused.value) == f"{root / 'masks' / 'a.tiff'}: {message}"


def refuse(message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(DataError) as refused:
        open_scenes(*args, **options)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("message", "images", "options"),
    [
        ("{0}/none: no such folder or zip file; check --data-dir", "none", {}),
        ("{0}/none: no such folder or zip file; check --data-dir", "none", {"layout": "ade20k"}),
        (
            "{0}/empty: no images in it; expected a folder or zip of .jpeg, .jpg, .png, .bmp, .webp, .tif, .tiff, "
            ".ppm, .pgm, .gif files",
            "empty",
            {},
        ),
        (
            "{0}/images: no masks, and not ADE20K's images/validation and annotations/validation; give a folder of "
            "masks (--masks)",
            "images",
            {"masks": None},
        ),
        (
            "{0}/none: no such folder; give a folder of masks with the names of the images (--masks)",
            "images",
            {"masks": "none"},
        ),
        (
            "{0}/empty: no masks in it; expected PNG files with the names of the images",
            "images",
            {"masks": "empty"},
        ),
        (
            "{0}/others: no mask has the name of an image; a mask is called x_mask.png, an image a/x.png; expected the "
            "same names but for the suffix",
            "images",
            {"masks": "others"},
        ),
        ("{0}/twice: a/x.png and a/x.bmp are masks of the same image; keep one", "images", {"masks": "twice"}),
        (
            "{0}/rivals: c/x.png and d/x.png may both be meant for a/x.png; keep one, or name it a/x",
            "images",
            {"masks": "rivals"},
        ),
        (
            "{0} and {0}/masks: one holds the other, so that masks mix with images; give a folder of each",
            "",
            {},
        ),
        (
            "{0}/images/a and {0}/images: one holds the other, so that masks mix with images; give a folder of each",
            "images/a",
            {"masks": "images"},
        ),
        (
            "{0}/images: the number of classes is not known; give their names (--classes) or --num-classes",
            "images",
            {"num_classes": None},
        ),
        ("{0}/images: 0 classes; expected 1 … 32767, one name a line in label order", "images", {"num_classes": 0}),
        (
            "{0}/images: 32768 classes; expected 1 … 32767, one name a line in label order",
            "images",
            {"num_classes": 32768},
        ),
        (
            "{0}/blank.txt: 0 classes; expected 1 … 32767, one name a line in label order",
            "images",
            {"classes": "blank.txt"},
        ),
        (
            "{0}/double.txt: named more than once: sky, road; expected a name of its own for each label",
            "images",
            {"classes": "double.txt"},
        ),
        (
            "{0}/none.txt: not a readable list of classes (No such file or directory); give "
            "a text file with one name a line",
            "images",
            {"classes": "none.txt"},
        ),
        (
            "{0}/three.txt: 3 classes (sky, road, car), but the model has 2; give those of its outputs, in their order",
            "images",
            {"classes": "three.txt"},
        ),
        ("ignored labels -1, 255: expected numbers in 0 … 65535", "images", {"ignore": [255, -1]}),
        ("ignored labels 65536: expected numbers in 0 … 65535", "images", {"ignore": [65536]}),
        (
            "unknown layout 'ade20'; did you mean 'ade20k'? known: ade20k, embedded, folders",
            "images",
            {"layout": "ade20"},
        ),
        (
            "{0}/images: not of layout ade20k (ADE20K's folders: images/validation and annotations/validation; label 0 "
            "is ignored, label 1 is class 0); name another or leave out --layout",
            "images",
            {"layout": "ade20k"},
        ),
    ],
)
def test_refused_at_opening(tmp_path: Path, message: str, images: str, options: dict[str, Any]) -> None:
    tree(
        tmp_path,
        {
            "images/a/x.png": None,
            "images/b/y.png": None,
            "empty/read.me": b"",
            "masks/x.png": FLAT,
            "others/x_mask.png": FLAT,
            "others/y_mask.png": FLAT,
            "twice/a/x.png": FLAT,
            "twice/a/x.bmp": FLAT,
            "rivals/c/x.png": FLAT,
            "rivals/d/x.png": FLAT,
            "blank.txt": b"\n# nothing\n",
            "double.txt": b"sky\nroad\nroad\nsky\nsky\ncar\n",
            "three.txt": b"sky\nroad\ncar\n",
        },
    )
    options = {"masks": "masks", "num_classes": 2} | options
    paths = {key: tmp_path / value for key, value in options.items() if key in ("masks", "classes") and value}
    refuse(message.format(tmp_path), tmp_path / images, **options | paths)


# ADE20K


def ade(root: Path, *splits: str) -> Path:
    for split in splits:
        name = f"ADE_{split[:3]}_00000001"
        mask = NUMBERS if split == "validation" else NUMBERS + 147
        tree(root, {f"images/{split}/{name}.jpg": None, f"annotations/{split}/{name}.png": mask})
    return root


@pytest.mark.parametrize("given", ["", "ADEChallengeData2016", "ADEChallengeData2016/images"])
@pytest.mark.parametrize("layout", ["ade20k", None])
def test_ade20k_is_recognised_and_its_labels_shifted(tmp_path: Path, given: str, layout: str | None) -> None:
    root = ade(tmp_path / "ADEChallengeData2016", "training", "validation")
    scenes = open_scenes(tmp_path / given, layout=layout, num_classes=150)
    assert maps(scenes) == {"ADE_val_00000001.jpg": [[-1, 0, 1, 2], [2, -1, -1, 0]]}
    assert (scenes.layout, scenes.dataset.name, len(scenes.class_names)) == ("ade20k", "ade20k-validation", 150)
    assert scenes.unjudged == ()
    assert scenes.notes == (
        "layout ade20k: validation, 150 classes; label 0 is ignored, label 1 is class 0",
        f"masks of 1 of 1 images from {root / 'annotations' / 'validation'}",
    )


def test_ade20k_by_split(tmp_path: Path) -> None:
    root = ade(tmp_path / "ade", "training", "validation")
    last = {"ADE_tra_00000001.jpg": [[146, 147, 148, 149], [149, 146, 146, 147]]}
    scenes = open_scenes(root / "images" / "training")
    assert (maps(scenes), scenes.dataset.name) == (last, "ade20k-training")
    assert list(maps(open_scenes(root / "images" / "validation"))) == ["ADE_val_00000001.jpg"]
    assert maps(open_scenes(ade(tmp_path / "half", "training"))) == last
    for place in ("validation", "images/mine"):  # names that say nothing of the root
        assert maps(open_scenes(ade(tmp_path / place, "training"))) == last
    with pytest.raises(BadImageError) as refused:
        (root / "annotations" / "validation" / "ADE_val_00000001.png").write_bytes(
            encoded(Image.fromarray(NUMBERS + 149))
        )
        maps(open_scenes(root))
    assert str(refused.value) == (
        f"{root}/annotations/validation/ADE_val_00000001.png: label 151 on 1 pixels, 152 on 2 pixels; expected 1 … "
        f"150, ignored 0; correct the mask"
    )


def test_ade20k_misunderstood(tmp_path: Path) -> None:
    root = ade(tmp_path / "ade", "training", "validation")
    own = f"{root}: ade20k has its own masks; leave out --masks, --classes and --ignore"
    for options in ({"classes": root}, {"ignore": (255, 3)}, {"masks": root / "annotations", "layout": "ade20k"}):
        refuse(own, root, **options)
    refuse(
        f"{root}: 150 classes (wall, building, sky and 147 more), but the model has 151; give those of its outputs, in "
        f"their order",
        root,
        num_classes=151,
    )
    masks = root / "annotations" / "validation"
    for layout in (None, "folders"):  # masks that are given are no ADE20K's
        scenes = open_scenes(root / "images" / "validation", masks=masks, num_classes=4, layout=layout)
        assert maps(scenes) == {"ADE_val_00000001.jpg": NUMBERS.tolist()}
    (masks / "ADE_val_00000001.png").unlink()
    masks.rmdir()
    for other, name in (("1", "images/validation/a.png"), ("2", "annotations/validation/a.png")):
        half = tree(tmp_path / other, {name: None})
        refuse(
            f"{half}: no masks, and not ADE20K's images/validation and annotations/validation; give a folder of masks "
            f"(--masks)",
            half,
        )
    refuse(f"{masks}: no such folder; ADE20K keeps there the masks of {root / 'images' / 'validation'}", root)


def test_the_names_of_ade20k() -> None:
    """The digest is of the first nouns in objectInfo150.txt, and of the names that mmsegmentation gives."""
    assert len(set(ade20k.CLASSES)) == 150
    places = {0: "wall", 12: "person", 44: "chest of drawers", 89: "television receiver", 130: "screen", 149: "flag"}
    assert {place: ade20k.CLASSES[place] for place in places} == places
    digest = hashlib.sha256("\n".join(ade20k.CLASSES).encode()).hexdigest()
    assert digest == "f9dbd8a75a0722c971d8c82db76dc205e06cb422d98153f4e5bbf90408ef5438"


# the embedded shapes, parts and digests


@pytest.mark.parametrize(("spec", "split", "count"), [("shapes", "test", 1000), ("shapes-train", "train", 10_000)])
def test_embedded_shapes(spec: str, split: str, count: int) -> None:
    scenes = open_scenes(f"embedded:{spec}", num_classes=11)
    assert scenes.class_names == ("background", *shapes.CLASSES)
    assert {sample.label for sample in scenes.dataset.samples} == {-1} and len(scenes) == count
    for index in (0, 17):
        shape = shapes.render(split, index)
        labels = scenes.labels(Sample(f"{split}/{index:05d}", -1), (64, 64))
        assert labels.dtype == np.int16 and 0 < shape.mask.sum() < 4096
        assert labels.tolist() == (shape.mask.astype(int) * (index % 10 + 1)).tolist()
    assert scenes.notes == (f"layout embedded: {count} generated images of a background and 10 shapes",)
    assert (scenes.dataset.notes, scenes.dataset.class_names, scenes.unjudged) == (scenes.notes, (), ())


def test_embedded_shapes_misunderstood() -> None:
    refuse(
        "embedded:shapes: 11 classes (background, arrow, crescent and 8 more), but the model has 10; give those of its "
        "outputs, in their order",
        "embedded:shapes",
        num_classes=10,
    )
    for options in ({"masks": "masks"}, {"classes": "a"}, {"ignore": [0]}):
        refuse(
            "embedded:shapes: embedded has its own masks; leave out --masks, --classes and --ignore",
            "embedded:shapes",
            **options,
        )
    with pytest.raises(DataError, match=r"^embedded:shapes: not of layout folders \(a folder of images, .*; name anot"):
        open_scenes("embedded:shapes", layout="folders")
    with pytest.raises(DataError, match=r"^unknown data set 'embedded:shape'; did you mean 'embedded:shapes'\?"):
        open_scenes("embedded:shape")


def test_a_smaller_part_is_of_the_larger_one(tmp_path: Path) -> None:
    names = [f"{index}.png" for index in range(9)]
    tree(tmp_path / "images", dict.fromkeys(names))
    tree(tmp_path / "masks", dict.fromkeys(names, FLAT))
    scenes = open_scenes(tmp_path / "images", masks=tmp_path / "masks", num_classes=2)
    three, five, other = (set(maps(scenes.select(limit, seed=seed))) for limit, seed in ((3, 0), (5, 0), (3, 1)))
    assert set(maps(scenes.select(3))) == three
    assert len(three) == 3 and len(five) == 5 and three < five and other != three
    assert set(maps(scenes.select(2, ids=["1", "3", "5"]))) < {"1.png", "3.png", "5.png"}


def test_the_digest_is_of_what_decides_a_number(tmp_path: Path) -> None:
    root = tree(tmp_path, {"images/a.png": None, "images/b.png": None, "masks/a.png": FLAT, "masks/b.png": FLAT})
    three = tree(root, {"names.txt": b"a\nb\nc\n"}) / "names.txt"

    def digest(ignore: tuple[int, ...] = (3, 255), classes: Path | None = None, **options: Any) -> str:
        options = {"masks": root / "masks", "num_classes": 3, "classes": classes} | options
        scenes = open_scenes(root / "images", ignore=ignore, **options)
        assert scenes.digest() == scenes.digest()
        return scenes.digest()

    first = digest()
    assert digest((255, 3, 3)) == first
    seen = {first, digest((3,)), digest((4, 255)), digest(classes=three), digest(num_classes=4)}
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=3, ignore=(3, 255))
    seen.add(scenes.select(ids=["a"]).digest())
    assert len(seen) == 6
    mask, content = root / "masks" / "a.png", (root / "masks" / "a.png").read_bytes()
    mask.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    seen.add(digest())
    mask.unlink()
    seen.add(scenes.digest())  # gone since
    seen.add(digest())  # never there
    mask.write_bytes(content)
    assert digest() == first and len(seen) == 9
    tree(root, {"masks/b.png": FLAT + 1})
    swapped = digest()
    tree(root, {"masks/a.png": FLAT + 1, "masks/b.png": FLAT})
    seen |= {swapped, digest()}
    tree(root, {"masks/a.png": FLAT})
    Image.new("RGB", (4, 2), (90, 120, 41)).save(root / "images" / "a.png")
    assert len(seen | {digest()}) == 12
    ade20k_root = ade(root / "ade", "validation")
    shifted = open_scenes(ade20k_root).digest()
    names = tree(root, {"ade.txt": "\n".join(ade20k.CLASSES).encode()}) / "ade.txt"
    masks = ade20k_root / "annotations" / "validation"
    plain = open_scenes(ade20k_root / "images" / "validation", masks=masks, classes=names, ignore=(0,))
    assert plain.digest() != shifted


# the real thing


FRAME = (36078, 52889, 1001, 35990, 6027, 17410, 2030, 0, 8247, 1379, 1877)  # pixels of each class in the first


@pytest.mark.shared
@pytest.mark.skipif(not CAMVID.is_dir(), reason="needs CamVid in ../shared")
@pytest.mark.parametrize("part", ["", "test"])
def test_camvid(tmp_path: Path, part: str) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("sky building pole road pavement tree sign fence car pedestrian bicyclist".replace(" ", "\n"))
    scenes = open_scenes(CAMVID / "images" / part, masks=CAMVID / "annotations" / part, classes=classes, ignore=[11])
    assert (len(scenes), len(scenes.masks), len(scenes.class_names)) == (133, 133, 11)
    assert all(path.parent == CAMVID / "annotations" / "test" for path in scenes.masks.values())
    sample = scenes.dataset.samples[0]
    assert sample.id == "0001TP_008550.png"
    assert scenes.dataset.image(sample).size == (480, 360)
    labels = scenes.labels(sample, (360, 480))
    assert np.bincount(labels.ravel() + 1, minlength=12).tolist() == [9872, *FRAME]
    if not part:
        for sample in scenes.dataset.samples:
            assert scenes.labels(sample, (360, 480)).shape == (360, 480)
