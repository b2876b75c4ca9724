"""Labels from names, folders and CSV files: which label each listed image has.

A wrong label map does not crash, it only gives wrong numbers; so every rule here refuses what is not certain, and each
layout leaves a note that says what was recognised.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from ..common.files import json_of, lines_of, reason_of
from ..common.finding import Finding
from ..errors import DataError, unknown
from .class_names import (
    SYNSET_FILES,
    WNID,
    Naming,
    Numbered,
    descriptions,
    first_names,
    imagenet_wnids,
    number_classes,
    number_wnids,
    synsets,
    timm_list,
)

PATH_COLUMNS = ("filename", "file", "path", "filepath", "image", "image_path", "file_name", "name", "id", "imageid")
_DIGITS = 6  # digits of an index
_NUMBERED = (
    *("class_id", "class_index", "class_idx", "label_id", "label_index", "label_idx", "category_id", "target_id"),
    *("y", "index"),
)
LABEL_COLUMNS = ("label", "class", "target", "category", *_NUMBERED, "wnid", "synset", "class_name")
_NAMED = ("wnid", "synset", "class_name")
_MISSING = ("", "nan", "na", "n/a", "<na>", "none", "null", "nat", "?", "-")
_LIKE_A_NUMBER = re.compile(r"[+-]?[\d.,_\s]*\d[\d.,_\s]*|0[xob][\da-f]+", re.IGNORECASE)
_WHOLE = re.compile(r"\+?(\d+)(\.0*)?", re.ASCII)


@dataclass(frozen=True)
class _Cell:
    at: str
    column: str
    text: str


@dataclass(frozen=True)
class _Column:
    cells: Sequence[_Cell]
    indices: Mapping[str, int] | None
    named: Numbered | None = None

    @property
    def places(self) -> Mapping[str, int] | None:
        return self.named.places if self.indices is None and self.named else self.indices


def read_table(
    table: Path,
    images: Sequence[str],
    *,
    where: str,
    prefix: str = "",
    num_classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the class names, and the label of every image that the table names. images: ids under `where`, which the
    table may begin with `prefix`, or name by a unique file name or stem. A label is an index (3, 3.0, +3), a wnid or a
    class name, see `number_classes`. Columns of labels must agree, indices decide. tell: takes notes. Raises DataError,
    with the line, for what is missing, doubled, outside, unknown or contradictory.
    """
    find = finder(images, prefix, where)
    entries: dict[str, list[_Cell]] = {}
    for line, name, cells in _rows(table):
        at = f"{table.name} line {line}"
        image = find(name, at)
        if image in entries:
            raise DataError(f"{at}: {name!r} is named twice")
        entries[image] = [_Cell(at, column, text) for column, text in cells]
    if not entries:
        raise DataError(f"{table}: no labels; expected a row for each image below the header")
    columns = list(zip(*entries.values(), strict=True))
    read = [_Column(cells, _indices(cells, class_names)) for cells in columns if not _is_counter(cells, len(columns))]
    indexed = any(column.indices is not None for column in read)
    model = num_classes, class_names
    read = [each if each.indices is not None else _named(each, table, *model, indexed) for each in read]
    best = next((column for column in read if column.indices is not None), read[0])
    for column in read:
        _check_range(column, num_classes or len(class_names or ()), class_names)
        _check_alike(best, column)
    places = best.places or {}
    labels = {image: places[cell.text] for image, cell in zip(entries, best.cells, strict=True)}
    if best.named:
        for note in best.named.notes:
            tell(note)
        return best.named.classes, labels
    count = num_classes or max(labels.values()) + 1
    return class_names or (descriptions(synsets()) if count == 1000 else tuple(map(str, range(count)))), labels


def _indices(cells: Sequence[_Cell], class_names: tuple[str, ...] | None) -> dict[str, int] | None:
    """Return the index of each text of a column; None for names. Raises DataError where it has both."""
    by_text = {cell.text: (_index(cell, class_names), cell) for cell in cells}
    indices = {text: index for text, (index, _) in by_text.items() if index is not None}
    if not indices:
        return None
    if name := next((cell for index, cell in by_text.values() if index is None), None):
        number = by_text[next(iter(indices))][1]
        why = f"label {name.text!r} is a name, but {number.at} has the number {number.text}"
        raise DataError(f"{name.at}: {why}; give all as indices, or all as names")
    return indices


