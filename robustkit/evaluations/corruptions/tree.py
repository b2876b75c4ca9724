"""A tree of corrupted images, as ImageNet-C's: `<corruption>/<1-5>/<class>/<file>`, or, as its archives unpack, one
level deeper. A sample's id is its path below a severity, which is the clean image's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from corruptions.constants import IMAGENET
from corruptions.registry import CATEGORIES

from ...common.files import reason_of
from ...common.preprocessing import Preprocessing
from ...data.class_names import CIFAR10
from ...data.dataset import Dataset, as_outputs, open_dataset
from ...data.images import encode_png, read_image, to_pixels
from ...data.layouts import Sample
from ...data.sources import DataSource, FolderSource, is_image_name, list_folder
from ...errors import BadImageError, DataError
from ...protocol.condition import Condition
from . import Corrupted, corruption_names

_SEVERITIES = (1, 2, 3, 4, 5)
_Listing = dict[str, tuple[str, ...]]  # the names of the images of one folder, by their stem


@dataclass(frozen=True)
class CorruptedTree:
    """folders: where a corruption's severity lies below `root`, of those present, in the benchmark's order."""

    root: Path
    folders: dict[tuple[str, int], str]
    notes: tuple[str, ...] = ()
    _listings: dict[str, _Listing] = field(default_factory=dict, repr=False, compare=False)
    _shared: dict[frozenset[str], _Listing] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> CorruptedTree:
        """Open a folder. Raises DataError without one, or without a known corruption with a severity in it."""
        root = Path(path)
        if not root.is_dir():
            raise DataError(f"{root}: no such folder; expected a tree <corruption>/<1-5>/<class>/<file>")
        if (root / LABELS).is_file():
            return ArrayTree.of(root)
        corruptions = list(_corruptions(root))
        folders = {
            (name, severity): f"{folder}/{level}"
            for name, folder in corruptions
            for severity in _SEVERITIES
            for level in _levels(name, severity)
            if _holds_something(root / folder / level)
        }
        if not folders:
            expected = "folders such as fog/3/<class>/<file> or weather/fog/3/..."
            raise DataError(f"{root}: no corruption found; expected {expected}")
        return cls(root, folders, _strangers(root, {folder for _, folder in corruptions}))

    @property
    def present(self) -> dict[str, tuple[int, ...]]:
        severities: dict[str, tuple[int, ...]] = {}
        for name, severity in self.folders:
            severities[name] = (*severities.get(name, ()), severity)
        return severities

    def dataset(self, **options: Any) -> Dataset:
        """Return the samples of the fullest folder, by `open_dataset`'s options; `read` gives other folders' images."""
        images = {folder: set(map(stem_of, list_folder(self.root / folder).images)) for folder in self.folders.values()}
        first = max(images, key=lambda folder: len(images[folder]))  # the first among equals
        opened = open_dataset(self.root / first, **options)
        notes = (f"labels and ids are those of {first}", *opened.notes, *self.notes)
        if more := set().union(*images.values()) - images[first]:
            notes += (f"left out {len(more)} images of other folders that are missing in {first}: {min(more)} ...",)
        return replace(opened, name=self.root.resolve().name, root=str(self.root), notes=notes)

    def read(self, sample_id: str, name: str, severity: int) -> bytes:
        """Return the sample's whole file. Raises BadImageError where it is missing, or cannot be read."""
        if (path := self.path(sample_id, name, severity)) is None:
            raise BadImageError(f"{name}/{severity}/{sample_id}: no such file in {self.root}")
        return FolderSource(str(self.root)).read(path)

    def reader(self, condition: Condition, preprocessing: Preprocessing) -> Callable[[Sample], Tensor]:
        part = condition.payload
        assert isinstance(part, Corrupted)

        def read(sample: Sample) -> Tensor:
            data = self.read(sample.id, part.name, part.severity)
            return tree_pixels(read_image(data, f"{part.name}/{part.severity}/{sample.id}"), preprocessing)

        return read

    def path(self, sample_id: str, name: str, severity: int) -> str | None:
        """Return where a file lies below `root`, if any; under another suffix (trees hold PNG of JPEGs) if unique."""
        folder = self.folders.get((name, severity))
        parts = sample_id.split("/")
        if folder is None or not all(map(_is_plain, parts)):
            return None
        parent = "/".join((folder, *parts[:-1]))
        names = self._listing(parent).get(_stem(parts[-1]), ())
        if parts[-1] in names:
            return f"{parent}/{parts[-1]}"
        return f"{parent}/{names[0]}" if len(names) == 1 else None

    def missing(self, samples: Iterable[Sample], name: str, severity: int) -> list[str]:
        return [sample.id for sample in samples if self.path(sample.id, name, severity) is None]

    def _listing(self, folder: str) -> _Listing:
        """List a folder's images, once. Equal folders share one listing: all severities have the same files."""
        if folder not in self._listings:
            try:
                with os.scandir(self.root / folder) as entries:
                    names = [entry.name for entry in entries if is_image_name(entry.name)]
            except OSError:
                names = []
            if (key := frozenset(names)) not in self._shared:
                listing: _Listing = {}
                for name in sorted(names):
                    listing[_stem(name)] = (*listing.get(_stem(name), ()), name)
                self._shared[key] = listing
            self._listings[folder] = self._shared[key]
        return self._listings[folder]


