"""Boxes: carried through resize and crop as timm does it, read from CSV and XML, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cam.boxes import (
    Annotation,
    BoxFileError,
    box_iou,
    boxes_of,
    mask_of,
    read_csv,
    read_xml,
    resize_crop_boxes,
    resize_crop_mask,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_box_iou_by_hand() -> None:
    ious = box_iou([(0, 0, 4, 2), (0, 0, 1, 1)], [(2, 0, 6, 2), (4, 0, 5, 2), (0, 0, 4, 2)])
    assert ious.tolist() == [[1 / 3, 0, 1], [0, 0, 1 / 8]]
    assert box_iou([], [(0, 0, 1, 1)]).shape == (0, 1)


def test_boxes_move_by_hand() -> None:
    boxes = [(111, 108, 441, 193), (0, 0, 500, 375)]
    squashed, vanished = resize_crop_boxes(boxes, (500, 375), (224, 224))  # 49.7, 64.5, 197.6, 115.3
    assert (squashed.tolist(), vanished) == ([[49, 64, 198, 116], [0, 0, 224, 224]], 0)
    # 256 high, int(341.33) = 341 wide; the crop starts 58 (58.5 to even) from the left and 16 from the top.
    boxes.append((0, 0, 80, 300))  # ends at 54.6, left of the crop
    cropped, vanished = resize_crop_boxes(boxes, (500, 375), (224, 224), "center", 0.875)
    assert (cropped.tolist(), vanished) == ([[17, 57, 224, 116], [0, 0, 224, 224]], 1)
    assert mask_of(cropped[:1], 224, 224).sum() == 207 * 59
    # 343 wide; 59.5 are left over on each side: to even that is 60, down it is 59.
    for mode, left in (("center", 4), ("center-floor", 5)):
        (moved,), _ = resize_crop_boxes([(95, 0, 503, 375)], (503, 375), (224, 224), mode, 0.875)
        assert moved.tolist() == [left, 0, 224, 224]
    assert mask_of([(-3, 1, 2, 9)], 4, 4).int().tolist() == [[0] * 4] + [[1, 1, 0, 0]] * 3


@pytest.mark.parametrize(
    ("frame", "mode", "pct"),
    [
        ((224, 224), "squash", 1.0),
        ((224, 224), "center", 0.875),
        ((224, 224), "center", 0.9),
        ((160, 96), "center", 0.95),
        ((64, 80), "squash", 0.9),
        ((96, 96), "center", 1.0),
    ],
)
def test_masks_and_boxes_follow_timms_transform(frame: tuple[int, int], mode: str, pct: float) -> None:
    import numpy as np
    from PIL import Image
    from timm.data import create_transform

    transform = create_transform(
        (3, *frame), is_training=False, interpolation="nearest", crop_pct=pct, crop_mode=mode, normalize=False
    )
    generator = np.random.default_rng(3)
    kept = 0
    # Odd sides: no centre of a pixel then falls between two, where Pillow's rounding errors decide.
    for width, height in [(501, 375), (333, 501), (97, 61), (225, 225), (641, 481), (51, 301)]:
        labels = torch.from_numpy(generator.integers(0, 256, (height, width), dtype=np.uint8))
        moved = transform(Image.fromarray(labels.numpy()).convert("RGB"))[0]
        assert torch.equal(resize_crop_mask(labels, frame, mode, pct), moved)
        for _ in range(5):
            (x0, x1), (y0, y1) = (sorted(generator.choice(side + 1, 2, False).tolist()) for side in (width, height))
            painted = resize_crop_mask(mask_of([(x0, y0, x1, y1)], height, width), frame, mode, pct)
            boxes, vanished = resize_crop_boxes([(x0, y0, x1, y1)], (width, height), frame, mode, pct)
            assert len(boxes) + vanished == 1
            if vanished or not painted.any():
                assert not painted.any()
                continue
            kept += 1
            gap = (boxes - boxes_of(painted))[0].tolist()
            assert all(-1 <= low <= 0 for low in gap[:2]) and all(0 <= high <= 1 for high in gap[2:])
    assert kept > 15


def test_csv_gives_every_row_of_an_image(tmp_path: Path) -> None:
    file = tmp_path / "boxes.csv"
    file.write_text(
        "image,synset,xmin,ymin,xmax,ymax\nval/a.JPEG,n1,1,2,3,4\nb.jpeg,n2,0,0,5,5\nval/a.JPEG,n3,2,2,6,7.5\n"
    )
    found = read_csv(file, {"a": (6, 8)})
    assert found == {
        "a": Annotation(((1, 2, 3, 4), (2, 2, 6, 7.5)), ("n1", "n3"), (6, 8)),
        "b": Annotation(((0, 0, 5, 5),), ("n2",), None),
    }


HEADER = "image,synset,xmin,ymin,xmax,ymax\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            ", line 1: no column image, synset, xmin, ymin, xmax, ymax; expected image, synset, xmin, ymin, xmax, ymax",
        ),
        ("image,synset,xmin,ymin\n", ", line 1: no column xmax, ymax; expected image, synset, xmin, ymin, xmax, ymax"),
        (HEADER, ": no boxes; expected a row for each box below the header"),
        (HEADER + "b,n,1,1,2,2\na,n,1,2\n", ", line 3: too few fields; expected image, synset, xmin, ymin, xmax, ymax"),
        (HEADER + "a,n,1,two,3,4\n", ", line 2: ymin is two; expected a number"),
        (HEADER + "a,n,1,,3,4\n", ", line 2: ymin is missing; expected a number"),
        (HEADER + "\xe9,n,1,2,3,4\n", ": byte 33 is not UTF-8; save it as UTF-8"),
        (HEADER + "a,n,3,2,3,4\n", ", line 2: box (3, 2, 3, 4) is empty; expected xmin < xmax and ymin < ymax"),
        (HEADER + "a,n,nan,2,3,4\n", ", line 2: xmin is nan; expected a number"),
        (HEADER + "a,n,1,2,inf,4\n", ", line 2: xmax is inf; expected a number"),
        (HEADER + "a,n,-1,2,3,4\n", ", line 2: box (-1, 2, 3, 4) extends beyond the image; correct it or drop it"),
        (
            HEADER + "c,n,1,2,8,11\n",
            ", line 2: box (1, 2, 8, 11) extends beyond the image of 8x10; correct it or drop it",
        ),
        (
            HEADER + "c,n,1,2,9,10\n",
            ", line 2: box (1, 2, 9, 10) extends beyond the image of 8x10; correct it or drop it",
        ),
        (
            HEADER + "x/a.png,n,1,1,2,2\ny/a.png,n,1,1,2,2\n",
            ", line 3: y/a.png and x/a.png are both called a; rename one",
        ),
    ],
)
def test_csv_refuses(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "boxes.csv"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(BoxFileError) as refused:
        read_csv(file, {"c": (8, 10)})
    assert str(refused.value) == f"{file}{message}"


OBJECT = (
    "<object><name>n01</name><bndbox><xmin>{}</xmin><ymin>20</ymin><xmax>{}</xmax><ymax>60</ymax></bndbox>{}</object>"
)
PART = "<part><name>head</name><bndbox><xmin>0</xmin><ymin>0</ymin><xmax>1</xmax><ymax>1</ymax></bndbox></part>"
SIZE = "<annotation>\n<size><width>100</width><height>80</height></size>\n{}</annotation>"


def test_xml_gives_every_object_and_no_part(tmp_path: Path) -> None:
    file = tmp_path / "a.xml"
    file.write_text(SIZE.format(OBJECT.format(10, 50, PART) + "\n" + OBJECT.format(" 11 ", 100, "")))
    boxes = ((10, 20, 50, 60), (11, 20, 100, 60))
    assert read_xml(file) == Annotation(boxes, ("n01", "n01"), (100, 80))


BOMB = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]>\n<annotation>&y;</annotation>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SIZE.format(""), ": no object; expected <object> with <name> and <bndbox> in <annotation>"),
        (
            SIZE.format("\n" + OBJECT.format(50, 50, "")),
            ", line 4: box (50, 20, 50, 60) is empty; expected xmin < xmax and ",
        ),
        (
            SIZE.format(OBJECT.format(50, 101, "")),
            ", line 3: box (50, 20, 101, 60) extends beyond the image of 100x80; ",
        ),
        (SIZE.format(OBJECT.format(5, 9, "") + "\n<object/>"), ", line 4: xmin is missing; expected a number"),
        (BOMB, ", line 1: a DOCTYPE; expected none, remove it"),
        ("<annotation>\n<object>", ", line 2: not XML (no element found)"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_refuses(tmp_path: Path, text: str, message: str, encoding: str) -> None:
    file = tmp_path / "a.xml"
    file.write_text(text, encoding=encoding)
    with pytest.raises(BoxFileError) as refused:
        read_xml(file)
    assert str(refused.value).startswith(f"{file}{message}")


@pytest.mark.parametrize(("encoding", "said"), [("no-such", "unknown encoding"), ("Shift_JIS", "multi-byte encodings")])
def test_an_encoding_that_expat_does_not_know_is_one_line(tmp_path: Path, encoding: str, said: str) -> None:
    (tmp_path / "a.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?>\n<annotation/>')
    with pytest.raises(BoxFileError, match=f"{said}.*; expected an XML file that is saved as UTF-8"):
        read_xml(tmp_path / "a.xml")
