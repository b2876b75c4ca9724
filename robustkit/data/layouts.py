"""Labels from names: which label each listed image has, and why.

A wrong label map does not crash, it only gives wrong numbers; so every rule here refuses what is not certain, and each
layout leaves a note that says what was recognised.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..common.files import json_of, reason
from ..errors import DataError, unknown
from .class_lists import SYNSET_FILES, WNID, descriptions, few, synsets, timm_list
from .class_names import ASSUMED_ORDER, Naming, imagenet_wnids, number_classes
from .label_table import read_table

LAYOUTS = {
    "folders": "class folders; named by the user, they are sorted as text (torchvision's ImageFolder)",
    "folders-timm": "class folders, sorted by the numbers in their names and without case (timm's ImageFolder)",
    "imagenet": "folders named by wnid, any subset of the model's synsets",
    "imagenet-a": "ImageNet-A: 200 wnids, labels among the 1000 classes, only those 200 logits compete",
    "imagenet-r": "ImageNet-R: as imagenet-a, with its own 200 wnids",
    "imagenet-v2": "ImageNet-V2: folders '0' … '999', the number is the label",
    "imagenet-real": "ImageNet validation files with ReaL's lists of valid labels",
    "csv": "any images, and a CSV of file names and labels (--labels)",
    "unlabelled": "any images, without labels",
    "cifar10": "CIFAR-10's python batch files (cifar-10-batches-py)",
    "embedded": "ten shapes on photographs that the package makes itself: embedded:shapes and the like",
}
SUBSET = "these are the 200 classes of ImageNet-"
FLAGGED = (SUBSET, ASSUMED_ORDER)
"""How notes begin that are flags on every figure of the images: all logits compete, or the order of classes is a guess.
"""
_REAL = 16 << 20  # bytes of ReaL's lists; the published ones have 0.5 million
VALIDATION_FILE = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class Sample:
    """One image of a data set.

    id: stable relative POSIX path. label: index among the model's outputs, -1 for none.
    valid: every label that counts as right, where a data set knows several (ReaL); None means only `label`.
    """

    id: str
    label: int
    valid: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Question:
    """What is to be labelled: images and folders relative to the data set's root, and the model's own words."""

    where: str
    images: tuple[str, ...]
    folders: tuple[str, ...]
    prefix: str = ""  # the folders between what the user named and the root
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    labels_csv: Path | None = None
    real_labels: Path | None = None
    order: str | None = None  # of class folders, where the user says it

    @property
    def class_folders(self) -> list[str]:
        """Top-level folders, sorted, empty ones included."""
        with_images = {image.partition("/")[0] for image in self.images if "/" in image}
        return sorted(with_images | {folder for folder in self.folders if "/" not in folder})


@dataclass(frozen=True)
class Labels:
    """What a layout gives: see data.Dataset for the fields."""

    layout: str
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]
    valid_labels: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()


def label(question: Question, layout: str | None = None) -> Labels:
    """Label every image by the named layout, or by the one that the names show. Raises DataError when unsure."""
    if layout is None:
        layout = _recognise(question)
    elif layout in _ORDERS:
        question = replace(question, order=_ORDERS[layout])
    if layout not in RULES:
        raise DataError(unknown("layout", layout, LAYOUTS))
    labels = RULES[layout](question)
    if not labels.samples:
        raise DataError(
            f"{question.where}: no labelled image of layout {layout}; give another --layout, or --labels FILE.csv"
        )
    count, largest = question.num_classes, max(max(s.label, *(s.valid or (-1,))) for s in labels.samples)
    if count is not None and largest >= count:
        raise DataError(f"{question.where}: label {largest} ({layout}), but the model has {count} classes")
    return labels


def _recognise(q: Question) -> str:
    if q.labels_csv is not None:
        return "csv"
    if q.real_labels is not None:
        return "imagenet-real"
    names = q.class_folders
    if not names:
        raise DataError(
            f"{q.where}: images but no class folders; give a CSV of labels (--labels), or --layout unlabelled for maps "
            "alone"
        )
    if all(WNID.fullmatch(name) for name in names):
        if q.class_names and set(names) <= set(q.class_names):
            return "folders"
        return "folders" if q.num_classes not in (None, *SYNSET_FILES) else "imagenet"
    digits = all(name.isascii() and name.isdigit() for name in names)
    if digits and q.num_classes in (None, 1000) and not set(names) <= set(q.class_names or ()):
        numbers = sorted(int(name) for name in names)
        if numbers[-1] < 1000 and (len(names) == 1000 or q.num_classes == 1000):
            return "imagenet-v2"
    return "folders"


def _folders(q: Question) -> Labels:
    if not q.class_folders:
        raise DataError(f"{q.where}: no class folders; give a CSV of labels (--labels)")
    named = Naming(tuple(q.class_folders), q.where, "class folder", q.order, q.num_classes, q.class_names)
    found = number_classes(named)
    samples, left = _by_folder(q, found.places)
    notes = (*_count(found.places, samples, found.classes), *found.notes, *left)
    return Labels("folders-timm" if q.order == "natural" else "folders", found.classes, samples, None, notes)


def _imagenet(q: Question) -> Labels:
    wnids = imagenet_wnids(q.where, q.num_classes, q.class_names) if q.class_folders else synsets()
    places = {wnid: place for place, wnid in enumerate(wnids)}
    strange = [name for name in q.class_folders if name not in places]
    if strange:
        raise DataError(
            f"{q.where}: {len(strange)} folders are not wnids of the model's {len(wnids)} classes: {few(strange)}"
        )
    names = descriptions(wnids)
    samples, left = _by_folder(q, places)
    notes = _count({name: places[name] for name in q.class_folders}, samples, names)
    for letter in ("a", "r"):
        if set(q.class_folders) == set(timm_list(f"imagenet_{letter}_synsets.txt")):
            caveat = f"{SUBSET}{letter.upper()}, and all {len(names)} compete; in published figures only the 200 do"
            notes = (*notes, caveat + f": --layout imagenet-{letter}" * (len(names) == 1000))
    return Labels("imagenet", names, samples, None, (*notes, *left))


def _outputs_of_1k(q: Question) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of the model's outputs, and the output of each class of ImageNet-1k; -1 where it has none."""
    wnids = imagenet_wnids(q.where, q.num_classes, q.class_names)
    places = {wnid: place for place, wnid in enumerate(wnids)}
    return descriptions(wnids), [places.get(wnid, -1) for wnid in synsets()]


