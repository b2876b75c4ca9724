"""A folder, a zip or the embedded set into samples: a stable id, the image, its label, and what else is known of it."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..common.files import lines_of, reason_of
from ..common.names import IN_MEMORY, held_object
from ..common.preprocessing import Preprocessing
from ..errors import BadImageError, DataError, unknown
from . import shapes
from .class_names import (
    CIFAR10,
    WNID,
    Naming,
    first_names,
    named_places,
    number_classes,
    order_assumed,
    places_by_name,
)
from .images import encode_png, has_alpha, has_broken_exif, read_image, to_pixels
from .layouts import LAYOUTS, LayoutQuestion, Sample, label_images
from .shapes import CLASSES, Changed
from .sources import (
    SUFFIXES,
    Box,
    CifarSource,
    DataSource,
    FolderSource,
    Listing,
    Mask,
    ShapesSource,
    ZipSource,
    cifar_names,
    list_folder,
    list_zip,
    read_cifar,
)

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "pairs:"
SIDE = 512  # pixels of the square
_BETWEEN = "|"


@dataclass(frozen=True)
class SideBySideSource(DataSource):
    """Two files of another source as one image: the middle of each, cut to half the square, left and right."""

    source: DataSource

    def read(self, sample_id: str) -> bytes:
        names = sample_id.split(_BETWEEN)
        return encode_png(np.hstack([_half(read_image(self.source.read(name), name)) for name in names]))

    def objects(self, sample_id: str) -> tuple[Mask, Mask]:
        left = np.zeros((SIDE, SIDE), np.uint8)
        left[:, : SIDE // 2] = 1
        return left, 1 - left


def _half(image: Image.Image) -> Mask:
    width, height = SIDE // 2, SIDE
    scale = max(width / image.width, height / image.height)
    size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    resized = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def paired(samples: Sequence[Sample], where: str) -> tuple[Sample, ...]:
    """Return each sample next to one of another class, in one pair only, so that pairs are independent. Hashes of ids
    order the samples; the partner is the next one of another class without one. Those that find none are left out.
    DataError for samples without a label, of a single class, or whose id cannot be part of a pair's.
    """
    if len({sample.label for sample in samples}) < 2 or any(sample.label < 0 for sample in samples):
        raise DataError(f"{PREFIX}{where}: pairs need labelled images of two classes or more")
    if odd := next((sample.id for sample in samples if _BETWEEN in sample.id), None):
        raise DataError(f"{PREFIX}{where}: {odd} has a {_BETWEEN} in its name, which stands between the two of a pair")
    single, pairs = deque[Sample](), list[Sample]()  # the former all of one class
    for second in sorted(samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest()):
        if not single or single[0].label == second.label:
            single.append(second)
            continue
        first = single.popleft()
        pairs.append(Sample(f"{first.id}{_BETWEEN}{second.id}", first.label, (first.label, second.label)))
    return tuple(sorted(pairs, key=lambda sample: sample.id))


@dataclass(frozen=True)
class PairsSource(DataSource):
    """Two shapes in one image (robustkit.data.shape_sets); a sample's id is 'pair/<index>'."""

    def read(self, sample_id: str) -> bytes:
        return encode_png(self._pair(sample_id).pixels)

    def mask(self, sample_id: str) -> Mask:
        return self._pair(sample_id).masks.max(axis=0)  # type: ignore[no-any-return]

    def objects(self, sample_id: str) -> tuple[Mask, Mask]:
        first, second = self._pair(sample_id).masks
        return first, second

    @staticmethod
    def _pair(sample_id: str) -> shapes.ShapePair:
        return shapes.rendered_pair(int(sample_id.partition("/")[2]))


@dataclass(frozen=True)
class CounterfactualSource(ShapesSource):
    """Samples of the test split, each of which can also be had with one thing changed."""

    def changed(self, sample_id: str, change: str) -> shapes.Changed:
        return shapes.change_sample(int(sample_id.partition("/")[2]), change)


@dataclass(frozen=True)
class EmbeddedSet:
    what: str
    samples: Callable[[], tuple[Sample, ...]]
    source: DataSource
    commands: str = "audit"


def _shapes(split: str, places: Iterable[int]) -> tuple[Sample, ...]:
    return tuple(Sample(f"{split}/{i:05d}", shapes.class_of(i)) for i in places)


