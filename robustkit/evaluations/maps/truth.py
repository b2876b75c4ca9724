"""Where objects are: boxes and masks in the pixels of the upright image, turned as its EXIF data say, moved into the
model's frame. What fits the stored image as well, while nothing says which is meant, is left out."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from cam.boxes import (
    CORNERS,
    Annotation,
    Box,
    BoxFileError,
    boxes_of,
    mask_of,
    read_csv,
    read_xml,
    resize_crop_boxes,
    resize_crop_mask,
)

from ...common.files import bytes_of, check_plain, lines_of, reason_of
from ...common.finding import Finding
from ...common.preprocessing import Preprocessing
from ...data.class_names import first_names
from ...data.dataset import Dataset, Sample
from ...data.images import ImageSizes, ObjectMask, check_turn, image_sizes, object_mask, to_pixels
from ...data.scenes import bare_path, match_names
from ...data.shapes import CHANGES
from ...data.sources import MAX_FILE_BYTES, FolderSource, list_folder
from ...errors import BadImageError, DataError
from . import BOXES_GIVEN

_ANNOTATION = 1 << 20  # bytes of the XML of one image
_TABLE, _BOXES, _COLUMNS = 1 << 26, 600_000, 1000  # bytes, lines, columns of a CSV of boxes
_MASK_FILES = FolderSource("")  # they are identified by their whole paths
_UPRIGHT, _STORED = "upright", "stored"


@dataclass(frozen=True)
class Located:
    """mask: (H, W) bool, the union of boxes where only these are known. boxes: (n, 4), else around the outer contours.
    vanished: boxes cropped away. objects: (2, H, W) bool, of an image that shows two. changed: makes the changed
    image."""

    mask: Tensor
    boxes: Tensor
    vanished: int = 0
    objects: Tensor | None = None
    changed: Callable[[str], Altered] | None = None


@dataclass(frozen=True)
class Altered:
    """In the model's frame: pixels (3, H, W) uint8, mask (H, W) bool. label: the new one. other: class put in, or
    -1."""

    pixels: Tensor
    mask: Tensor
    label: int
    other: int


@dataclass(frozen=True)
class Truth:
    """boxes: annotations, masks: files, by sample id. digest: SHA-256 of all that was read and its samples; empty if
    the data set itself has the truth. void: whether the largest number in masks is void."""

    dataset: Dataset
    boxes: Mapping[str, Annotation] = field(default_factory=dict)
    masks: Mapping[str, Path] = field(default_factory=dict)
    digest: str = ""
    notes: tuple[str, ...] = ()
    void: bool = False

    @property
    def is_known(self) -> bool:
        return bool(self.boxes or self.masks) or self.dataset.mask(self.dataset.samples[0]) is not None

    def locate(self, sample: Sample, preprocessing: Preprocessing) -> Located | None:
        """Return the object in the model's frame, None where unknown. Raises BadImageError where the image or its mask
        cannot be read, or the mask or annotation is of another size."""
        frame = preprocessing.input_size
        if sample.id in self.masks:
            path = self.masks[sample.id]
            content = _MASK_FILES.read(str(path))
            mask, sizes = object_mask(content, str(path), self.void).pixels, self._sizes(sample)
            _check_size(sample, "mask", (mask.shape[1], mask.shape[0]), sizes.upright)
            check_turn(sizes, image_sizes(content), sample.id)
            return _of_mask(mask, preprocessing)
        if sample.id in self.boxes:
            annotation, size = self.boxes[sample.id], self._sizes(sample).upright
            _check_size(sample, "annotation", annotation.size, size)
            boxes, vanished = resize_crop_boxes(
                annotation.boxes, size, frame, preprocessing.crop_mode, preprocessing.crop_pct
            )
            return Located(mask_of(boxes, *frame), boxes, vanished)
        embedded = self.dataset.mask(sample)
        located = None if embedded is None else _of_mask(embedded, preprocessing)
        if (objects := self.dataset.objects(sample)) is not None:
            located = located or Located(torch.zeros(frame, dtype=torch.bool), torch.zeros(0, 4))
            return replace(located, objects=torch.stack([_moved(one, preprocessing) for one in objects]))
        if located is None or self.dataset.changed(sample, CHANGES[0]) is None:
            return located
        return replace(located, changed=lambda change: self._altered(sample, change, preprocessing))

    def _altered(self, sample: Sample, change: str, preprocessing: Preprocessing) -> Altered:
        made = self.dataset.changed(sample, change)
        assert made is not None
        pixels = to_pixels(Image.fromarray(made.shape.pixels), preprocessing, sample.id)
        return Altered(pixels, _moved(made.shape.mask, preprocessing), made.shape.label, made.other)

    def _sizes(self, sample: Sample) -> ImageSizes:
        sizes = image_sizes(self.dataset.read(sample))
        if sizes is None:
            raise BadImageError(f"{sample.id}: cannot be read as an image")
        return sizes


def _moved(mask: NDArray[Any], preprocessing: Preprocessing) -> Tensor:
    pixels, how = torch.from_numpy(mask).bool(), (preprocessing.crop_mode, preprocessing.crop_pct)
    return resize_crop_mask(pixels, preprocessing.input_size, *how)


def _of_mask(mask: NDArray[Any], preprocessing: Preprocessing) -> Located:
    moved = _moved(mask, preprocessing)
    return Located(moved, boxes_of(moved))


def open_truth(dataset: Dataset, boxes: str | Path | None = None, masks: str | Path | None = None) -> Truth:
    """Open the truth. boxes: a CSV, or a folder of ILSVRC XML. masks: a folder of images (`object_mask`), of the
    images' sizes. Each belongs to the sample of its path, or of its stem, where unique. Raises DataError for bad
    files."""
    if boxes is not None and masks is not None:
        raise DataError(f"boxes {boxes} and masks {masks}: expected one of the two")
    try:
        if boxes is not None:
            return _with_boxes(dataset, Path(boxes))
        if masks is not None:
            return _with_masks(dataset, Path(masks))
    except BoxFileError as fault:
        raise DataError(str(fault)) from None
    except (OSError, csv.Error) as fault:
        option = "--masks" if boxes is None else "--boxes"
        raise DataError(f"{boxes or masks}: cannot be read ({reason_of(fault)}); check {option}") from None
    return Truth(dataset)


def _with_boxes(dataset: Dataset, place: Path) -> Truth:
    if place.is_dir():
        listed = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.xml"))
        names = {bare_path(name): name for name in listed}
        files = {sample: place / names[key] for sample, key in match_names(dataset, place, names, "boxes").items()}
        annotations = {sample: _annotation(path) for sample, path in files.items()}
        digests = {sample: hashlib.sha256(path.read_bytes()).hexdigest() for sample, path in files.items()}
        digest = _digest(f"{sample}\0{each}\n".encode() for sample, each in digests.items())
        sizes = _sizes(dataset, files)
        placed, notes = _placed(annotations, sizes, place)
        for sample, annotation in placed.items():
            if annotation.size is not None and _is_outside(annotation.boxes, annotation.size):
                width, height = annotation.size
                raise DataError(f"{files[sample]}: a box extends beyond the image of {width}x{height}; correct it")
    else:
        _check_table(place)
        rows = read_csv(place, key=bare_path)
        keys = match_names(dataset, place, {key: key for key in rows}, "boxes")
        sizes = _sizes(dataset, keys)
        placed, notes = _placed({sample: rows[key] for sample, key in keys.items()}, sizes, place)
        upright = {keys[sample]: sizes[sample].upright for sample in placed if sample in sizes}
        if any(_is_outside(placed[sample].boxes, size.upright) for sample, size in sizes.items() if sample in placed):
            read_csv(place, upright, key=bare_path)  # raises an error with the line
        digest = _digest([hashlib.sha256(place.read_bytes()).digest()])
    note = f"{BOXES_GIVEN}{len(placed)} of {len(dataset)} images from {place}"
    return Truth(dataset, boxes=placed, digest=digest, notes=(note, *notes))


def _placed(
    annotations: Mapping[str, Annotation], sizes: Mapping[str, ImageSizes], place: Path
) -> tuple[dict[str, Annotation], list[str]]:
    """Return annotations in upright pixels without those that may be of either, and lines for the user. sizes: of
    readable images. Raises DataError where a stated size is of other proportions than the image, or all are open."""
    readings = {sample: _readings(annotations[sample], found) for sample, found in sizes.items()}
    for sample, ways in readings.items():
        if not ways:
            annotated, here = (f"{w}x{h}" for w, h in (annotations[sample].size or (0, 0), sizes[sample].upright))
            both = f"the annotation of {sample} is of {annotated} pixels, the image of {here}"
            raise DataError(f"{place}: {both}; expected the same, or the same proportions")
    turned = {sample for sample, found in sizes.items() if found.turn is not None}
    decided = {readings[sample][0] for sample in turned if len(readings[sample]) == 1}
    unclear = [sample for sample in annotations if sample in turned and len(readings[sample]) > 1]
    if len(decided) == 1:  # one tool wrote them all
        readings |= {sample: list(decided) for sample in unclear}
        unclear = []
    if unclear and len(unclear) == len(annotations):
        raise DataError(f"{place}: {_open(unclear)}")
    placed, scaled, stored = dict[str, Annotation](), 0, 0
    for sample, annotation in annotations.items():
        if sample not in sizes:
            placed[sample] = annotation
        elif sample not in unclear:
            way, boxes = readings[sample][0], annotation.boxes
            pixels = _pixels(sizes[sample], way)
            if annotation.size not in (None, pixels):
                scaled += 1
                across, down = (new / old for new, old in zip(pixels, annotation.size, strict=True))
                boxes = tuple((x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in boxes)
            if way == _STORED:
                stored += 1
                boxes = tuple(map(sizes[sample].turned, boxes))
            placed[sample] = replace(annotation, boxes=boxes, size=sizes[sample].upright)
    notes = [f"boxes of {scaled} images are scaled from the size that their files state"] if scaled else []
    notes += [f"boxes of {stored} images are of stored pixels, and are rotated as the EXIF data say"] if stored else []
    notes += [f"boxes of {len(unclear)} images are left out: {_open(unclear)}"] if unclear else []
    return placed, [*notes, *_perhaps_sides(placed, sizes)]


def _open(samples: Sequence[str]) -> str:
    return (
        f"EXIF data rotate {samples[0]}{f' and {len(samples) - 1} more' * (len(samples) > 1)}, and it is unclear "
        "whether the boxes match the stored or the upright pixels; save the image upright"
    )


def _readings(annotation: Annotation, sizes: ImageSizes) -> list[str]:
    """Return in which pixels the boxes of one image may be; upright ones where they fit neither, said elsewhere."""
    ways = [_UPRIGHT] if sizes.turn is None else [_UPRIGHT, _STORED]
    if annotation.size is not None:
        return [way for way in ways if _are_alike(annotation.size, _pixels(sizes, way))]
    return [way for way in ways if not _is_outside(annotation.boxes, _pixels(sizes, way))] or [_UPRIGHT]


def _pixels(sizes: ImageSizes, way: str) -> tuple[int, int]:
    return sizes.upright if way == _UPRIGHT else sizes.stored


def _are_alike(size: tuple[int, int], image: tuple[int, int]) -> bool:
    """Whether an image of the one size becomes one of the other by scaling, to a pixel."""
    low, high = ([(side + by) / own for own, side in zip(size, image, strict=True)] for by in (-1, 1))
    return max(low) < min(high)


def _perhaps_sides(annotations: Mapping[str, Annotation], sizes: Mapping[str, ImageSizes]) -> Iterator[str]:
    """Yield a flag where every box would fit its image as x, y, width and height, too."""
    pairs = [
        (box, sizes[sample].upright)
        for sample, annotation in annotations.items()
        if sample in sizes and annotation.columns == CORNERS
        for box in annotation.boxes
    ]
    fits = all(x0 + x1 <= width and y0 + y1 <= height for (x0, y0, x1, y1), (width, height) in pairs)
    if fits and any(x0 or y0 for (x0, y0, *_), _ in pairs):
        what = "xmin, ymin, xmax, ymax; each would also fit its image as x, y, width, height; a CSV with columns of "
        what += "these names, or left, top, right, bottom, says which"
        yield str(Finding.of("maps/boxes-assumed", what=what))


def _is_outside(boxes: Sequence[Box], size: tuple[int, int]) -> bool:
    return any(x1 > size[0] or y1 > size[1] for _, _, x1, y1 in boxes)


def _annotation(path: Path) -> Annotation:
    try:
        check_plain(path, _ANNOTATION)
        return read_xml(path)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read ({reason_of(fault)})") from None


def _check_table(place: Path) -> None:
    """Raise DataError or OSError for a CSV whose boxes would take more memory or time than any data set's."""
    try:
        for lines, line in enumerate(lines_of(place, _TABLE), start=1):
            if lines > _BOXES or (lines == 1 and line.count(",") > _COLUMNS):
                what = f"more than {_COLUMNS} columns" if lines == 1 else f"more than {_BOXES} lines"
                expected = "image, synset, xmin, ymin, xmax, ymax and a row for each box"
                raise DataError(f"{place}: {what}; expected {expected}")
    except UnicodeDecodeError:
        return  # `read_csv` reports it, with the place
    except ValueError as fault:
        raise DataError(f"{place}: {fault}; expected a row for each box") from None


