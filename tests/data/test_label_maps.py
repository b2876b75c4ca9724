"""Label maps: the numbers as files store them, which of them count, whose mask it is, and what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_files import (
    GREY,
    NO_NUMBERS,
    NUMBERS,
    ade,
    encoded,
    maps,
    refuse,
    tree,
)
from PIL import Image
from places import SHARED

from robustkit.data import shapes
from robustkit.data.layouts import Sample
from robustkit.data.scenes import CLASSES, open_scenes
from robustkit.errors import BadImageError, DataError

CAMVID = SHARED / "data" / "camvid"

# folders


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


def test_masks_as_those_of_ade20k_are_read_so_where_it_is_said(tmp_path: Path) -> None:
    stored = np.array([[0, 1, 2, 3], [255, 3, 7, 0]], np.uint8)
    root = tree(tmp_path, {"images/a.png": None, "masks/a.png": stored})
    options: dict[str, Any] = {"masks": root / "masks", "num_classes": 3, "ignore": [7, 255]}
    scenes = open_scenes(root / "images", reduce_zero_label=True, **options)
    assert maps(scenes) == {"a.png": [[-1, 0, 1, 2], [-1, 2, -1, -1]]} and (scenes.shift, scenes.unjudged) == (-1, ())
    assert scenes.notes[0] == "layout folders: 3 classes, ignored 0, 7, 255; label 1 is class 0"
    plain = open_scenes(root / "images", **options)
    assert plain.shift == 1 and plain.digest() != scenes.digest()
    void = open_scenes(root / "images", reduce_zero_label=True, **options | {"ignore": [2, 7, 255]})
    assert maps(void)["a.png"][0] == [-1, 0, -1, 2] and void.unjudged == (1,)
    assert void.notes[1] == "label 2 is ignored, although it is class '1'"
    offered = "; name its class (--classes) or ignore it (--ignore), or give --reduce-zero-label if 0 is no class, and "
    for classes, odd in ((3, "label 3 on 2 pixels"), (2, "label 2 on 1 pixels, 3 on 2")):
        with pytest.raises(BadImageError, match=odd) as bad:
            maps(open_scenes(root / "images", **options | {"num_classes": classes}))
        assert (offered in str(bad.value)) == (classes == 3)  # else 3 is one too many either way
    with pytest.raises(BadImageError, match="label 3 on 2 pixels; expected 1 … 2, ignored 0, 7, 255; name") as bad:
        maps(open_scenes(root / "images", reduce_zero_label=True, **options | {"num_classes": 2}))
    assert "give" not in str(bad.value)  # it is given


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
            "same names except for the suffix",
            "images",
            {"masks": "others"},
        ),
        ("{0}/twice: a/x.png and a/x.bmp are masks of the same image; keep one", "images", {"masks": "twice"}),
        (
            "{0}/rivals: c/x.png and d/x.png both match a/x.png; keep one, or rename it to a/x",
            "images",
            {"masks": "rivals"},
        ),
        (
            "{0} and {0}/masks: one contains the other, which would mix masks with images; give separate folders",
            "",
            {},
        ),
        (
            "{0}/images/a and {0}/images: one contains the other, which would mix masks with images; give separate "
            "folders",
            "images/a",
            {"masks": "images"},
        ),
        (
            "{0}/images: the number of classes is unknown; give their names (--classes) or --num-classes",
            "images",
            {"num_classes": None},
        ),
        ("{0}/images: 0 classes; expected 1 … 32767, one name per line in label order", "images", {"num_classes": 0}),
        (
            "{0}/images: 32768 classes; expected 1 … 32767, one name per line in label order",
            "images",
            {"num_classes": 32768},
        ),
        (
            "{0}/blank.txt: 0 classes; expected 1 … 32767, one name per line in label order",
            "images",
            {"classes": "blank.txt"},
        ),
        (
            "{0}/double.txt: named more than once: sky, road; expected a different name for each label",
            "images",
            {"classes": "double.txt"},
        ),
        (
            "{0}/none.txt: not a readable list of classes (No such file or directory); give "
            "a text file with one name per line",
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


def test_a_mask_of_a_turned_image_must_say_of_which_pixels_it_is(tmp_path: Path) -> None:
    root = tree(tmp_path, {"images/a.png": None, "masks/a.png": FLAT})
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down: of the same size
    Image.new("RGB", (4, 2)).save(root / "images" / "a.png", exif=exif)
    scenes = open_scenes(root / "images", masks=root / "masks", num_classes=2)
    with pytest.raises(BadImageError, match="EXIF data rotate the image, and it is unclear whether the mask"):
        maps(scenes)
    Image.fromarray(FLAT).save(root / "masks" / "a.png", exif=exif)
    assert maps(scenes) == {"a.png": FLAT.tolist()}


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
    for options in ({"masks": "masks"}, {"classes": "a"}, {"ignore": [0]}, {"reduce_zero_label": True}):
        own = "its own masks; leave out --masks, --classes, --ignore and --reduce-zero-label"
        refuse(f"embedded:shapes: embedded has {own}", "embedded:shapes", **options)
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
    names = tree(root, {"ade.txt": "\n".join(CLASSES).encode()}) / "ade.txt"
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