def _named(
    column: _Column, table: Path, num_classes: int | None, class_names: tuple[str, ...] | None, indexed: bool
) -> _Column:
    lines = {cell.text: cell.at for cell in reversed(column.cells)}
    naming = Naming(tuple(sorted(lines)), str(table), "class name", None, num_classes, class_names, lines.__getitem__)
    try:
        numbered = number_classes(naming)
    except DataError:
        if not indexed:
            raise
        return column
    return replace(column, named=numbered if numbered.is_sure or not indexed else None)


def _check_range(column: _Column, count: int, class_names: tuple[str, ...] | None) -> None:
    named = {name: place for place, name in enumerate(class_names or ())}
    for cell in column.cells if column.indices else ():
        index = (column.indices or {})[cell.text]
        if count and index >= count:
            raise DataError(f"{cell.at}: label {cell.text!r} is not one of the {count} classes")
        if cell.column not in _NUMBERED and named.get(str(index), index) != index:
            why = f"label {cell.text!r} is an index, and also the checkpoint's name of class {named[str(index)]}"
            raise DataError(f"{cell.at}: {why}; call the column class_index or class_name")


def _check_alike(best: _Column, other: _Column) -> None:
    """Raise DataError for a row whose labels in two columns differ, or of which one goes with two of the other."""
    forth: dict[object, object] = {}
    back: dict[object, object] = {}
    for one, two in zip(best.cells, other.cells, strict=True):
        a = best.places[one.text] if best.places else one.text
        b = other.places[two.text] if other.places else two.text
        alike = a == b if best.places and other.places else forth.setdefault(a, b) == b and back.setdefault(b, a) == a
        if not alike:
            pair = f"{one.column} {one.text!r} and {two.column} {two.text!r}"
            raise DataError(f"{one.at}: {pair} contradict each other; correct one, or remove its column")


def _index(cell: _Cell, class_names: tuple[str, ...] | None) -> int | None:
    """Return the index that a label is; None for a name. Raises DataError for a label that is missing or no index."""
    text = cell.text
    if text in (class_names or ()) and (cell.column in _NAMED or not _WHOLE.fullmatch(text)):
        return None
    if text.casefold() in _MISSING:
        raise DataError(f"{cell.at}: the label is missing ({text!r}); give one, or remove the line")
    if form := _WHOLE.fullmatch(text):
        digits = form[1].lstrip("0") or "0"
        if len(digits) > _DIGITS:
            expected = f"the index of a class, of {_DIGITS} digits at most"
            raise DataError(f"{cell.at}: label {digits[:20]}: expected {expected}")
        return int(digits)
    try:
        value = float(text)
    except ValueError:
        if not _LIKE_A_NUMBER.fullmatch(text):
            return None
        value = math.nan
    if 0 <= value < 10**_DIGITS and value == int(value) and text.isascii() and "_" not in text:
        return int(value)  # such as 3e+00
    if value < 0:
        remedy = "expected an index, 0 or more; correct it or remove the line"
        raise DataError(f"{cell.at}: label {text!r} is negative; {remedy}")
    raise DataError(f"{cell.at}: label {text!r}; expected a whole number such as 3")


def _is_counter(cells: Sequence[_Cell], columns: int) -> bool:
    """Whether a column named index only counts the rows next to other labels, as pandas writes it."""
    texts = [cell.text for cell in cells]
    counted = any(texts == [str(place + first) for place in range(len(texts))] for first in (0, 1))
    return columns > 1 and cells[0].column == "index" and counted