def _with_masks(dataset: Dataset, place: Path) -> Truth:
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; expected mask images with the names of the images")
    names, listing = dict[str, str](), list_folder(place)
    if not listing.images and listing.notes:
        raise DataError(f"{place}: no readable masks in it; {'; '.join(listing.notes)}")
    for name in listing.images:
        if names.setdefault(bare_path(name), name) != name:
            raise DataError(f"{place}: {name} and {names[bare_path(name)]} are masks of the same image; keep one")
    masks = {sample: place / names[key] for sample, key in match_names(dataset, place, names, "masks").items()}
    with ThreadPoolExecutor() as pool:
        looks = list(pool.map(_look, masks.values()))
    # 255 is void in every mask where it is void in one: in some masks of such a set nothing else is left.
    void = next((look.mask.void for look in looks if look.mask and look.mask.void), None)
    empty = sum(look.is_empty(void is not None) for look in looks)
    if empty == len(looks):
        expected = "0 and 255, 0 and 1, or a palette whose first colour is the background"
        raise DataError(f"{place}: none of the {len(masks)} masks has an object; expected {expected}")
    digest = _digest(f"{sample}\0{look.digest}\n".encode() for sample, look in zip(masks, looks, strict=True))
    without = f", {empty} of them without an object" if empty else ""
    notes = [f"masks of {len(masks)} of {len(dataset)} images from {place}{without}"]
    values = sorted({value for look in looks if look.mask for value in look.mask.values} - {void})
    if void is not None or len(values) > 1:
        counted = f"numbers that count as object: {first_names([str(value) for value in values], 8)}"
        notes.append(counted + (f"; {void} is void and does not" if void is not None else ""))
    return Truth(dataset, masks=masks, digest=digest, notes=tuple(notes), void=void is not None)


