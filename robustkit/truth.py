"""Where the object of a sample is: boxes and masks of files or of the data set itself, in the frame of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import torch
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

from .data import Dataset, Sample
from .errors import BadImageError, DataError
from .images import image_size, read_image
from .preprocessing import Preprocessing
from .sources import list_folder

FOREGROUND = 128  # of a mask image's grey levels


@dataclass(frozen=True)
class Located:
    """mask: (H, W) bool, the union of the boxes where only these are known. boxes: (n, 4), around the mask's outer
    contours where only that is known. vanished: boxes that were cropped away."""

    mask: Tensor
    boxes: Tensor
    vanished: int = 0


@dataclass(frozen=True)
class Truth:
    """The ground truth of a data set. boxes: annotations by the stem of the image's name. masks: files, likewise.
    digest: SHA-256 over all that was read; empty where the data set knows by itself."""

    dataset: Dataset
    boxes: Mapping[str, Annotation] = field(default_factory=dict)
    masks: Mapping[str, Path] = field(default_factory=dict)
    digest: str = ""
    notes: tuple[str, ...] = ()

    def locate(self, sample: Sample, preprocessing: Preprocessing) -> Located | None:
        """The object in the frame that the model sees; None where nothing is known of it.

        Raises:
            BadImageError: the image's size or its mask cannot be read.
        """
        frame, mode, share = preprocessing.input_size, preprocessing.crop_mode, preprocessing.crop_pct
        stem = _stem(sample.id)
        if stem in self.masks:
            path = self.masks[stem]
            grey = np.asarray(read_image(path.read_bytes(), str(path)).convert("L"))
            return self._of_mask(torch.from_numpy(grey >= FOREGROUND), frame, mode, share)
        if stem in self.boxes:
            size = _size(self.dataset.read(sample), sample.id)
            boxes, vanished = resize_crop_boxes(self.boxes[stem].boxes, size, frame, mode, share)
            return Located(mask_of(boxes, *frame), boxes, vanished)
        mask = self.dataset.mask(sample)
        if mask is not None:
            return self._of_mask(torch.from_numpy(mask).bool(), frame, mode, share)
        return None

    @staticmethod
    def _of_mask(mask: Tensor, frame: tuple[int, int], mode: str, share: float) -> Located:
        moved = resize_crop_mask(mask, frame, mode, share)
        return Located(moved, boxes_of(moved))


def open_truth(dataset: Dataset, boxes: str | Path | None = None, masks: str | Path | None = None) -> Truth:
    """The ground truth for the samples of a data set.

    boxes: a CSV of boxes, or a folder of ILSVRC XML files. masks: a folder of mask images with the images' stems.

    Raises:
        DataError: files that cannot be read, hold no box or mask of any sample, or a box outside its image.
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
    except OSError as fault:
        raise DataError(f"{boxes or masks}: cannot be read ({fault.strerror or fault})") from None
    return Truth(dataset)


def _with_boxes(dataset: Dataset, place: Path) -> Truth:
    stems = {_stem(sample.id): sample for sample in dataset.samples}
    if place.is_dir():
        files = {path.stem: path for path in sorted(place.rglob("*.xml")) if path.stem in stems}
        found = {stem: read_xml(path) for stem, path in files.items()}
        parts = [path.read_bytes() for path in files.values()]
    else:
        found = {stem: one for stem, one in read_csv(place, _sizes(dataset)).items() if stem in stems}
        parts = [place.read_bytes()]
    _check_some(found, stems, place, "boxes")
    notes = (f"boxes of {len(found)} of {len(stems)} images from {place}",)
    return Truth(dataset, boxes=found, digest=_digest(parts), notes=notes)


def _with_masks(dataset: Dataset, place: Path) -> Truth:
    if not place.is_dir():
        raise DataError(f"{place}: no such folder; expected mask images with the names of the images")
    stems = {_stem(sample.id): sample for sample in dataset.samples}
    found: dict[str, Path] = {}
    for name in list_folder(place).images:
        stem = _stem(name)
        if stem in found:
            raise DataError(f"{place}: {name} and {found[stem].name} are masks of the same image; keep one")
        if stem in stems:
            found[stem] = place / name
    _check_some(found, stems, place, "masks")
    notes = (f"masks of {len(found)} of {len(stems)} images from {place}",)
    return Truth(dataset, masks=found, digest=_digest([path.read_bytes() for path in found.values()]), notes=notes)


def _check_some(found: Mapping[str, object], stems: Mapping[str, Sample], place: Path, what: str) -> None:
    if not found:
        example = next(iter(stems))
        raise DataError(f"{place}: {what} of none of the {len(stems)} images; expected names such as {example}")


def _digest(parts: list[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def _stem(name: str) -> str:
    return PurePosixPath(name).stem


def _sizes(dataset: Dataset) -> dict[str, tuple[int, int]]:
    """(width, height) by stem, of the images that can be read."""
    found = {}
    for sample in dataset.samples:
        try:
            found[_stem(sample.id)] = _size(dataset.read(sample), sample.id)
        except BadImageError:
            continue
    return found


def _size(content: bytes, name: str) -> tuple[int, int]:
    size = image_size(content)
    if size is None:
        raise BadImageError(f"{name}: cannot be read as an image")
    height, width = size
    return width, height
