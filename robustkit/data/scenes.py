"""Images with a label for each pixel: ADE20K, folders of images and masks, or the package's own shapes.

A label map is (H, W) int16 in the pixels of the upright image: the index of a pixel's class, -1 where a pixel does not
count. As with the labels of whole images, what is not clearly right is refused instead of guessed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..common.files import TEXT, reason_of, text_of
from ..common.names import IN_MEMORY, held_object
from ..errors import BadImageError, DataError, unknown
from . import shapes
from .class_names import first_names, printable
from .dataset import EMBEDDED, Dataset, Sample, open_dataset
from .images import check_turn, image_sizes, read_index_mask
from .sources import FolderSource, ZipSource, list_folder

_PLAIN = re.compile(r"((?!\.{1,2}/)[^/]+/)*")


def match_names(dataset: Dataset, place: Path, names: Mapping[str, str], what: str) -> dict[str, str]:
    """Return, by sample id, the key in `names` that means it, where there is one. names: what to show, by bare path."""
    samples = _grouped([sample.id for sample in dataset.samples], bare_path)
    matches = {key: key for key in names if key in samples}
    folders = {_tail(path, 2).rpartition("/")[0] for path in samples}
    if folders & set(dataset.class_names):
        folders |= set(dataset.class_names)  # also of classes that --limit left out
    alike = {parts: [_grouped(paths, partial(_tail, parts=parts)) for paths in (samples, names)] for parts in (1, 2)}
    for key in names:
        tail = _tail(key, 2)
        if tail.rpartition("/")[0] not in folders:  # a file in such a folder cannot mean an image of another one
            tail = _tail(key, 1)
        meant, rivals = (groups.get(tail, []) for groups in alike[1 + tail.count("/")])
        if key in samples or all(path in matches for path in meant):
            continue
        path = _only([name for path_of in meant for name in samples[path_of]], names[key], place)
        if len(rivals) > 1:
            first, second = (names[rival] for rival in rivals[:2])
            remedy = f"keep one, or rename it to {bare_path(path)}"
            raise DataError(f"{place}: {first} and {second} both match {path}; {remedy}")
        matches[bare_path(path)] = key
    if not matches:
        usual = next(iter(samples))
        raise DataError(f"{place}: {what} of none of the {len(dataset)} images; expected names such as {usual}")
    return {_only(samples[path], names[key], place): key for path, key in sorted(matches.items())}


def _only(meant: Sequence[str], name: str, place: Path) -> str:
    if len(meant) > 1:
        first, second = meant[:2]
        same = bare_path(first) == bare_path(second)
        remedy = (
            "rename one of them" if same else f"include the folder of its image in its name, such as {bare_path(first)}"
        )
        raise DataError(f"{place}: {name} matches both {first} and {second}; {remedy}")
    return meant[0]


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def bare_path(name: str) -> str:
    """Return a path without its suffix, as `PurePosixPath` has it, which takes ten times as long."""
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if last and not last.startswith(".") and not (stem and not suffix) and _PLAIN.fullmatch(folder + slash):
        return folder + slash + (stem or last)
    path = PurePosixPath(name)
    return str(path.parent / path.stem)


def _tail(path: str, parts: int) -> str:
    return "/".join(path.split("/")[-parts:])


_MOST = 32767  # classes that int16 can number


def find_masks(dataset: Dataset, folder: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the mask of every sample that has one, by its id, and notes. DataError where no or several masks fit."""
    listing = list_folder(folder)
    if not listing.images:
        notes = "".join(f"{note}; " for note in listing.notes)
        raise DataError(f"{folder}: no masks in it; {notes}expected PNG files with the names of the images")
    names: dict[str, str] = {}
    for name in listing.images:
        if names.setdefault(bare_path(name), name) != name:
            raise DataError(f"{folder}: {name} and {names[bare_path(name)]} are masks of the same image; keep one")
    stems = {PurePosixPath(sample.id).stem for sample in dataset.samples}
    if stems.isdisjoint(PurePosixPath(name).stem for name in listing.images):
        mask, image = listing.images[0], dataset.samples[0].id
        why = f"no mask has the name of an image; a mask is called {mask}, an image {image}"
        raise DataError(f"{folder}: {why}; expected the same names except for the suffix")
    matched = match_names(dataset, folder, names, "masks")
    for sample, key in matched.items():
        if key != bare_path(sample) and "/" in key and "/" in sample:
            why = f"{names[key]} has the name of {sample} but lies in another folder"
            raise DataError(f"{folder}: {why}; expected the same folders for images and masks, or none")
    masks = {sample: folder / names[key] for sample, key in matched.items()}
    note = f"masks of {len(masks)} of {len(dataset)} images from {folder}"
    if len(masks) < len(dataset):
        note += f"; {len(dataset) - len(masks)} without a mask cannot be evaluated"
    return masks, (note, *(f"masks: {note}" for note in listing.notes))