def _subset(letter: str) -> Callable[[Question], Labels]:
    def answer(q: Question) -> Labels:
        if q.num_classes not in (None, 1000):
            raise DataError(f"{q.where}: layout imagenet-{letter} needs a model with the 1000 ImageNet classes")
        allowed = timm_list(f"imagenet_{letter}_synsets.txt")
        strange = [name for name in q.class_folders if name not in allowed]
        if strange:
            raise DataError(f"{q.where}: not among the 200 classes of ImageNet-{letter.upper()}: {few(strange)}")
        labels, (_, outputs) = _imagenet(q), _outputs_of_1k(q)
        valid = tuple(outputs[int(index)] for index in timm_list(f"imagenet_{letter}_indices.txt"))
        notes = tuple(note for note in labels.notes if not note.startswith(SUBSET))
        return replace(
            labels, layout=f"imagenet-{letter}", valid_labels=valid, notes=(*notes, "only these 200 logits compete")
        )

    return answer


def _imagenet_v2(q: Question) -> Labels:
    bad = [n for n in q.class_folders if not (n.isascii() and n.isdigit() and int(n) < 1000)]
    if bad:
        raise DataError(f"{q.where}: layout imagenet-v2 expects folders '0' … '999', found {few(bad)}")
    names, outputs = _outputs_of_1k(q)
    places = {name: outputs[int(name)] for name in q.class_folders}
    if unknown_ones := [name for name, place in places.items() if place < 0]:
        raise DataError(f"{q.where}: folders of classes that the model has not: {few(unknown_ones)}; leave them out")
    samples, left = _by_folder(q, places)
    return Labels("imagenet-v2", names, samples, None, (*_count(places, samples, names), *left))