def _pairs() -> tuple[Sample, ...]:
    labels = (shapes.pair_labels(i) for i in range(shapes.PAIRS))
    return tuple(Sample(f"pair/{i:05d}", both[0], both) for i, both in enumerate(labels))


def _split(name: str) -> EmbeddedSet:
    samples = partial(_shapes, name, range(shapes.SIZES[name]))
    return EmbeddedSet(f"shapes, the {name} split", samples, ShapesSource(), "audit, segment")


_CHANGED = "shapes, each also with its colour, its outline or its background changed"
EMBEDDED = {
    "embedded:shapes": _split("test"),
    "embedded:shapes-train": _split("train"),
    "embedded:shapes-pairs": EmbeddedSet("two shapes in each image, with both masks", _pairs, PairsSource()),
    "embedded:shapes-counterfactual": EmbeddedSet(
        _CHANGED, lambda: _shapes("test", shapes.changeable_samples()), CounterfactualSource()
    ),
}


_SPLITS = ("val", "validation", "valid", "test", "testing", "train", "training")  # best first


def class_root(images: tuple[str, ...], split: str | None, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the prefix where class folders begin, and notes: single top folders are entered, one split is chosen."""
    prefix, notes = "", tuple[str, ...]()
    while True:
        parts = [image[len(prefix) :].split("/") for image in images if image.startswith(prefix)]
        tops = {part[0] for part in parts if len(part) > 1}
        flat = any(len(part) == 1 for part in parts)
        if split is not None and split in tops:
            prefix, split = f"{prefix}{split}/", None
        elif not flat and len(tops) > 1 and tops <= set(_SPLITS) and split is None:
            chosen = next(name for name in _SPLITS if name in tops)
            notes = (f"took {chosen!r} of the splits {', '.join(sorted(tops))}",)
            prefix = f"{prefix}{chosen}/"
        elif not flat and len(tops) == 1 and all(len(part) > 2 for part in parts) and not WNID.fullmatch(min(tops)):
            prefix = f"{prefix}{min(tops)}/"
        elif split is not None:
            raise DataError(f"{where}: no split {split!r}; it holds {', '.join(sorted(tops)[:5]) or 'no folders'}")
        else:
            return prefix, notes


__all__ = ["EMBEDDED", "LAYOUTS", "Dataset", "Sample", "open_dataset"]


@dataclass(frozen=True)
class Dataset:
    """Labelled images.

    name: short, for tables. root: what was opened. layout: how labels were found (see layouts).
    class_names: in label order. samples: sorted by id, unless `shuffled`.
    valid_labels: the logits that compete (ImageNet-A and -R); None for all of them.
    notes: lines for the user: what was recognised and what was left out.
    oddities: samples whose metadata are broken, or whose transparency is dropped, noted as `contents` reads their
        files; parts of a data set share it.
    total: samples before a part was selected; 0 where none was. border: pixels to cut off each side of an image.
    """

    name: str
    root: str
    layout: str
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]
    valid_labels: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    source: DataSource = field(default_factory=DataSource, repr=False)
    oddities: dict[str, str] = field(default_factory=dict, repr=False, compare=False)
    total: int = 0
    border: int = 0

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, sample: Sample) -> bytes:
        """Return the sample's whole image file. Raises BadImageError."""
        return self.source.read(sample.id)

    def image(self, sample: Sample) -> Image.Image:
        image = read_image(self.read(sample), sample.id)
        if not self.border:
            return image
        if min(image.size) <= 2 * self.border:
            raise BadImageError(f"{sample.id}: nothing is left of {image.width}x{image.height} without its border")
        return image.crop((self.border, self.border, image.width - self.border, image.height - self.border))

    def pixels(self, sample: Sample, preprocessing: Preprocessing) -> Tensor:
        """Return what a model takes of an image, (C, H, W): uint8 of RGB of 8 bits, else float32 in [0, 1]."""
        if preprocessing.is_rgb:
            return to_pixels(self.image(sample), preprocessing, sample.id)
        from .channels import channel_pixels

        held = self.source.array(sample.id)
        if held is None:
            return channel_pixels(self.read(sample), preprocessing, sample.id, self.border)
        ends = None if held.dtype == np.uint8 else (0.0, 1.0)
        return channel_pixels(held, replace(preprocessing, value_range=ends), sample.id)

    def size(self, sample: Sample, preprocessing: Preprocessing) -> tuple[int, int]:
        """Return (height, width) of an image before any resize. Raises BadImageError."""
        if preprocessing.is_rgb:
            return self.image(sample).size[::-1]
        from .channels import size_of

        held = self.source.array(sample.id)
        height, width = size_of(self.read(sample) if held is None else held, preprocessing.channels, sample.id)
        return height - 2 * self.border, width - 2 * self.border

    def mask(self, sample: Sample) -> Mask | None:
        """Return (H, W) uint8 in the image's own pixels, 1 on the labelled object; None without masks."""
        return self.source.mask(sample.id)

    def objects(self, sample: Sample) -> tuple[Mask, Mask] | None:
        """Return masks as `mask` does, of the two objects of an image that shows two; None where it does not."""
        return self.source.objects(sample.id)

    def changed(self, sample: Sample, change: str) -> Changed | None:
        """Return the sample with its `colour`, `shape` or `background` changed; None where there is no such image."""
        return self.source.changed(sample.id, change)

    def box(self, sample: Sample) -> Box | None:
        """Return (x0, y0, x1, y1) in the image's own pixels, x1 and y1 exclusive; None if the data set has no boxes."""
        return self.source.box(sample.id)

    def digest(self) -> str:
        """Return the SHA-256 (hex) over id, labels and content of every sample, and over the logits that compete."""
        return self.digest_of(self.contents())

    def digest_of(self, contents: Iterable[str]) -> str:
        total = hashlib.sha256(repr(self.valid_labels).encode())
        if self.border:
            total.update(f"border {self.border}".encode())
        pairs = zip(self.samples, contents, strict=True)
        for sample, content in sorted(pairs, key=lambda pair: pair[0].id):  # also of a shuffled data set
            total.update(f"{sample.id}\0{sample.label}\0{sample.valid}\0{content}\n".encode())
        return total.hexdigest()

    def contents(self) -> Iterator[str]:
        """Yield the SHA-256 (hex) of the file of each sample, in their order; `unreadable` for one without."""
        rest = iter(self.samples)
        with ThreadPoolExecutor() as pool:
            while block := list(islice(rest, 1024)):  # or 50 000 futures would wait at once
                yield from pool.map(self._content, block)

    def _content(self, sample: Sample) -> str:
        try:
            data = self.read(sample)
        except BadImageError:
            return "unreadable"
        if has_broken_exif(data):
            self.oddities[sample.id] = "exif"
        elif has_alpha(data):
            self.oddities[sample.id] = "alpha"
        return hashlib.sha256(data).hexdigest()

    def odd_note(self) -> tuple[str, ...]:
        """Return lines about samples with broken metadata or transparency, once their files were read."""
        why = {
            "exif": "broken EXIF data, which are ignored, except for an orientation that can be read",
            "alpha": "an alpha channel, which is dropped, as timm does",
        }
        by_kind = {kind: sorted(s.id for s in self.samples if self.oddities.get(s.id) == kind) for kind in why}
        return tuple(
            f"{len(names)} of {len(self)} images have {why[kind]}: {first_names(names)}"
            for kind, names in by_kind.items()
            if names
        )

    def select(self, limit: int | None = None, ids: Path | Sequence[str] | None = None, seed: int = 0) -> Dataset:
        """Return a part of the data set: the samples that `ids` names, then at most `limit` of them.

        ids: a text file with one id per line, or the ids; each a full id, or a file's name or stem if that is unique.
        limit: classes take turns, and inside a class a hash of (seed, id) decides, so that the choice depends on
        neither order nor neighbours, and a smaller limit takes a subset of a larger one.
        """
        samples: Sequence[Sample] = self.samples if ids is None else self._named(ids)
        if limit is not None:
            if limit < 1:
                raise DataError(f"limit {limit}: expected 1 or more")
            samples = _balanced(samples, limit, seed)
        ordered = tuple(sorted(samples, key=lambda sample: sample.id))
        return replace(self, samples=ordered, total=self.total or len(self))

    def in_turns(self, seed: int) -> Dataset:
        """Return the samples in the order in which `limit` takes them: the first are class-balanced, however many."""
        return replace(self, samples=tuple(_balanced(self.samples, len(self.samples), seed)))

    def shuffled(self, seed: int, groups: Sequence[str] | None = None) -> Dataset:
        """Return the samples in the order of a hash of (seed, id): the first are a random part, however many. groups:
        of the samples, (n,), which are taken one after another, in the order of a hash of (seed, name)."""

        def place(name: str) -> tuple[bytes, str]:
            return hashlib.sha256(f"order\0{seed}\0{name}".encode("utf-8", "surrogatepass")).digest(), name

        pairs = zip(groups or [""] * len(self.samples), self.samples, strict=True)
        order = sorted(pairs, key=lambda pair: (place(pair[0]), place(pair[1].id)))
        return replace(self, samples=tuple(sample for _, sample in order))

    def _distinct(self, lines: Iterable[str]) -> dict[str, None]:
        """Return the ids, at most one more than could name a sample, by id, name or stem."""
        names: dict[str, None] = {}
        for line in lines:
            if name := line.strip():
                names[name] = None
            if len(names) > 3 * len(self.samples) + 1000:
                raise DataError(f"more than {len(names) - 1} ids, but {self.name} has {len(self.samples)} samples")
        return names

    def _named(self, ids: Path | Sequence[str]) -> list[Sample]:
        if isinstance(ids, Path):
            try:
                names = self._distinct(lines_of(ids))
            except (OSError, ValueError) as error:
                remedy = "give a text file with one id per line"
                raise DataError(f"{ids}: not a readable list of ids ({reason_of(error)}); {remedy}") from None
        else:
            names = self._distinct(ids)
        if not names:
            raise DataError("the list of ids is empty; expected one sample id per line")
        exact = {sample.id: sample for sample in self.samples}
        loose: dict[str, list[Sample]] = {}
        for sample in self.samples:
            name = sample.id.rpartition("/")[2]
            for key in {name, name.rpartition(".")[0] or name}:
                loose.setdefault(key, []).append(sample)
        chosen: dict[str, Sample] = {}
        strange = []
        for name in names:
            match = [exact[name]] if name in exact else loose.get(name, [])
            if len(match) == 1:
                chosen[match[0].id] = match[0]
            else:
                strange.append(f"{name} ({len(match)} samples)" if match else name)
        if strange:
            more = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
            text, usual = ", ".join(strange[:5]) + more, repr(self.samples[0].id)
            raise DataError(
                f"ids that do not identify exactly one sample of {self.name}: {text}; an id looks like {usual}"
            )
        return list(chosen.values())


def open_dataset(
    spec: str | Path,
    *,
    layout: str | None = None,
    split: str | None = None,
    labels_csv: str | Path | None = None,
    real_labels: str | Path | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    named_only: bool = False,
    border: int = 0,
    arrays: bool = False,
) -> Dataset:
    """Open a folder, a .zip or 'embedded:shapes' and label its images; 'pairs:' before it shows two side by side.

    layout: one of LAYOUTS; None recognises it by the names. split: a sub-folder such as 'val'.
    labels_csv, real_labels: a table of labels; ReaL's JSON. num_classes, class_names: what the model says about its
    outputs; with them a partial or foreign set of class folders is mapped or refused instead of guessed. named_only:
    leave folders out that class_names do not name. border: pixels to cut off each side of an image.
    arrays: whether .npy files are images, too.
    Raises DataError, one line, for anything that is not clearly a labelled set of images.
    """
    text = str(spec)
    if border and text.startswith((IN_MEMORY, PREFIX, "embedded:")):
        raise DataError(f"{text}: a border of {border} pixels is cut off the images of files; leave the label map out")
    if text.startswith(IN_MEMORY):
        named = (("layout", layout), ("split", split), ("labels_csv", labels_csv), ("real_labels", real_labels))
        if odd := [name for name, value in named if value is not None]:
            raise DataError(f"{text} has its own labels; leave out {' and '.join(odd)}")
        return _held(text, num_classes, class_names)
    if text.startswith(PREFIX):
        files: dict[str, Any] = {"labels_csv": labels_csv, "real_labels": real_labels, "class_names": class_names}
        files |= {"layout": layout, "split": split, "num_classes": num_classes}
        return _side_by_side(open_dataset(text.removeprefix(PREFIX), **files))
    if text.startswith("embedded:"):
        if layout not in (None, "embedded") or labels_csv or real_labels:
            raise DataError(f"{text} has its own labels; leave out --layout, --labels and --real-labels")
        return _embedded(text, num_classes, class_names)
    path = Path(text)
    if not path.exists():
        raise DataError(f"{path}: no such folder or zip file; check --data-dir")
    batches = next((p for p in (path, path / "cifar-10-batches-py") if (p / "test_batch").is_file()), None)
    if layout == "cifar10" or (layout is None and batches is not None):
        return _cifar(path, batches, split or "test", num_classes, class_names)
    listing = list_folder(path, arrays) if path.is_dir() else list_zip(path, arrays)
    if not listing.images:
        if listing.notes:
            raise DataError(f"{path}: no readable images in it; {'; '.join(listing.notes)}")
        raise DataError(f"{path}: no images in it; expected a folder or zip of {', '.join(SUFFIXES)} files")
    prefix, notes = class_root(listing.images, split, str(path))
    if named_only and class_names and layout is None and labels_csv is None:
        listing, left = _named_folders(listing, prefix, tuple(class_names), str(path))
        notes = (*notes, *left)
    question = LayoutQuestion(
        where=str(path),
        images=tuple(image[len(prefix) :] for image in listing.images if image.startswith(prefix)),
        folders=tuple(folder[len(prefix) :] for folder in listing.folders if folder.startswith(prefix)),
        prefix=prefix,
        num_classes=num_classes or len(class_names or ()) or None,
        class_names=tuple(class_names) if class_names else None,
        labels_csv=Path(labels_csv) if labels_csv else None,
        real_labels=Path(real_labels) if real_labels else None,
    )
    labels = label_images(question, layout)
    source = FolderSource(str(path / prefix)) if path.is_dir() else ZipSource(str(path), prefix)
    return Dataset(
        name=path.resolve().stem if path.is_file() else path.resolve().name,
        root=str(path),
        layout=labels.layout,
        class_names=labels.class_names,
        samples=tuple(sorted(labels.samples, key=lambda sample: sample.id)),
        valid_labels=labels.valid_labels,
        notes=(f"layout {labels.layout}: {len(labels.samples)} images", *notes, *labels.notes, *listing.notes),
        source=source,
        border=border,
    )


def _named_folders(
    listing: Listing, prefix: str, names: tuple[str, ...], where: str
) -> tuple[Listing, tuple[str, ...]]:
    """Return the images and folders of named classes, and a note on the others."""
    folders = {image[len(prefix) :].partition("/")[0] for image in listing.images if image.startswith(prefix)}
    named = {f for f in folders if named_places((f,), names)}
    rest = sorted(folders - named)
    if not rest or not named:
        return listing, ()

    def of_named(path: str) -> bool:
        return path[len(prefix) :].partition("/")[0] in named

    images = tuple(filter(of_named, listing.images))
    note = (
        f"left out {len(listing.images) - len(images)} images of {len(rest)} folders that the label map does not name"
    )
    of_classes = replace(listing, images=images, folders=tuple(filter(of_named, listing.folders)))
    return of_classes, (f"{note}: {first_names(rest, 3)}",)


def _held(spec: str, num_classes: int | None, class_names: Sequence[str] | None) -> Dataset:
    dataset: Dataset = held_object(spec)
    classes, claimed = (getattr(dataset.source, name, ()) for name in ("classes", "claimed"))
    if classes and (class_names or (all(map(WNID.fullmatch, classes)) and len(classes) != num_classes)):
        naming = Naming(classes, spec, "class", None, num_classes, None if class_names is None else tuple(class_names))
        numbered = number_classes(naming)
        labels = {place: numbered.places[name] for place, name in enumerate(classes)}
        samples = tuple(replace(sample, label=labels[sample.label]) for sample in dataset.samples)
        dataset = replace(dataset, samples=samples, notes=(*dataset.notes, *numbered.notes))
    highest = max(sample.label for sample in dataset.samples)
    if num_classes is not None and highest >= num_classes:
        raise DataError(f"labels go up to {highest}, the model has classes 0 to {num_classes - 1}; check the labels")
    names = tuple(class_names or dataset.class_names)
    if len(names) != (num_classes or len(names)):
        names = tuple(map(str, range(num_classes or 0)))
    if claimed and not classes and sorted(claimed) == sorted(names) and claimed != names:
        other = f"its `classes` ({first_names(claimed, 3)}) are in another order than the checkpoint's"
        dataset = replace(dataset, notes=(*dataset.notes, order_assumed(f"labels are taken as outputs, but {other}")))
    return replace(dataset, class_names=names)


def _balanced(samples: Sequence[Sample], limit: int, seed: int) -> list[Sample]:
    by_class: dict[int, list[tuple[bytes, Sample]]] = {}
    for sample in samples:
        key = hashlib.sha256(f"{seed}\0{sample.id}".encode()).digest()
        by_class.setdefault(sample.label, []).append((key, sample))
    ordered = (sorted(members, key=lambda member: member[0]) for members in by_class.values())
    turns = [(turn, *member) for members in ordered for turn, member in enumerate(members)]
    return [sample for _, _, sample in sorted(turns, key=lambda entry: entry[:2])[:limit]]


def _embedded(spec: str, num_classes: int | None, class_names: Sequence[str] | None) -> Dataset:
    if spec not in EMBEDDED:
        raise DataError(unknown("data set", spec, EMBEDDED))
    if not class_names and num_classes not in (None, len(CLASSES)):
        raise DataError(f"{spec} has {len(CLASSES)} classes, but the model has {num_classes}")
    samples = EMBEDDED[spec].samples()
    note = f"{len(samples)} generated images of {len(CLASSES)} shapes, with masks and boxes"
    dataset = Dataset(spec, spec, "embedded", CLASSES, samples, None, (note,), EMBEDDED[spec].source)
    return as_outputs(dataset, class_names)


def as_outputs(dataset: Dataset, names: Sequence[str] | None) -> Dataset:
    """Return the data set with labels as the outputs of a model of these class names. Raises DataError where it lacks
    one."""
    if not names or tuple(names) == tuple(dataset.class_names):
        return dataset
    place = places_by_name(dataset.class_names, names, dataset.name)
    samples = tuple(
        replace(sample, label=place[sample.label], valid=tuple(place[label] for label in sample.valid or ()) or None)
        for sample in dataset.samples
    )
    return replace(dataset, class_names=tuple(names), samples=samples)


def _side_by_side(dataset: Dataset) -> Dataset:
    samples = paired(dataset.samples, dataset.root)
    left = len(dataset.samples) - 2 * len(samples)
    lacking = f"; {left} images have no partner of another class" if left else ""
    pairs = f"{len(samples)} pairs side by side, each of two classes that both count as correct{lacking}"
    notes = (*dataset.notes, pairs)
    source, root = SideBySideSource(dataset.source), f"{PREFIX}{dataset.root}"
    return replace(dataset, name=f"{PREFIX}{dataset.name}", root=root, samples=samples, notes=notes, source=source)


def _cifar(
    path: Path, folder: Path | None, split: str, num_classes: int | None, class_names: Sequence[str] | None
) -> Dataset:
    if folder is None:
        raise DataError(f"{path}: no test_batch file; layout cifar10 expects the folder cifar-10-batches-py")
    if not class_names and num_classes not in (None, 10):
        raise DataError(f"{path}: CIFAR-10 has 10 classes, but the model has {num_classes}")
    files = {"test": ("test_batch",), "train": tuple(f"data_batch_{i}" for i in range(1, 6))}
    if split not in files:
        raise DataError(unknown("CIFAR-10 split", split, files))
    batches = tuple(str(folder / name) for name in files[split])
    labels = read_cifar(batches)[1]
    samples = tuple(Sample(f"{split}/{i:05d}", place) for i, place in enumerate(labels))
    names = cifar_names(folder / "batches.meta") or CIFAR10
    note = f"layout cifar10: {len(samples)} {split} images of the python batch files"
    dataset = Dataset(f"cifar10-{split}", str(path), "cifar10", names, samples, None, (note,), CifarSource(batches))
    return as_outputs(dataset, class_names)