def part(folder: Path, dataset: Dataset) -> Path:
    """Return the folder of masks, or its subfolder named as the images' own is: annotations/test for images/test."""
    source, parts = dataset.source, tuple[str, ...]()
    if isinstance(source, FolderSource):
        parts = Path(source.root).resolve().parts[1:]
    elif isinstance(source, ZipSource):
        parts = PurePosixPath(source.prefix).parts
    tails = ["/".join(parts[-depth:]) for depth in range(1, len(parts) + 1)]
    ours = {sample.id.partition("/")[0] for sample in dataset.samples if "/" in sample.id}
    return next((folder / tail for tail in tails if (folder / tail).is_dir() and tail not in ours), folder)


def read_names(place: Path, path: Path | None, num_classes: int | None) -> tuple[str, ...]:
    """Return the classes in label order, from a text file of one name per line (# comments), or numbers without one."""
    if path is None:
        if num_classes is None:
            remedy = "give their names (--classes) or --num-classes"
            raise DataError(f"{place}: the number of classes is unknown; {remedy}")
        names = [str(label) for label in range(num_classes)]
    else:
        try:
            lines = [line.strip() for line in text_of(path, TEXT).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            remedy = "give a text file with one name per line"
            raise DataError(f"{path}: not a readable list of classes ({reason_of(error)}); {remedy}") from None
        names = [printable(line) for line in lines if line and not line.startswith("#")]
    if not 0 < len(names) <= _MOST:
        expected = f"1 … {_MOST}, one name per line in label order"
        raise DataError(f"{path or place}: {len(names)} classes; expected {expected}")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: named more than once: {first_names(twice)}; expected a different name for each label")
    return tuple(names)


# The first noun of each line of objectInfo150.txt; its line 90 says "television" in later editions.
_NAMES = """
wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door,
table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair,
seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers,
counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table, pillow,
screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop,
stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light, truck,
tower, chandelier, awning, streetlight, booth, television receiver, airplane, dirt track, apparel, pole, land,
bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer,
plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food, step, tank,
trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase, traffic
light, tray, ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock, flag
"""
CLASSES = tuple(" ".join(name.split()) for name in _NAMES.split(","))
FIRST = 1  # the label of the first class; 0 is everything else, and does not count
_SPLITS = ("validation", "training")


def find_ade20k(place: Path) -> tuple[str, Path, Path] | None:
    """Return the split, its folder of images and its folder of masks; None where the names are not those of ADE20K.
    place: ADEChallengeData2016, the folder around it, `images`, or a split's images; validation comes before training.
    """
    splits: tuple[str, ...] = _SPLITS
    if place.name in _SPLITS and place.parent.name == "images":
        splits, place = (place.name,), place.parent
    root = place.parent if place.name == "images" else place
    for folder in (root, root / "ADEChallengeData2016"):
        split = next((name for name in splits if (folder / "images" / name).is_dir()), None)
        if split is None or not (folder / "annotations").is_dir():
            continue
        images, masks = (folder / kind / split for kind in ("images", "annotations"))
        if not masks.is_dir():
            raise DataError(f"{masks}: no such folder; ADE20K keeps there the masks of {images}")
        return split, images, masks
    return None


LAYOUTS = {
    "ade20k": "ADE20K's folders: images/validation and annotations/validation; label 0 is ignored, label 1 is class 0",
    "folders": "a folder of images, a folder of masks with their names (--masks), and the classes' names (--classes)",
    "embedded": "shapes on photographs, generated by the package: embedded:shapes, embedded:shapes-train",
}
IGNORE = (255,)
_MASK_FILES = FolderSource("")  # they are identified by their whole paths


@dataclass(frozen=True)
class LabelledScenes:
    """Images with a label for each pixel.

    dataset: the images; the label of every sample is -1. class_names: K names, in the order of the model's outputs.
    layout: one of LAYOUTS. notes: lines for the user: what was recognised and what is ignored.
    masks: a mask's file by sample id. ignored: the labels, as masks store them, that do not count.
    first: the label of class 0 in the masks. held: returns the mask of a sample whose image is in memory. foreground:
        what masks store for class 1, where that is not its place.
    """

    dataset: Dataset
    class_names: tuple[str, ...]
    layout: str
    notes: tuple[str, ...]
    masks: Mapping[str, Path] = field(default_factory=dict, repr=False)
    ignored: tuple[int, ...] = ()
    first: int = 0
    held: Callable[[Sample], npt.NDArray[np.int32]] | None = field(default=None, repr=False)
    foreground: int = 1

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def unjudged(self) -> tuple[int, ...]:
        return tuple(label - self.first for label in self.ignored if 0 <= label - self.first < len(self.class_names))

    @property
    def shift(self) -> int:
        """What to take from labels to read them the other way, with or without `reduce_zero_label`; 0 where none is."""
        return 0 if self.layout in ("ade20k", "embedded") else -1 if self.first else 1

    def labels(self, sample: Sample, size: tuple[int, int]) -> npt.NDArray[np.int16]:
        """Return a sample's label map for an upright image of (height, width): 0 … K - 1, -1 where ignored.
        BadImageError for a mask that is missing, broken, in colours, of another size, or with a strange label.
        """
        if self.held is not None:
            where, labels = f"image {sample.id}", self.held(sample)
        elif self.layout == "embedded":
            split, _, index = sample.id.partition("/")
            shape = shapes.cached_render(split, int(index))
            where, labels = sample.id, shape.mask.astype(np.int32) * (1 + shape.label)
        elif sample.id in self.masks:
            where = str(self.masks[sample.id])
            content = _MASK_FILES.read(where)
            check_turn(image_sizes(self.dataset.read(sample)), image_sizes(content), sample.id)
            labels = read_index_mask(content, where)
        else:
            remedy = "add it or leave it out (--ids)"
            raise BadImageError(f"{sample.id}: no mask for this image, though others have one; {remedy}")
        if labels.shape != tuple(size):
            mask_size, here = (f"{width}x{height}" for height, width in (labels.shape, size))
            raise BadImageError(f"{where}: the mask is of {mask_size} pixels, the image of {here}; expected the same")
        ignored = np.isin(labels, self.ignored)
        classes = (np.where(labels == self.foreground, 1, labels) if self.foreground > 1 else labels) - self.first
        strange = ~ignored & ((classes < 0) | (classes >= len(self.class_names)))
        if not strange.any():
            return np.where(ignored, -1, classes).astype(np.int16)
        counts = zip(*np.unique(labels[strange], return_counts=True), strict=True)
        counted = first_names([f"{value} on {count} pixels" for value, count in counts])
        span = f"{self.first} … {self.first + len(self.class_names) - 1}{_ignoring(self.ignored)}"
        remedy = "correct the mask" if self.layout == "ade20k" else "name its class (--classes) or ignore it (--ignore)"
        if not self.first and set(labels[strange].tolist()) == {len(self.class_names)}:
            remedy += ", or give --reduce-zero-label if 0 is no class, and class k is stored as k + 1"
        raise BadImageError(f"{where}: label {counted}; expected {span}; {remedy}")

    def digest(self) -> str:
        """Return the SHA-256 (hex) over images, masks, classes and what is ignored."""
        total = hashlib.sha256(repr((self.class_names, self.first, self.ignored, self.foreground)).encode())
        total.update(self.dataset.digest().encode())
        with ThreadPoolExecutor() as pool:
            for sample, content in zip(self.dataset.samples, pool.map(self._mask, self.dataset.samples), strict=True):
                total.update(f"{sample.id}\0{content}\n".encode())
        return total.hexdigest()

    def _mask(self, sample: Sample) -> str:
        if self.held is not None:
            return hashlib.sha256(self.held(sample).tobytes()).hexdigest()
        if sample.id not in self.masks:
            return "none"
        try:
            return hashlib.sha256(_MASK_FILES.read(str(self.masks[sample.id]))).hexdigest()
        except BadImageError:
            return "unreadable"

    def select(
        self, limit: int | None = None, ids: Path | Sequence[str] | None = None, seed: int = 0
    ) -> LabelledScenes:
        return replace(self, dataset=self.dataset.select(limit, ids, seed))


def _in_memory(
    spec: str, ignore: Sequence[int], num_classes: int | None, first: int, classes: Path | None
) -> LabelledScenes:
    scenes: LabelledScenes = held_object(spec)
    if num_classes is None:
        raise DataError(f"{spec}: the number of classes is unknown; give num_classes")
    notes = (f"{scenes.notes[0]}{_ignoring(ignore, first)}", *scenes.notes[1:])
    names = read_names(Path(spec), classes, num_classes)
    return _of_binary(replace(scenes, class_names=names, ignored=tuple(ignore), first=first, notes=notes))


def _of_binary(scenes: LabelledScenes) -> LabelledScenes:
    """Return scenes of two classes whose masks contain nothing but 0 and 255 with 255 as class 1: taken as ignored, no
    mask would have an object."""
    largest = IGNORE[0]
    if len(scenes.class_names) != 2 or largest not in scenes.ignored or scenes.first:
        return scenes
    seen = set[int]()
    for sample in scenes.dataset.samples:
        with suppress(BadImageError):
            path = str(scenes.masks[sample.id]) if sample.id in scenes.masks else ""
            if scenes.held is not None or path:
                stored = scenes.held(sample) if scenes.held else read_index_mask(_MASK_FILES.read(path), path)
                seen |= {*np.unique(stored).tolist()}
        if seen - {0, largest}:
            return scenes
    if largest not in seen:
        return scenes
    ignored = tuple(label for label in scenes.ignored if label != largest)
    note = f"masks contain 0 and {largest} alone: {largest} is class 1"
    notes = (f"{scenes.notes[0].partition(', ignored')[0]}{_ignoring(ignored)}", note, *scenes.notes[1:])
    dataset = replace(scenes.dataset, notes=notes)
    return replace(scenes, dataset=dataset, ignored=ignored, foreground=largest, notes=notes)


def open_scenes(
    data_dir: str | Path,
    *,
    masks: str | Path | None = None,
    classes: str | Path | None = None,
    ignore: Sequence[int] = IGNORE,
    num_classes: int | None = None,
    layout: str | None = None,
    reduce_zero_label: bool = False,
) -> LabelledScenes:
    """Open ADE20K's folders, a folder or zip of images with a folder of masks, or 'embedded:shapes'.

    masks: a folder of label maps of the images' sizes (see `read_index_mask` for the files, `find_masks` for names).
    classes: a text file with one name per line in the order of the labels; numbers where None.
    ignore: labels in the masks that do not count, classes among them. num_classes: outputs of the model.
    layout: one of LAYOUTS; recognised where None. reduce_zero_label: 0 does not count, and class k is stored as k + 1,
    as in ADE20K; `ignore` is of stored labels. Raises DataError, one line, for anything that is not clearly right.
    """
    if layout not in (None, *LAYOUTS):
        raise DataError(unknown("layout", layout, LAYOUTS))
    first, ignored = (FIRST, (*range(FIRST), *ignore)) if reduce_zero_label else (0, ignore)
    if str(data_dir).startswith(IN_MEMORY):
        if masks or layout:
            raise DataError(f"{data_dir} has its own masks; leave out {'masks' if masks else 'layout'}")
        scenes = _in_memory(str(data_dir), ignored, num_classes, first, Path(classes) if classes else None)
        return _of_outputs(scenes, num_classes, str(classes or data_dir))
    embedded, place = str(data_dir).startswith("embedded:"), Path(data_dir)
    if not (embedded or place.exists()):
        raise DataError(f"{place}: no such folder or zip file; check --data-dir")
    tree = None if layout == "folders" or (layout is None and masks) else find_ade20k(place)
    recognised = "embedded" if embedded else "ade20k" if tree else "folders"
    if layout not in (None, recognised):
        raise DataError(f"{data_dir}: not of layout {layout} ({LAYOUTS[layout]}); name another or leave out --layout")
    if recognised != "folders" and (masks or classes or set(ignored) - set(IGNORE)):
        theirs = "--masks, --classes, --ignore and --reduce-zero-label"
        raise DataError(f"{data_dir}: {recognised} has its own masks; leave out {theirs}")
    if tree is not None:
        split, images, labels = tree
        dataset = replace(open_dataset(images, layout="unlabelled"), name=f"ade20k-{split}")
        note = f"layout ade20k: {split}, {len(CLASSES)} classes; label 0 is ignored, label 1 is class 0"
        scenes = _scenes(dataset, "ade20k", labels, CLASSES, (FIRST - 1,), [note])
    else:
        scenes = _embedded(str(data_dir)) if embedded else _folders(place, masks, classes, ignored, num_classes, first)
    return _of_outputs(scenes, num_classes, str(classes or data_dir))


def _of_outputs(scenes: LabelledScenes, num_classes: int | None, where: str) -> LabelledScenes:
    count = len(scenes.class_names)
    if num_classes not in (None, count):
        source = f"{where}: {count} classes ({first_names(scenes.class_names, 3)})"
        raise DataError(f"{source}, but the model has {num_classes}; give those of its outputs, in their order")
    return scenes


def read_whole(dataset: Dataset, sample: Sample) -> Tensor:
    """Return (3, H, W) uint8: the image at its own size. Raises BadImageError."""
    return torch.from_numpy(np.array(dataset.image(sample))).permute(2, 0, 1).contiguous()


def _embedded(spec: str) -> LabelledScenes:
    if spec in EMBEDDED and "segment" not in EMBEDDED[spec].commands:
        raise DataError(f"{spec}: for audit and cam; segment takes embedded:shapes and embedded:shapes-train")
    dataset = open_dataset(spec)
    samples = tuple(replace(sample, label=-1) for sample in dataset.samples)
    notes = (f"layout embedded: {len(samples)} generated images of a background and {len(shapes.CLASSES)} shapes",)
    dataset = replace(dataset, samples=samples, class_names=(), notes=notes)
    return LabelledScenes(dataset, ("background", *shapes.CLASSES), "embedded", notes)


def _folders(
    place: Path,
    masks: str | Path | None,
    classes: str | Path | None,
    ignore: Sequence[int],
    num_classes: int | None,
    first: int,
) -> LabelledScenes:
    if masks is None:
        unpack = ", and unpack a zip that holds them" if place.is_file() else ""
        why = "no masks, and not ADE20K's images/validation and annotations/validation"
        raise DataError(f"{place}: {why}; give a folder of masks (--masks){unpack}")
    folder = Path(masks)
    if not folder.is_dir():
        problem = "not a folder; masks are not read from files such as a zip" if folder.exists() else "no such folder"
        raise DataError(f"{folder}: {problem}; give a folder of masks with the names of the images (--masks)")
    ours, theirs = place.resolve(), folder.resolve()
    if place.is_dir() and (ours.is_relative_to(theirs) or theirs.is_relative_to(ours)):
        why = "one contains the other, which would mix masks with images"
        raise DataError(f"{place} and {folder}: {why}; give separate folders")
    ignored = tuple(sorted({int(label) for label in ignore}))
    if ignored and (ignored[0] < 0 or ignored[-1] > 65535):
        raise DataError(f"ignored labels {', '.join(map(str, ignored))}: expected numbers in 0 … 65535")
    names = read_names(place, None if classes is None else Path(classes), num_classes)
    dataset = open_dataset(place, layout="unlabelled")
    notes = [f"layout folders: {len(names)} classes{_ignoring(ignored, first)}"]
    by_number = dict(enumerate(names, first))
    notes += [f"label {i} is ignored, although it is class {by_number[i]!r}" for i in ignored if i in by_number]
    return _of_binary(replace(_scenes(dataset, "folders", part(folder, dataset), names, ignored, notes), first=first))


def _scenes(
    dataset: Dataset, layout: str, folder: Path, names: tuple[str, ...], ignored: tuple[int, ...], notes: list[str]
) -> LabelledScenes:
    masks, matched = find_masks(dataset, folder)
    others = [note for note in dataset.notes if not note.startswith("layout ") and not note.endswith("without labels")]
    lines = (*notes, *matched, *others)
    dataset = replace(dataset, layout=layout, notes=lines)
    return LabelledScenes(dataset, names, layout, lines, masks, ignored, FIRST if layout == "ade20k" else 0)


def _ignoring(labels: Sequence[int], first: int = 0) -> str:
    ignored = f", ignored {first_names([str(label) for label in labels])}" if labels else ""
    return ignored + f"; label {first} is class 0" * (first > 0)