def _imagenet_real(q: Question) -> Labels:
    if q.real_labels is None:
        lists: object = json.loads("\n".join(timm_list("imagenet_real_labels.json")))
    else:
        try:
            lists = json_of(q.real_labels, _REAL)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{q.real_labels}: not a readable JSON list of labels ({reason(error)}); check --real-labels"
            ) from None
    if not isinstance(lists, list) or not all(
        isinstance(entry, list) and all(isinstance(index, int) and 0 <= index < 1000 for index in entry)
        for entry in lists
    ):
        raise DataError(f"{q.real_labels}: expected a JSON list of lists of labels 0 … 999, one for each image")
    folders = bool(q.class_folders) and all(WNID.fullmatch(name) for name in q.class_folders)
    first = {s.id: s.label for s in _imagenet(q).samples} if folders else {}
    names, outputs = _outputs_of_1k(q)
    samples, empty = [], 0
    for image in q.images:
        match = VALIDATION_FILE.match(image.rpartition("/")[2])
        if match is None or not 1 <= int(match[1]) <= len(lists):
            raise DataError(f"{q.where}: {image!r} is not ILSVRC2012_val_00000001 … {len(lists):08d}, as ReaL needs")
        valid = tuple(outputs[index] for index in lists[int(match[1]) - 1] if outputs[index] >= 0)
        empty += not valid
        if valid:
            samples.append(Sample(image, first.get(image, valid[0]), valid))
    note = f"ReaL: {len(samples)} images with valid labels; {empty} without any left out"
    return Labels("imagenet-real", names, tuple(samples), None, (note,))


def _csv(q: Question) -> Labels:
    if q.labels_csv is None:
        raise DataError("layout csv needs a CSV of labels (--labels)")
    told = list[str]()
    names, labels = read_table(
        q.labels_csv,
        q.images,
        where=q.where,
        prefix=q.prefix,
        num_classes=q.num_classes,
        class_names=q.class_names,
        tell=told.append,
    )
    samples = tuple(Sample(image, place) for image, place in labels.items())
    notes = [f"{len(samples)} labels from {q.labels_csv.name}, {len(set(labels.values()))} classes", *told]
    if len(samples) < len(q.images):
        notes.append(f"left out {len(q.images) - len(samples)} images that the CSV does not name")
    return Labels("csv", names, samples, None, tuple(notes))


def _unlabelled(q: Question) -> Labels:
    samples = tuple(Sample(image, -1) for image in q.images)
    return Labels("unlabelled", q.class_names or (), samples, None, (f"{len(samples)} images without labels",))


_ORDERS = {"folders": "text", "folders-timm": "natural"}
RULES: dict[str, Callable[[Question], Labels]] = {
    "folders": _folders,
    "folders-timm": _folders,
    "imagenet": _imagenet,
    "imagenet-a": _subset("a"),
    "imagenet-r": _subset("r"),
    "imagenet-v2": _imagenet_v2,
    "imagenet-real": _imagenet_real,
    "csv": _csv,
    "unlabelled": _unlabelled,
}


def _by_folder(q: Question, places: dict[str, int]) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
    samples = [Sample(image, places[image.partition("/")[0]]) for image in q.images if "/" in image]
    stray = len(q.images) - len(samples)
    return tuple(samples), ((f"left out {stray} images outside the class folders",) if stray else ())


def _count(places: dict[str, int], samples: Iterable[Sample], names: Sequence[str]) -> tuple[str, ...]:
    used = {sample.label for sample in samples}
    empty = len(set(places.values()) - used)
    return (f"{len(used)} of {len(names)} classes have images",) + (
        (f"{empty} class folders hold no image",) if empty else ()
    )
