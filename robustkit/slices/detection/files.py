"""Read COCO annotations and results within bounds: ids that exist, finite numbers, boxes and masks that make sense.

A box is x, y, width, height in pixels; a mask is a run-length code (compressed, or a list of counts), in annotations
also a list of polygons. Only what COCO's evaluation uses is read of an entry.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from ...common.files import bytes_of, first_line, reason_of
from ...errors import DataError
from .matching import Floats, Ints, Mask, Shapes, area_of_runs, runs_of_counts, runs_of_polygons

LARGEST = 1 << 30
"""Bytes of a file."""
TOGETHER = 10_000
"""Objects of a category in an image, which are held with all its detections."""
FARTHEST, SIDE = 1e6, 1 << 15  # the largest number of a box; the longest side of an image
OFTEN = 0.2
"""The share of boxes that reach over their image from which a finding asks what the numbers of a box are."""
_Id = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
_Side = Annotated[int, Meta(ge=1, le=SIDE)]
_Box = tuple[float, float, float, float]


class _Code(msgspec.Struct, gc=False):
    size: tuple[_Side, _Side]
    counts: str | list[Annotated[int, Meta(ge=0, le=SIDE * SIDE)]]


class _Object(msgspec.Struct, gc=False):
    image_id: _Id
    category_id: _Id


class _Truth(_Object, gc=False):
    id: _Id
    area: Annotated[float, Meta(ge=0)]
    iscrowd: Annotated[int, Meta(ge=0, le=1)]


class _TrueBox(_Truth, gc=False):
    bbox: _Box


class _TrueMask(_Truth, gc=False):
    segmentation: _Code | list[list[float]]


class _ResultBox(_Object, gc=False):
    score: float
    bbox: _Box


class _ResultMask(_Object, gc=False):
    score: float
    segmentation: _Code


class _Image(msgspec.Struct):
    id: _Id
    file_name: Annotated[str, Meta(max_length=1024)] = ""
    width: _Side | None = None
    height: _Side | None = None


class _Category(msgspec.Struct):
    id: _Id
    name: Annotated[str, Meta(min_length=1, max_length=1024)]


_Entry = TypeVar("_Entry", bound=_Truth)


class _File(msgspec.Struct, Generic[_Entry]):
    images: Annotated[list[_Image], Meta(min_length=1)]
    categories: Annotated[list[_Category], Meta(min_length=1, max_length=1 << 14)]
    annotations: list[_Entry]


@dataclass(frozen=True)
class Layout:
    """The images (n) and categories (K) of annotations, each by COCO's ids, sorted. names: of the samples. sides:
    (n, 2) height and width; 0 where the file does not say."""

    where: Path
    ids: Ints
    names: tuple[str, ...]
    sides: Ints
    category_ids: Ints
    category_names: tuple[str, ...]


@dataclass(frozen=True)
class Annotations:
    """What is true of some images. crowd: (N,). zero_id: whether an annotation has the id 0."""

    layout: Layout
    shapes: Shapes
    crowd: NDArray[np.bool_]
    zero_id: bool


@dataclass(frozen=True)
class Results:
    """What a detector returned. scores: (n,). outside: the share of boxes that reach over their image. again: how many
    detections are the same as another one. digest: of the file."""

    shapes: Shapes
    scores: Floats
    outside: float
    again: int
    digest: str


def read_annotations(path: Path, iou_type: str) -> Annotations:
    """Return COCO annotations. iou_type: `bbox` or `segm`. Raises DataError, one line, for what makes no sense."""
    content, _ = _read(path, _File[_TrueBox] if iou_type == "bbox" else _File[_TrueMask], "COCO annotations")
    images = sorted(content.images, key=lambda image: image.id)
    categories = sorted(content.categories, key=lambda category: category.id)
    for what, entries in (("image", images), ("category", categories), ("annotation", content.annotations)):
        _refuse_twice(path, f"{what} id", (each.id for each in entries))
    _refuse_twice(path, "name of a category", (each.name for each in categories))
    if blank := [each.id for each in categories if not each.name.strip()]:
        raise DataError(f"{path}: category {blank[0]} has a blank name; expected one that can be read")
    names = [each.file_name for each in images]
    layout = Layout(
        path,
        np.array([each.id for each in images], dtype=np.int64),
        tuple(names) if all(names) and len({*names}) == len(names) else tuple(str(each.id) for each in images),
        np.array([(each.height or 0, each.width or 0) for each in images], dtype=np.int64),
        np.array([each.id for each in categories], dtype=np.int64),
        tuple(each.name for each in categories),
    )
    shapes = _shapes(path, content.annotations, layout, iou_type)
    times = np.unique(shapes.images * len(categories) + shapes.categories, return_counts=True)[1]
    if (most := int(times.max(initial=0))) > TOGETHER:
        raise DataError(f"{path}: {most} objects of a category in an image; expected at most {TOGETHER}")
    areas = np.array([each.area for each in content.annotations], dtype=np.float64)
    crowd = np.array([each.iscrowd for each in content.annotations], dtype=bool)
    zero_id = any(each.id == 0 for each in content.annotations)
    return Annotations(layout, replace(shapes, areas=areas), crowd, zero_id)


def read_results(path: Path, layout: Layout, iou_type: str) -> Results:
    """Return COCO results on the images of a layout; there may be none. Raises DataError as `read_annotations`."""
    entries, digest = _read(path, list[_ResultBox] if iou_type == "bbox" else list[_ResultMask], "COCO results")
    shapes = _shapes(path, entries, layout, iou_type)
    scores = np.array([each.score for each in entries], dtype=np.float64)
    outside = 0.0
    if iou_type == "bbox" and len(entries):
        boxes, sides = np.array(shapes.outlines, dtype=np.float64), layout.sides[shapes.images, ::-1]
        ends = boxes[:, :2] + boxes[:, 2:]
        if 0 < ends.max() <= 1:
            raise DataError(f"{path}: every box ends by {ends.max():.3g}; expected pixels, not shares of a side")
        outside = float(((ends > sides + 1) & (sides > 0)).any(axis=1).mean())
    again = len(entries) - len({hash(msgspec.json.encode(each)) for each in entries})
    return Results(shapes, scores, outside, again, digest)


def _read(path: Path, kind: Any, what: str) -> tuple[Any, str]:
    try:
        data = bytes_of(path, LARGEST)
        return msgspec.json.decode(data, type=kind), hashlib.sha256(data).hexdigest()
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError, MemoryError) as fault:
        reason = reason_of(fault) if isinstance(fault, OSError) else first_line(fault)
        raise DataError(f"{path}: cannot be read as {what} ({reason}); expected the JSON of cocodataset.org") from None


def _refuse_twice(path: Path, what: str, values: Iterable[Any]) -> None:
    (value, times), *_ = Counter(values).most_common(1) or [(None, 0)]
    if times > 1:
        raise DataError(f"{path}: {what} {value!r} is there {times} times; expected once")


def _shapes(path: Path, entries: Sequence[Any], layout: Layout, iou_type: str) -> Shapes:
    """Return entries as arrays. Raises DataError where an id is not of the layout, or a shape makes no sense."""

    def places(name: str, ids: Ints) -> Ints:
        values = np.array([getattr(each, f"{name}_id") for each in entries], dtype=np.int64)
        near = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
        if (wrong := ids[near] != values).any():
            place, some = int(wrong.argmax()), ", ".join(map(str, ids[:3]))
            expected = f"one of the {len(ids)} in {layout.where}, such as {some}"
            raise DataError(f"{path}: entry {place}: {name}_id {values[place]}; expected {expected}")
        return near

    images, categories = places("image", layout.ids), places("category", layout.category_ids)
    if iou_type == "segm":
        sides = layout.sides[images].tolist()
        masks = tuple(
            _mask(each.segmentation, side[0], side[1], f"{path}: entry {place}")
            for place, (each, side) in enumerate(zip(entries, sides, strict=True))
        )
        return Shapes(images, categories, masks, np.array([area_of_runs(mask) for mask in masks], dtype=np.float64))
    boxes = np.array([each.bbox for each in entries], dtype=np.float64).reshape(-1, 4)
    if (wrong := (np.abs(boxes) > FARTHEST).any(axis=1) | (boxes[:, 2:] < 0).any(axis=1)).any():
        place = int(wrong.argmax())
        expected = f"x, y, width, height in pixels, up to {FARTHEST:g}, the last two 0 or more"
        raise DataError(f"{path}: entry {place}: bbox {boxes[place].tolist()}; expected {expected}")
    return Shapes(images, categories, boxes, boxes[:, 2] * boxes[:, 3])


def _mask(segmentation: _Code | list[list[float]], height: int, width: int, where: str) -> Mask:
    if not height or not width:
        raise DataError(f"{where}: its image has no height and width, which masks need; add them to the annotations")
    try:
        if not isinstance(segmentation, _Code):
            return runs_of_polygons(segmentation, height, width)
        if segmentation.size != (height, width):
            raise ValueError(f"size {list(segmentation.size)}; expected that of its image, {[height, width]}")
        return runs_of_counts(segmentation.counts, height * width)
    except ValueError as fault:
        raise DataError(f"{where}: segmentation has {fault}") from None