def _rows(path: Path) -> Iterator[tuple[int, str, list[tuple[str, str]]]]:
    """Yield (line, file name, labels with their columns)."""
    rows = table_rows(path, "labels")
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: empty; expected a column of file names and a column of labels")
    header = [cell.lower() for cell in first[1]]
    file_column = next((header.index(name) for name in PATH_COLUMNS if name in header), None)
    columns = [place for name in LABEL_COLUMNS for place, cell in enumerate(header) if cell == name]
    if file_column is not None and columns:
        first = None
    elif len(header) == 2 and file_column is None and not columns:
        file_column, columns, header = 0, [1], ["filename", "label"]
    else:
        expected = "one of filename, path, image and one of label, class, wnid"
        raise DataError(f"{path}: columns {first_names(header)}; expected {expected}")
    for line, row in rows if first is None else chain([first], rows):
        if len(row) <= max(file_column, *columns):
            raise DataError(f"{path.name} line {line}: {len(row)} columns; expected a file name and a label")
        yield line, row[file_column], [(header[place], row[place]) for place in columns]


def table_rows(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of the rows that are not empty, one at a time: a table may be larger than the memory. what:
    it is of, and the option that names it. Raises DataError."""
    try:
        lines = lines_of(path)
        first = next(lines, "")
        delimiter = max(",;\t", key=first.count)
        for number, row in enumerate(csv.reader(chain([first], lines), delimiter=delimiter), start=1):
            if any(row):
                yield number, [cell.strip() for cell in row]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV of {what} ({reason_of(error)}); check --{what}") from None


def finder(images: Sequence[str], prefix: str, where: str, strict: bool = True) -> Callable[[str, str], str]:
    """Return what finds the image that a table names, and where it does: a whole id, or a file name or stem that one
    image has. It raises DataError, but returns an empty text for a name of no image unless `strict`."""
    exact = set(images)
    loose: dict[str, list[str]] = {}
    for image in images:
        name = image.rpartition("/")[2]
        for key in {name, name.rpartition(".")[0]}:
            loose.setdefault(key, []).append(image)

    def find(name: str, at: str) -> str:
        path = name.replace("\\", "/").removeprefix("./")
        if path.startswith("/") or ".." in path.split("/") or re.match(r"[A-Za-z]:", path):
            raise DataError(f"{at}: {name!r} points outside the data set; give paths relative to {where}")
        for candidate in (path, path.removeprefix(prefix)):
            if candidate in exact:
                return candidate
        matches = loose.get(path, [])
        if len(matches) == 1:
            return matches[0]
        if not (matches or strict):
            return ""
        raise DataError(f"{at}: {name!r} names {len(matches) or 'no'} image{'s' * (len(matches) > 1)} under {where}")

    return find


LAYOUTS = {
    "folders": "class folders; named by the user, they are sorted as text (torchvision's ImageFolder)",
    "folders-timm": "class folders, sorted by the numbers in their names and without case (timm's ImageFolder)",
    "imagenet": "folders named by wnid, any subset of the model's synsets",
    "imagenet-a": "ImageNet-A: 200 wnids, labels among the 1000 classes, only those 200 logits compete",
    "imagenet-r": "ImageNet-R: as imagenet-a, with its own 200 wnids",
    "imagenet-v2": "ImageNet-V2: folders '0' … '999', the number is the label",
    "imagenet-real": "ImageNet validation files with ReaL's lists of valid labels",
    "csv": "any images, with a CSV of file names and labels (--labels)",
    "unlabelled": "any images, without labels",
    "cifar10": "CIFAR-10's python batch files (cifar-10-batches-py)",
    "embedded": "ten shapes on photographs, generated by the package: embedded:shapes and the like",
}
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
class LayoutQuestion:
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


def label_images(question: LayoutQuestion, layout: str | None = None) -> Labels:
    """Label every image by the named layout, or by the one that the names show. Raises DataError when unsure."""
    if layout is None:
        layout = _recognise(question)
    elif layout in _ORDERS:
        question = replace(question, order=_ORDERS[layout])
    if layout not in RULES:
        raise DataError(unknown("layout", layout, LAYOUTS))
    labels = RULES[layout](question)
    if not labels.samples:
        remedy = "give another --layout, or --labels FILE.csv"
        raise DataError(f"{question.where}: no labelled image of layout {layout}; {remedy}")
    count, largest = question.num_classes, max(max(s.label, *(s.valid or (-1,))) for s in labels.samples)
    if count is not None and largest >= count:
        raise DataError(f"{question.where}: label {largest} ({layout}), but the model has {count} classes")
    return labels


def _recognise(q: LayoutQuestion) -> str:
    if q.labels_csv is not None:
        return "csv"
    if q.real_labels is not None:
        return "imagenet-real"
    names = q.class_folders
    if not names:
        remedy = "give a CSV of labels (--labels), or --layout unlabelled for maps alone"
        raise DataError(f"{q.where}: images but no class folders; {remedy}")
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


def _folders(q: LayoutQuestion) -> Labels:
    if not q.class_folders:
        raise DataError(f"{q.where}: no class folders; give a CSV of labels (--labels)")
    named = Naming(tuple(q.class_folders), q.where, "class folder", q.order, q.num_classes, q.class_names)
    numbered = number_classes(named)
    samples, left = _by_folder(q, numbered.places)
    notes = (*_count(numbered.places, samples, numbered.classes), *numbered.notes, *left)
    return Labels("folders-timm" if q.order == "natural" else "folders", numbered.classes, samples, None, notes)


def _imagenet(q: LayoutQuestion) -> Labels:
    naming = Naming(tuple(q.class_folders), q.where, num_classes=q.num_classes, class_names=q.class_names)
    numbered = number_wnids(naming if q.class_folders else Naming((), q.where))
    names = numbered.classes
    samples, left = _by_folder(q, numbered.places)
    notes = _count(numbered.places, samples, names)
    for letter in ("a", "r"):
        if set(q.class_folders) == set(timm_list(f"imagenet_{letter}_synsets.txt")):
            remedy = f": --layout imagenet-{letter}" * (len(names) == 1000)
            values = {"letter": letter.upper(), "classes": len(names), "remedy": remedy}
            notes = (*notes, str(Finding.of("labels/all-classes-compete", **values)))
    return Labels("imagenet", names, samples, None, (*notes, *left))


def _outputs_of_1k(q: LayoutQuestion) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of the model's outputs, and each ImageNet-1k class's output; -1 where it has none."""
    wnids = imagenet_wnids(q.where, q.num_classes, q.class_names)
    places = {wnid: place for place, wnid in enumerate(wnids)}
    return descriptions(wnids), [places.get(wnid, -1) for wnid in synsets()]


def _subset(letter: str, q: LayoutQuestion) -> Labels:
    layout = f"imagenet-{letter}"
    if q.num_classes not in (None, 1000):
        raise DataError(f"{q.where}: layout {layout} needs a model with the 1000 ImageNet classes")
    allowed = timm_list(f"imagenet_{letter}_synsets.txt")
    if strange := [name for name in q.class_folders if name not in allowed]:
        raise DataError(f"{q.where}: not among the 200 classes of ImageNet-{letter.upper()}: {first_names(strange)}")
    labels, (_, outputs) = _imagenet(q), _outputs_of_1k(q)
    valid = tuple(outputs[int(index)] for index in timm_list(f"imagenet_{letter}_indices.txt"))
    notes = tuple(note for note in labels.notes if Finding.parse(note) is None)
    return replace(labels, layout=layout, valid_labels=valid, notes=(*notes, "only these 200 logits compete"))


def _imagenet_v2(q: LayoutQuestion) -> Labels:
    if bad := [n for n in q.class_folders if not (n.isascii() and n.isdigit() and int(n) < 1000)]:
        raise DataError(f"{q.where}: layout imagenet-v2 expects folders '0' … '999', found {first_names(bad)}")
    names, outputs = _outputs_of_1k(q)
    places = {name: outputs[int(name)] for name in q.class_folders}
    if unknown_ones := [name for name, place in places.items() if place < 0]:
        which = first_names(unknown_ones)
        raise DataError(f"{q.where}: folders of classes that the model lacks: {which}; leave them out")
    samples, left = _by_folder(q, places)
    return Labels("imagenet-v2", names, samples, None, (*_count(places, samples, names), *left))


def _imagenet_real(q: LayoutQuestion) -> Labels:
    if q.real_labels is None:
        lists: object = json.loads("\n".join(timm_list("imagenet_real_labels.json")))
    else:
        try:
            lists = json_of(q.real_labels, _REAL)
        except (OSError, ValueError) as error:
            why = f"not a readable JSON list of labels ({reason_of(error)})"
            raise DataError(f"{q.real_labels}: {why}; check --real-labels") from None
    entries = lists if isinstance(lists, list) and all(isinstance(entry, list) for entry in lists) else None
    if entries is None or not all(isinstance(i, int) and 0 <= i < 1000 for entry in entries for i in entry):
        raise DataError(f"{q.real_labels}: expected a JSON list of lists of labels 0 … 999, one for each image")
    folders = bool(q.class_folders) and all(WNID.fullmatch(name) for name in q.class_folders)
    first = {s.id: s.label for s in _imagenet(q).samples} if folders else {}
    names, outputs = _outputs_of_1k(q)
    samples, empty = [], 0
    for image in q.images:
        match = VALIDATION_FILE.match(image.rpartition("/")[2])
        if match is None or not 1 <= int(match[1]) <= len(entries):
            raise DataError(f"{q.where}: {image!r} is not ILSVRC2012_val_00000001 … {len(entries):08d}, as ReaL needs")
        valid = tuple(outputs[index] for index in entries[int(match[1]) - 1] if outputs[index] >= 0)
        empty += not valid
        if valid:
            samples.append(Sample(image, first.get(image, valid[0]), valid))
    note = f"ReaL: {len(samples)} images with valid labels; {empty} without any left out"
    return Labels("imagenet-real", names, tuple(samples), None, (note,))


def _csv(q: LayoutQuestion) -> Labels:
    if q.labels_csv is None:
        raise DataError("layout csv needs a CSV of labels (--labels)")
    reported = list[str]()
    place = {"where": q.where, "prefix": q.prefix, "tell": reported.append}
    model = {"num_classes": q.num_classes, "class_names": q.class_names}
    names, labels = read_table(q.labels_csv, q.images, **place, **model)  # type: ignore[arg-type]
    samples = tuple(Sample(image, place) for image, place in labels.items())
    notes = [f"{len(samples)} labels from {q.labels_csv.name}, {len(set(labels.values()))} classes", *reported]
    if len(samples) < len(q.images):
        notes.append(f"left out {len(q.images) - len(samples)} images that are not in the CSV")
    return Labels("csv", names, samples, None, tuple(notes))


def _unlabelled(q: LayoutQuestion) -> Labels:
    samples = tuple(Sample(image, -1) for image in q.images)
    return Labels("unlabelled", q.class_names or (), samples, None, (f"{len(samples)} images without labels",))


_ORDERS = {"folders": "text", "folders-timm": "natural"}
RULES: dict[str, Callable[[LayoutQuestion], Labels]] = {
    "folders": _folders,
    "folders-timm": _folders,
    "imagenet": _imagenet,
    "imagenet-a": partial(_subset, "a"),
    "imagenet-r": partial(_subset, "r"),
    "imagenet-v2": _imagenet_v2,
    "imagenet-real": _imagenet_real,
    "csv": _csv,
    "unlabelled": _unlabelled,
}


def _by_folder(q: LayoutQuestion, places: dict[str, int]) -> tuple[tuple[Sample, ...], tuple[str, ...]]:
    samples = [Sample(image, places[image.partition("/")[0]]) for image in q.images if "/" in image]
    stray = len(q.images) - len(samples)
    return tuple(samples), ((f"left out {stray} images outside the class folders",) if stray else ())


def _count(places: dict[str, int], samples: Iterable[Sample], names: Sequence[str]) -> tuple[str, ...]:
    used = {sample.label for sample in samples}
    note = f"{len(used)} of {len(names)} classes have images"
    return (note, f"{empty} class folders hold no image") if (empty := len(set(places.values()) - used)) else (note,)
