"""A CSV of file names and labels, whatever its columns are called, matched against the images that are there."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from ..common.files import lines_of, reason
from ..errors import DataError
from .class_lists import CIFAR10, WNID, descriptions, few, synsets

PATH_COLUMNS = ("filename", "file", "path", "filepath", "image", "image_path", "file_name", "name", "id", "imageid")
_DIGITS = 6  # digits of an index
LABEL_COLUMNS = ("label", "class", "target", "class_id", "class_index", "index", "wnid", "synset", "class_name")


def read_table(
    table: Path,
    images: Sequence[str],
    *,
    where: str,
    prefix: str = "",
    num_classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the class names, and the label of every image that the table names.

    images: ids under `where`; in the table their paths may also start with `prefix`. A row names an image by
    its path, or by its file name or stem where only one image has it. A label is an index, a wnid or a class name.
    Raises DataError, with the line, for an image that is missing or named twice, a path outside, or an unknown label.
    """
    find = _finder(images, prefix, where)
    entries: dict[str, tuple[str, str]] = {}
    for line, name, text in _rows(table):
        at = f"{table.name} line {line}"
        image = find(name, at)
        if image in entries:
            raise DataError(f"{at}: {name!r} is named twice")
        entries[image] = (at, text)
    names, places = _classes(table, sorted({text for _, text in entries.values()}), num_classes, class_names)
    labels = {}
    for image, (at, text) in entries.items():
        key = str(int(text)) if _is_number(text) and len(text) < 100 and text not in places else text
        if key not in places:
            raise DataError(f"{at}: label {text!r} is none of the {len(places)} classes")
        labels[image] = places[key]
    return names, labels


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, file name, label) of a table separated by commas, semicolons or tabs, with or without a header."""
    rows = _parse(path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path}: empty; expected a column of file names and a column of labels")
    header = [cell.lower() for cell in first[1]]
    file_column = next((header.index(name) for name in PATH_COLUMNS if name in header), None)
    label_column = next((header.index(name) for name in LABEL_COLUMNS if name in header), None)
    if file_column is not None and label_column is not None:
        first = None
    elif len(header) == 2 and file_column is None and label_column is None:
        file_column, label_column = 0, 1
    else:
        raise DataError(
            f"{path}: columns {few(header)}; expected one of filename, path, image and one of label, class, wnid"
        )
    for line, row in rows if first is None else chain([first], rows):
        if len(row) <= max(file_column, label_column):
            raise DataError(f"{path.name} line {line}: {len(row)} columns; expected a file name and a label")
        yield line, row[file_column], row[label_column]


def _parse(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) of the rows that are not empty, one at a time: a table may be larger than the memory."""
    try:
        lines = lines_of(path)
        first = next(lines, "")
        delimiter = max(",;\t", key=first.count)
        for number, row in enumerate(csv.reader(chain([first], lines), delimiter=delimiter), start=1):
            if any(row):
                yield number, [cell.strip() for cell in row]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV of labels ({reason(error)}); check --labels") from None


def _finder(images: Sequence[str], prefix: str, where: str) -> Callable[[str, str], str]:
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
        raise DataError(f"{at}: {name!r} names {len(matches) or 'no'} image{'s' * (len(matches) > 1)} under {where}")

    return find


def _classes(
    table: Path, texts: Sequence[str], num_classes: int | None, class_names: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names in label order, and the label of every text that may stand in the table."""
    if class_names and set(texts) <= set(class_names):
        return class_names, {name: place for place, name in enumerate(class_names)}
    if all(_is_number(text) for text in texts):
        largest = max((text.lstrip("0") for text in texts), key=lambda text: (len(text), text))
        if len(largest) > _DIGITS:
            raise DataError(
                f"{table}: label {largest[:20]}: expected the index of a class, of {_DIGITS} digits at most"
            )
        count = num_classes or int(largest or 0) + 1
        names = class_names or (descriptions(synsets()) if count == 1000 else tuple(map(str, range(count))))
        return names, {str(place): place for place in range(count)}
    if all(WNID.fullmatch(text) for text in texts):
        wnids = synsets(num_classes)
        return descriptions(wnids), {wnid: place for place, wnid in enumerate(wnids)}
    names = class_names or (CIFAR10 if num_classes == 10 and set(texts) <= set(CIFAR10) else tuple(texts))
    if num_classes is not None and len(names) != num_classes:
        raise DataError(
            f"{table}: {len(names)} class names ({few(names, 3)}), but the model has {num_classes} classes; "
            "give labels as indices"
        )
    return names, {name: place for place, name in enumerate(names)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
