"""Boxes: read from annotation files, carried along when the image is resized and cropped, and found in a map.

A box is (x0, y0, x1, y1) in pixels from the top left corner; x1 and y1 are exclusive, so its width is x1 - x0.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.parsers import expat

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Box = tuple[float, float, float, float]
Boxes = Tensor | Sequence[Sequence[float]]

COLUMNS = ("image", "synset", "xmin", "ymin", "xmax", "ymax")
CORNERS = COLUMNS[2:]
EDGES = ("left", "top", "right", "bottom")
SIDES = ("x", "y", "width", "height")
DEEPEST = 32  # levels of nested elements; an annotation has four


class BoxFileError(ValueError):
    """An annotation file that cannot be read as boxes; names the file and the line."""


@dataclass(frozen=True)
class Annotation:
    """The boxes of one image as its file has them, and the synset of each. size: (width, height), None if unknown.
    columns: what the file calls the four numbers of a box.
    """

    boxes: tuple[Box, ...]
    synsets: tuple[str, ...]
    size: tuple[int, int] | None = None
    columns: tuple[str, ...] = CORNERS


def as_boxes(boxes: Boxes) -> Tensor:
    """Return boxes as a float64 tensor (n, 4) on the CPU, n may be 0; ValueError for anything else, or an empty box."""
    table = torch.as_tensor(boxes, dtype=torch.float64, device="cpu") if len(boxes) else torch.zeros(0, 4).double()
    if table.ndim != 2 or table.shape[1] != 4:
        raise ValueError(f"boxes have the shape {tuple(table.shape)}; expected (n, 4): x0, y0, x1, y1 of each")
    wrong = ~((table[:, :2] < table[:, 2:]).all(dim=1) & table.isfinite().all(dim=1))
    if wrong.any():
        box = ", ".join(f"{value:g}" for value in table[wrong][0].tolist())
        raise ValueError(f"box ({box}); expected finite x0 < x1 and y0 < y1, x1 and y1 exclusive")
    return table


def mask_of(boxes: Boxes, height: int, width: int) -> Tensor:
    """Return the union of boxes as a mask, (height, width) bool; what lies outside is cut off.
    Raises ValueError for corners between two pixels: `resize_crop_boxes` rounds them outwards.
    """
    mask = torch.zeros(height, width, dtype=torch.bool)
    table = as_boxes(boxes)
    if not torch.equal(table, table.round()):
        raise ValueError(
            f"box corner {table[table != table.round()][0]:g} is not on a pixel boundary; use resize_crop_boxes"
        )
    for x0, y0, x1, y1 in table.long().clamp(min=0).tolist():
        mask[y0:y1, x0:x1] = True
    return mask


def box_iou(boxes: Boxes, others: Boxes) -> Tensor:
    """Return the intersection over union of every box (n, 4) with every other (m, 4): (n, m) float64."""
    a, b = as_boxes(boxes)[:, None], as_boxes(others)[None]
    shared = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(dim=-1)
    return shared / ((a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - shared)


def boxes_of(mask: Tensor, nested: bool = False) -> Tensor:
    """Return the box around each outer contour of a mask (H, W) bool: (n, 4) int64 on the CPU, in order of (y0, x0).

    Pixels that touch at a corner belong together. nested: also the parts that lie in a hole of another part.
    """
    rectangles = rectangles_of(mask.to("cpu", torch.uint8).contiguous().numpy(), nested)
    ordered = sorted(rectangles, key=lambda box: (box[1], box[0], *box))
    return torch.tensor(ordered, dtype=torch.int64).view(-1, 4)


def rectangles_of(mask: NDArray[np.uint8], nested: bool) -> list[tuple[int, int, int, int]]:
    """Return the boxes of `boxes_of` in any order, of a mask (H, W) of zeros and others."""
    contours, tree = cv2.findContours(mask, cv2.RETR_CCOMP if nested else cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    if not len(contours):
        return []
    hole = np.asarray(tree)[0, :, 3] >= 0  # a contour inside another is the rim of a hole
    rectangles = [cv2.boundingRect(contour) for contour, inner in zip(contours, hole, strict=True) if not inner]
    return [(x, y, x + w, y + h) for x, y, w, h in rectangles]


# --- how boxes and masks follow the image ----------------------------------------------------------------------------


def resize_crop_boxes(
    boxes: Boxes, size: tuple[int, int], frame: tuple[int, int], crop_mode: str = "squash", crop_pct: float = 1.0
) -> tuple[Tensor, int]:
    """Return where boxes of an image lie after timm's evaluation transform, and how many are wholly cut off.

    boxes: (n, 4) in the original image. size: its (width, height). frame: (H, W) that the model takes.
    crop_mode, crop_pct: as timm has them. `squash` resizes both sides, `center` the shorter one and the other in
        proportion, to floor(H / crop_pct); then the centre is cut out. `center-floor` is the same, with half a pixel
        rounded down, as transformers does. squash with 1.0 is the published protocol of
        AG-CAM's scores: both sides resized to the frame, nothing cut.

    Returns (m, 4) int64: left and top rounded down, right and bottom up, then cut to the frame, in the order given.
    Raises ValueError for another crop_mode or a crop_pct outside (0, 1].
    """
    width, height, left, top = _placement(size, frame, crop_mode, crop_pct)
    scale = torch.tensor([width, height, width, height], dtype=torch.float64)
    moved = as_boxes(boxes) * scale / torch.tensor([*size, *size], dtype=torch.float64)  # in this order: no 0.999…
    moved = torch.cat([moved[:, :2].floor(), moved[:, 2:].ceil()], dim=1).long() - torch.tensor([left, top, left, top])
    moved = torch.minimum(moved.clamp(min=0), torch.tensor([frame[1], frame[0]] * 2))
    visible = (moved[:, :2] < moved[:, 2:]).all(dim=1)
    return moved[visible], int((~visible).sum())


def resize_crop_mask(mask: Tensor, frame: tuple[int, int], crop_mode: str = "squash", crop_pct: float = 1.0) -> Tensor:
    """Move a pixel mask (h, w) as `resize_crop_boxes` moves boxes: (H, W), nearest neighbour (the pixel under the
    centre).

    The mask may have any dtype, such as that of labels. The result equals timm's transform with Pillow's
    nearest-neighbour filter, except where a centre falls exactly between two pixels: here the right or lower one
    counts, in Pillow rounding errors decide.
    """
    height, width = mask.shape
    new_width, new_height, left, top = _placement((width, height), frame, crop_mode, crop_pct)
    rows = (2 * (torch.arange(frame[0], device=mask.device) + top) + 1) * height // (2 * new_height)
    columns = (2 * (torch.arange(frame[1], device=mask.device) + left) + 1) * width // (2 * new_width)
    return mask[rows][:, columns]


def _placement(
    size: tuple[int, int], frame: tuple[int, int], crop_mode: str, crop_pct: float
) -> tuple[int, int, int, int]:
    """Return width and height after resizing, and left and top of the crop, rounded as timm and torchvision do."""
    if crop_mode not in ("squash", "center", "center-floor"):
        raise ValueError(f"crop_mode {crop_mode!r}: expected squash, center or center-floor")
    if not 0 < crop_pct <= 1:
        raise ValueError(f"crop_pct is {crop_pct}; expected a number above 0, at most 1")
    scaled_height, scaled_width = (math.floor(side / crop_pct) for side in frame)
    width, height = size
    if crop_mode == "squash":
        width, height = scaled_width, scaled_height
    elif scaled_width == scaled_height:
        longer = int(scaled_width * max(size) / min(size))
        width, height = (scaled_width, longer) if width <= height else (longer, scaled_width)
    else:
        ratio = min(height / scaled_height, width / scaled_width)
        width, height = round(width / ratio), round(height / ratio)
    halved = math.floor if crop_mode == "center-floor" else round
    return width, height, halved((width - frame[1]) / 2), halved((height - frame[0]) / 2)


def read_csv(
    path: Path, sizes: Mapping[str, tuple[int, int]] | None = None, key: Callable[[str], str] | None = None
) -> dict[str, Annotation]:
    """Read boxes from a CSV file with the columns image, synset, xmin, ymin, xmax, ymax and a row for each box. Instead
    of the last four it may have left, top, right, bottom, or x, y, width, height.

    sizes: (width, height) by image, to refuse boxes that reach outside. key: what to call an image, from its name with
        forward slashes; without folders and suffix, which are spelt in several ways, if left out.

    Returns annotations by image.
    Raises BoxFileError: not UTF-8, a column missing, no rows, a corner that is not a number, a box that is empty or
    outside its image, or two images of one name.
    """
    by_image: dict[str, list[tuple[Box, str]]] = {}
    names: dict[str, str] = {}
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BoxFileError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = reader.fieldnames or ()
    corners = next((names for names in (CORNERS, EDGES, SIDES) if set(names) <= set(header)), CORNERS)
    columns = (*COLUMNS[:2], *corners)
    if missing := [column for column in columns if column not in header]:
        raise BoxFileError(f"{path}, line 1: no column {', '.join(missing)}; expected {', '.join(COLUMNS)}")
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in (row[column] for column in columns):
            raise BoxFileError(f"{where}: too few fields; expected {', '.join(columns)}")
        image = row["image"].replace("\\", "/")
        image = key(image) if key else PurePosixPath(image).stem
        if names.setdefault(image, row["image"]) != row["image"]:
            raise BoxFileError(f"{where}: {row['image']} and {names[image]} are both called {image}; rename one")
        box = _box([row[corner] for corner in corners], where, (sizes or {}).get(image), corners)
        by_image.setdefault(image, []).append((box, row["synset"]))
    if not by_image:
        raise BoxFileError(f"{path}: no boxes; expected a row for each box below the header")
    annotations = {}
    for image, rows in by_image.items():
        boxes, synsets = zip(*rows, strict=True)
        annotations[image] = Annotation(boxes, synsets, (sizes or {}).get(image), corners)
    return annotations


def read_xml(path: Path) -> Annotation:
    """Read the boxes of one image from an ILSVRC or Pascal VOC annotation (`Annotations/CLS-LOC/val/*.xml`).

    The numbers are taken as they stand, though the format counts from 1 and means xmax and ymax inclusively: so do
    the published evaluations. A file with a DOCTYPE is refused, so that no entity is ever expanded.

    Raises BoxFileError: not well-formed, a DOCTYPE, no object, or a box that is incomplete, empty or outside.
    """
    texts: list[tuple[str, str, int]] = []  # (path of tags, text, line) of every element, in the order they end
    open_tags: list[tuple[str, list[str], int]] = []
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise BoxFileError(f"{path}, line {parser.CurrentLineNumber}: a DOCTYPE; expected none, remove it")

    def end(tag: str) -> None:
        place = "/".join(name for name, _, _ in open_tags)
        _, text, line = open_tags.pop()
        texts.append((place, "".join(text).strip(), line))

    parser.StartDoctypeDeclHandler = refuse

    def start(tag: str, _: object) -> None:
        if len(open_tags) == DEEPEST:
            raise BoxFileError(f"{path}, line {parser.CurrentLineNumber}: elements nested more than {DEEPEST} deep")
        open_tags.append((tag, [], parser.CurrentLineNumber))

    parser.StartElementHandler = start
    parser.CharacterDataHandler = lambda data: open_tags[-1][1].append(data)
    parser.EndElementHandler = end
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        raise BoxFileError(f"{path}, line {error.lineno}: not XML ({expat.ErrorString(error.code)})") from None
    except BoxFileError:
        raise
    except (LookupError, ValueError) as error:  # of an encoding that expat does not know, or one of several bytes
        raise BoxFileError(f"{path}: {error}; expected an XML file that is saved as UTF-8") from None
    return _annotation(path, texts)


def _annotation(path: Path, texts: list[tuple[str, str, int]]) -> Annotation:
    sides = [text for side in ("width", "height") for place, text, _ in texts if place == f"annotation/size/{side}"]
    if len(sides) > 2:
        raise BoxFileError(f"{path}: several sizes of one image; expected one <size>")
    numbers = [int(side) for side in sides if side.isdecimal()]  # 0 if the tool that wrote it did not know
    size = (numbers[0], numbers[1]) if len(sides) == len(numbers) == 2 and all(numbers) else None
    boxes, synsets, fields = [], [], dict[str, str]()
    for place, text, line in texts:
        if place == "annotation/object":
            boxes.append(_box([fields.get(f"bndbox/{corner}") for corner in CORNERS], f"{path}, line {line}", size))
            synsets.append(fields.get("name", ""))
            fields = {}
        elif (field := place.removeprefix("annotation/object/")) != place:
            if field in fields and field.startswith("bndbox"):
                raise BoxFileError(
                    f"{path}, line {line}: a second <{field.rpartition('/')[2]}> in one <object>; give one each"
                )
            fields[field] = text
    if not boxes:
        raise BoxFileError(f"{path}: no object; expected <object> with <name> and <bndbox> in <annotation>")
    return Annotation(tuple(boxes), tuple(synsets), size)


def _box(
    corners: Sequence[str | None], where: str, size: tuple[int, int] | None, names: Sequence[str] = CORNERS
) -> Box:
    numbers = []
    for name, text in zip(names, corners, strict=True):
        try:
            numbers.append(float(text or ""))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise BoxFileError(f"{where}: {name} is {(text or 'missing')[:80]}; expected a number")
    x0, y0, x1, y1 = numbers
    if names == SIDES:
        x1, y1 = x0 + x1, y0 + y1
    outside = min(x0, y0) < 0 or (size is not None and (x1 > size[0] or y1 > size[1]))
    inside = x0 < x1 and y0 < y1 and not outside
    if inside and max(x1, y1) > 1:
        return x0, y0, x1, y1
    box = ", ".join(f"{number:g}" for number in numbers)
    if inside:
        raise BoxFileError(f"{where}: box ({box}) lies within one pixel; expected pixels, not fractions of the sides")
    if not (x0 < x1 and y0 < y1):
        raise BoxFileError(f"{where}: box ({box}) is empty; expected xmin < xmax and ymin < ymax")
    image = "the image" if size is None else f"the image of {size[0]}x{size[1]}"
    raise BoxFileError(f"{where}: box ({box}) extends beyond {image}; correct it or drop it")
