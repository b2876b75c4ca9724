"""Where the object of a sample is: boxes and masks of files or of the data set itself, in the frame of the model.

Boxes and masks are in the pixels of the upright image, which is what the model sees: turned as its EXIF data say.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from cam.boxes import (
    Annotation,
    BoxFileError,
    boxes_of,
    mask_of,
    read_csv,
    read_xml,
    resize_crop_boxes,
    resize_crop_mask,
)

from ...common.files import bytes_of, check_plain, lines_of, reason
from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import image_size, read_mask, to_pixels
from ...data.matching import bare_path, match_names
from ...data.shape_sets import CHANGES
from ...data.sources import MAX_FILE_BYTES, FolderSource, list_folder
from ...errors import BadImageError, DataError

_ANNOTATION = 1 << 20  # bytes of the XML of one image
_TABLE, _BOXES, _COLUMNS = 1 << 26, 600_000, 1000  # bytes, lines, columns of a CSV of boxes
_MASK_FILES = FolderSource("")  # they are identified by their whole paths


@dataclass(frozen=True)
class Located:
    """mask: (H, W) bool, the union of the boxes where only these are known. boxes: (n, 4), around the mask's outer
    contours where only that is known. vanished: boxes that were cropped away. objects: (2, H, W) bool, of an image that
    shows two. changed: makes the image with one thing changed, of a sample that has such images."""

    mask: Tensor
    boxes: Tensor
    vanished: int = 0
    objects: Tensor | None = None
    changed: Callable[[str], Altered] | None = None


@dataclass(frozen=True)
class Altered:
    """A changed image in the frame of the model. pixels: (3, H, W) uint8. mask: (H, W) bool. label: of the new image.
    other: the class whose colour or outline was put in; -1 for none.
    """

    pixels: Tensor
    mask: Tensor
    label: int
    other: int


@dataclass(frozen=True)
class Truth:
    """The ground truth of a data set. boxes: annotations by sample id. masks: files, likewise. digest: SHA-256 over all
    that was read and the sample it belongs to; empty if the data set itself has the truth."""

    dataset: Dataset
    boxes: Mapping[str, Annotation] = field(default_factory=dict)
    masks: Mapping[str, Path] = field(default_factory=dict)
    digest: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the object of some sample is known."""
        return bool(self.boxes or self.masks) or self.dataset.mask(self.dataset.samples[0]) is not None

    def locate(self, sample: Sample, preprocessing: Preprocessing) -> Located | None:
        """Return the object in the frame that the model sees; None where nothing is known of it.

        Raises:
            BadImageError: the image's size or its mask cannot be read, or the mask or annotation is of another size.
        """
        frame, mode, share = preprocessing.input_size, preprocessing.crop_mode, preprocessing.crop_pct
        if sample.id in self.masks:
            path = self.masks[sample.id]
            mask = torch.from_numpy(read_mask(_MASK_FILES.read(str(path)), str(path)))
            _check_size(sample, "mask", (mask.shape[1], mask.shape[0]), self._size(sample))
            return self._of_mask(mask, frame, mode, share)
        if sample.id in self.boxes:
            annotation, size = self.boxes[sample.id], self._size(sample)
            _check_size(sample, "annotation", annotation.size, size)
            boxes, vanished = resize_crop_boxes(annotation.boxes, size, frame, mode, share)
            return Located(mask_of(boxes, *frame), boxes, vanished)
        embedded = self.dataset.mask(sample)
        located = None if embedded is None else self._of_mask(torch.from_numpy(embedded).bool(), frame, mode, share)
        if (objects := self.dataset.objects(sample)) is not None:
            both = [resize_crop_mask(torch.from_numpy(one).bool(), frame, mode, share) for one in objects]
            located = located or Located(torch.zeros(frame, dtype=torch.bool), torch.zeros(0, 4))
            return replace(located, objects=torch.stack(both))
        if located is None or self.dataset.changed(sample, CHANGES[0]) is None:
            return located
        return replace(located, changed=lambda change: self._altered(sample, change, preprocessing))

    def _altered(self, sample: Sample, change: str, preprocessing: Preprocessing) -> Altered:
        made = self.dataset.changed(sample, change)
        assert made is not None
        frame, mode, share = preprocessing.input_size, preprocessing.crop_mode, preprocessing.crop_pct
        pixels = to_pixels(Image.fromarray(made.shape.pixels), preprocessing, sample.id)
        mask = resize_crop_mask(torch.from_numpy(made.shape.mask).bool(), frame, mode, share)
        return Altered(pixels, mask, made.shape.label, made.other)

    def _size(self, sample: Sample) -> tuple[int, int]:
        return _size(self.dataset.read(sample), sample.id)

    @staticmethod
    def _of_mask(mask: Tensor, frame: tuple[int, int], mode: str, share: float) -> Located:
        moved = resize_crop_mask(mask, frame, mode, share)
        return Located(moved, boxes_of(moved))