LABELS, MOST_CLASSES = "labels.npy", 100_000


@dataclass(frozen=True)
class ArrayTree(CorruptedTree):
    """CIFAR-10-C and CIFAR-100-C as they are distributed: `<corruption>.npy` (5 N, H, W, 3) uint8, one severity after
    the other, and `labels.npy`. A sample's id ends in its place, as `ship/00001.png`. labels: (N,)."""

    labels: tuple[int, ...] = ()

    @classmethod
    def of(cls, root: Path) -> ArrayTree:
        """Raise DataError for arrays of another form."""
        labels = _array(root / LABELS)
        names = _array_names(root)
        if not names:
            raise DataError(f"{root}: {LABELS}, but no corruption's array; expected files such as fog.npy")
        count = len(_array(root / f"{names[0]}.npy")) // 5
        for name in names:
            array = _array(root / f"{name}.npy")
            if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or len(array) != 5 * count:
                form = f"{array.dtype} of the shape {array.shape}"
                raise DataError(f"{root / name}.npy: {form}; expected uint8 of ({5 * count}, height, width, 3)")
        whole = labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels) in (count, 5 * count) and count
        if (
            not whole
            or not 0 <= labels.min() <= labels.max() < MOST_CLASSES
            or not all(np.array_equal(part, labels[:count]) for part in np.split(labels, len(labels) // count))
        ):
            raise DataError(f"{root / LABELS}: expected {count} whole numbers from 0, once or for each severity")
        folders = {(name, severity): f"{name}.npy" for name in names for severity in _SEVERITIES}
        return cls(root, folders, labels=tuple(labels[:count].tolist()))

    def dataset(self, num_classes: int | None = None, class_names: Any = None, **options: Any) -> Dataset:
        count = 1 + max(self.labels)
        if num_classes is not None and num_classes < count:
            raise DataError(f"{self.root}: {LABELS} has {count} classes, but the model has {num_classes}")
        names = CIFAR10 if count == 10 else tuple(class_names or map(str, range(count)))
        samples = tuple(Sample(f"{place:05d}", label) for place, label in enumerate(self.labels))
        named = ", classes in CIFAR-10's order" if count == 10 else ""
        note = f"labels are those of {LABELS}{named}: {len(samples)} images under {len(self.present)} corruptions"
        place = self.root.resolve().name, str(self.root), "arrays"
        return as_outputs(Dataset(*place, names, samples, None, (note,), ArraySource(self)), class_names)

    def read(self, sample_id: str, name: str, severity: int) -> bytes:
        """Return an image as a PNG."""
        if self.path(sample_id, name, severity) is None:
            raise BadImageError(f"{name}/{severity}/{sample_id}: no such image in {self.root}")
        place = (severity - 1) * len(self.labels) + _place(sample_id)
        return encode_png(np.asarray(_array(self.root / f"{name}.npy")[place]))

    def path(self, sample_id: str, name: str, severity: int) -> str | None:
        return self.folders.get((name, severity)) if 0 <= _place(sample_id) < len(self.labels) else None

    def missing(self, samples: Iterable[Sample], name: str, severity: int) -> list[str]:
        """Raise DataError where clean samples of one label have several here, as in another order."""
        samples, outputs = list(samples), dict[int, Sample]()
        for sample in samples:
            place = _place(sample.id)
            label = self.labels[place] if 0 <= place < len(self.labels) and sample.label >= 0 else -1
            if label >= 0 and (other := outputs.setdefault(label, sample)).label != sample.label:
                why = f"{LABELS} has {label} for both {other.id} and {sample.id}, whose labels differ"
                raise DataError(f"{self.root}: {why}; expected the clean images of the same test set, in its order")
        return super().missing(samples, name, severity)


@dataclass(frozen=True)
class ArraySource(DataSource):
    """The images of a tree's first array, at its first severity."""

    tree: ArrayTree

    def read(self, sample_id: str) -> bytes:
        return self.tree.read(sample_id, *next(iter(self.tree.folders)))


def _array_names(root: Path) -> list[str]:
    return [name for name in corruption_names() if (root / f"{name}.npy").is_file()]


def _place(sample_id: str) -> int:
    """Return the place that an id ends in; -1 without one."""
    digits = re.search(r"(\d+)(\.\w+)?$", sample_id)
    return int(digits[1]) if digits else -1


@lru_cache(maxsize=32)
def _array(path: Path) -> NDArray[Any]:
    """Return an array, mapped into memory. Raises DataError for anything else."""
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
        if not array.ndim:
            raise ValueError("a single value")
    except (OSError, ValueError, EOFError) as fault:
        raise DataError(f"{path}: not an array of NumPy that can be read ({reason_of(fault)})") from None
    return array


def is_tree(path: str | Path) -> bool:
    """Whether this is a folder that `CorruptedTree.open` would take; looks at a few names only."""
    root = Path(path)
    try:
        return bool((root / LABELS).is_file() and _array_names(root)) or any(
            _holds_something(root / folder / level)
            for name, folder in _corruptions(root)
            for severity in _SEVERITIES
            for level in _levels(name, severity)
        )
    except OSError:
        return False


def _levels(name: str, severity: int) -> tuple[str, ...]:
    """Return what the folder of a severity may be called: in ImageNet-C-bar by its constant, `2.35`, in LAION-C
    `intensity_level_3`."""
    level = f"{IMAGENET[name][severity - 1]:.2f}" if name in CATEGORIES["c-bar"] else f"intensity_level_{severity}"
    return level, str(severity)


def needs_resize(image: Image.Image, preprocessing: Preprocessing) -> bool:
    return image.size != preprocessing.input_size[::-1]


def tree_pixels(image: Image.Image, preprocessing: Preprocessing) -> Tensor:
    """Return (3, H, W) uint8: already cropped, so that for another input size it is resized alone."""
    if needs_resize(image, preprocessing):
        return to_pixels(image, replace(preprocessing, crop_pct=1.0, crop_mode="squash"))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def stem_of(sample_id: str) -> str:
    folder, slash, name = sample_id.rpartition("/")
    return folder + slash + _stem(name)


def _corruptions(root: Path) -> Iterable[tuple[str, str]]:
    """Yield (name, folder) of known corruptions in the benchmark's order, also from below a category's folder."""
    for name in corruption_names():
        for folder in (name, *(f"{category}/{name}" for category in CATEGORIES)):
            if (root / folder).is_dir():
                yield name, folder
                break


def _strangers(root: Path, expected: set[str]) -> tuple[str, ...]:
    """Return a line that names the folders that are not a known corruption."""
    categories = {folder.partition("/")[0] for folder in expected if "/" in folder}
    places = [(root, ""), *((root / category, f"{category}/") for category in sorted(categories))]
    strange = [
        prefix + entry.name
        for place, prefix in places
        for entry in sorted(place.iterdir())
        if entry.is_dir() and prefix + entry.name not in expected | categories and not entry.name.startswith(".")
    ]
    if not strange:
        return ()
    more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
    return (f"left out folders that are not corruptions of the benchmark: {', '.join(strange[:5])}{more}",)


def _holds_something(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(not entry.name.startswith(".") for entry in entries)
    except OSError:
        return False


_OF_LAION = re.compile(r"_(mosaic|glitched|stickers?|vertical_lines|geometric_shapes|luminance(_checkerboard)?)_[1-5]$")


def _stem(name: str) -> str:
    """Return a file's name without its suffix, and without the corruption and severity that LAION-C's names end in."""
    suffix = PurePosixPath(name).suffix
    return _OF_LAION.sub("", name[: -len(suffix)]) if is_image_name(suffix) else name


def _is_plain(part: str) -> bool:
    """Whether a part of an id is a name, and not a way out of the folder."""
    return part not in ("", ".", "..") and not set(part) & set("\\\0") and not (os.name == "nt" and ":" in part)