@dataclass(frozen=True)
class _Look:
    """The digest of a mask's file, and what is in it; None where it cannot be read, which a run will name."""

    digest: str
    mask: ObjectMask | None
    any_object: bool = True

    def is_empty(self, void: bool) -> bool:
        alone = self.mask is not None and self.mask.values in ((255,), (65535,))
        return not self.any_object or (void and alone)


def _look(path: Path) -> _Look:
    try:
        content = bytes_of(path, MAX_FILE_BYTES)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read ({reason_of(fault)})") from None
    digest = hashlib.sha256(content).hexdigest()
    try:
        mask = object_mask(content, str(path))
    except BadImageError:
        return _Look(digest, None)
    light = replace(mask, pixels=mask.pixels[:0])  # the pixels of all would not fit into memory
    return _Look(digest, light, bool(mask.pixels.any()))


def _sizes(dataset: Dataset, ids: Collection[str]) -> dict[str, ImageSizes]:
    by_id = {}
    for sample in dataset.samples:
        if sample.id in ids:
            with suppress(BadImageError):
                if (sizes := image_sizes(dataset.read(sample))) is not None:
                    by_id[sample.id] = sizes
    return by_id


def _check_size(sample: Sample, what: str, size: tuple[int, int] | None, image: tuple[int, int]) -> None:
    if size is not None and size != image:
        size_text, here = (f"{width}x{height}" for width, height in (size, image))
        raise BadImageError(f"{sample.id}: the {what} is of {size_text} pixels, the image of {here}; expected the same")


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