def open_truth(dataset: Dataset, boxes: str | Path | None = None, masks: str | Path | None = None) -> Truth:
    """Open the ground truth for the samples of a data set, in the pixels of their upright images.

    boxes: a CSV of boxes, or a folder of ILSVRC XML files. masks: a folder of mask images (see `read_mask`), of the
    images' sizes. What belongs to a sample has its path except for the suffix; or its stem alone, where no other sample
    and no other box or mask has that stem.

    Raises:
        DataError: files that cannot be read, hold no box or mask of any sample, empty masks only, a box outside its
            image, or a name that may mean two samples.
    """
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
        raise DataError(f"{boxes or masks}: cannot be read ({reason(fault)}); check {option}") from None
    return Truth(dataset)


def _with_boxes(dataset: Dataset, place: Path) -> Truth:
    if place.is_dir():
        listed = sorted(path.relative_to(place).as_posix() for path in place.rglob("*.xml"))
        names = {bare_path(name): name for name in listed}
        files = {sample: place / names[key] for sample, key in match_names(dataset, place, names, "boxes").items()}
        annotations = {sample: _annotation(path) for sample, path in files.items()}
        digest = _digest(f"{sample}\0{_hash(path)}\n".encode() for sample, path in files.items())
    else:
        _check_table(place)
        rows = read_csv(place, key=bare_path)
        keys = match_names(dataset, place, {key: key for key in rows}, "boxes")
        sizes = _sizes(dataset, keys)
        if any(_is_outside(rows[key], size) for key, size in sizes.items()):
            read_csv(place, sizes, key=bare_path)  # raises an error with the line
        annotations = {sample: replace(rows[key], size=sizes.get(key)) for sample, key in keys.items()}
        digest = _digest([hashlib.sha256(place.read_bytes()).digest()])
    notes = (f"boxes of {len(annotations)} of {len(dataset)} images from {place}",)
    return Truth(dataset, boxes=annotations, digest=digest, notes=notes)


def _is_outside(annotation: Annotation, size: tuple[int, int]) -> bool:
    return any(x1 > size[0] or y1 > size[1] for _, _, x1, y1 in annotation.boxes)


def _annotation(path: Path) -> Annotation:
    try:
        check_plain(path, _ANNOTATION)
        return read_xml(path)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read ({reason(fault)})") from None


def _check_table(place: Path) -> None:
    """Raise DataError or OSError for a CSV whose boxes would take more memory or time than any data set's."""
    lines = 0
    try:
        for line in lines_of(place, _TABLE):
            lines += 1
            if lines > _BOXES or (lines == 1 and line.count(",") > _COLUMNS):
                what = f"more than {_COLUMNS} columns" if lines == 1 else f"more than {_BOXES} lines"
                raise DataError(
                    f"{place}: {what}; expected image, synset, xmin, ymin, xmax, ymax and a row for each box"
                )
    except UnicodeDecodeError:
        return  # `read_csv` reports it, with the place
    except ValueError as fault:
        raise DataError(f"{place}: {fault}; expected a row for each box") from None


def _with_masks(dataset: Dataset, place: Path) -> Truth:
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; expected mask images with the names of the images")
    names: dict[str, str] = {}
    for name in list_folder(place).images:
        if names.setdefault(bare_path(name), name) != name:
            raise DataError(f"{place}: {name} and {names[bare_path(name)]} are masks of the same image; keep one")
    masks = {sample: place / names[key] for sample, key in match_names(dataset, place, names, "masks").items()}
    with ThreadPoolExecutor() as pool:
        hashes, empty = zip(*pool.map(_look, masks.values()), strict=True)
    if all(empty):
        raise DataError(
            f"{place}: none of the {len(masks)} masks has an object; expected 0 and 255, 0 and 1, or a palette "
            f"whose first colour is the background"
        )
    digest = _digest(f"{sample}\0{content}\n".encode() for sample, content in zip(masks, hashes, strict=True))
    without = f", {sum(empty)} of them without an object" if any(empty) else ""
    notes = (f"masks of {len(masks)} of {len(dataset)} images from {place}{without}",)
    return Truth(dataset, masks=masks, digest=digest, notes=notes)


def _look(path: Path) -> tuple[str, bool]:
    """Return the digest of a mask's file, and whether it is empty; an unreadable one counts as not empty, and a run
    will name it.
    """
    try:
        content = bytes_of(path, MAX_FILE_BYTES)
    except OSError as fault:
        raise DataError(f"{path}: cannot be read ({reason(fault)})") from None
    try:
        empty = not read_mask(content, str(path)).any()
    except BadImageError:
        empty = False
    return hashlib.sha256(content).hexdigest(), empty


# Sizes and digests


def _sizes(dataset: Dataset, keys: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return (width, height) by key, of the images that can be read."""
    sizes = {}
    for sample in dataset.samples:
        if sample.id in keys:
            with suppress(BadImageError):
                sizes[keys[sample.id]] = _size(dataset.read(sample), sample.id)
    return sizes


def _size(content: bytes, name: str) -> tuple[int, int]:
    size = image_size(content)
    if size is None:
        raise BadImageError(f"{name}: cannot be read as an image")
    height, width = size
    return width, height


def _check_size(sample: Sample, what: str, size: tuple[int, int] | None, image: tuple[int, int]) -> None:
    if size is not None and size != image:
        there, here = (f"{width}x{height}" for width, height in (size, image))
        raise BadImageError(f"{sample.id}: the {what} is of {there} pixels, the image of {here}; expected the same")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
