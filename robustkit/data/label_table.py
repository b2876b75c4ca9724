"""A CSV of file names and labels, whatever its columns are called, matched against the images that are there."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ..common.files import lines_of, reason
from ..errors import DataError
from .class_lists import descriptions, few, synsets
from .class_names import Naming, Numbered, number_classes

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
    """A label as the table has it: where, in the column of which name, and its text."""

    at: str
    column: str
    text: str


@dataclass(frozen=True)
class _Column:
    """The labels of one column, and what they mean: indices, or what `number_classes` says; None for names next to
    indices that only have an order of their own.
    """

    cells: Sequence[_Cell]
    indices: Mapping[str, int] | None
    named: Numbered | None = None

    @property
    def places(self) -> Mapping[str, int] | None:
        """The class of each text; None where it is not known."""
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
    """Return the class names, and the label of every image that the table names.

    images: ids under `where`; in the table their paths may also start with `prefix`. A row names an image by
    its path, or by its file name or stem where only one image has it. A label is an index (3, 3.0, +3), a wnid or a
    class name, as `number_classes` reads it. Several columns of labels must agree, and indices decide.
    tell: takes lines for the user.
    Raises DataError, with the line, for an image that is missing or named twice, a path outside, and a label that is
    missing, negative, no whole number, unknown, or another one in another column.
    """
    find = _finder(images, prefix, where)
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
    read = [
        column if column.indices is not None else _named(column, table, num_classes, class_names, indexed)
        for column in read
    ]
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
    found = {cell.text: (_index(cell, class_names), cell) for cell in cells}
    indices = {text: index for text, (index, _) in found.items() if index is not None}
    if not indices:
        return None
    if name := next((cell for index, cell in found.values() if index is None), None):
        number = found[next(iter(indices))][1]
        raise DataError(
            f"{name.at}: label {name.text!r} is a name, but {number.at} has the number {number.text}; give all as "
            "indices, or all as names"
        )
    return indices


def _named(
    column: _Column, table: Path, num_classes: int | None, class_names: tuple[str, ...] | None, indexed: bool
) -> _Column:
    """Return the column with the classes of its names. indexed: whether another column has indices, which decide."""
    lines = {cell.text: cell.at for cell in reversed(column.cells)}
    naming = Naming(tuple(sorted(lines)), str(table), "class name", None, num_classes, class_names, lines.__getitem__)
    try:
        found = number_classes(naming)
    except DataError:
        if not indexed:
            raise
        return column
    return replace(column, named=found if found.is_sure or not indexed else None)


def _check_range(column: _Column, count: int, class_names: tuple[str, ...] | None) -> None:
    """Raise DataError for an index that is too large, or that is also the name of another class."""
    named = {name: place for place, name in enumerate(class_names or ())}
    for cell in column.cells if column.indices is not None else ():
        index = column.indices[cell.text] if column.indices else 0
        if count and index >= count:
            raise DataError(f"{cell.at}: label {cell.text!r} is none of the {count} classes")
        if cell.column not in _NUMBERED and named.get(str(index), index) != index:
            raise DataError(
                f"{cell.at}: label {cell.text!r} is an index, and also the checkpoint's name of class "
                f"{named[str(index)]}; call the column class_index or class_name"
            )


def _check_alike(best: _Column, other: _Column) -> None:
    """Raise DataError for a row whose labels in two columns differ, or of which one goes with two of the other."""
    there: dict[object, object] = {}
    here: dict[object, object] = {}
    for one, two in zip(best.cells, other.cells, strict=True):
        a = best.places[one.text] if best.places else one.text
        b = other.places[two.text] if other.places else two.text
        alike = a == b if best.places and other.places else there.setdefault(a, b) == b and here.setdefault(b, a) == a
        if not alike:
            raise DataError(
                f"{one.at}: {one.column} {one.text!r} and {two.column} {two.text!r} do not agree; correct one, or "
                "remove its column"
            )


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
            raise DataError(
                f"{cell.at}: label {digits[:20]}: expected the index of a class, of {_DIGITS} digits at most"
            )
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
        raise DataError(
            f"{cell.at}: label {text!r} is negative; expected an index from 0 on; give it or remove the line"
        )
    raise DataError(f"{cell.at}: label {text!r}; expected a whole number such as 3")


def _is_counter(cells: Sequence[_Cell], columns: int) -> bool:
    """Whether a column named index only counts the rows next to other labels, as pandas writes it."""
    texts = [cell.text for cell in cells]
    counted = any(texts == [str(place + first) for place in range(len(texts))] for first in (0, 1))
    return columns > 1 and cells[0].column == "index" and counted


def _rows(path: Path) -> Iterator[tuple[int, str, list[tuple[str, str]]]]:
    """Yield (line, file name, labels with their columns) of a table separated by commas, semicolons or tabs, with or
    without a header.
    """
    rows = _parse(path)
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
        raise DataError(
            f"{path}: columns {few(header)}; expected one of filename, path, image and one of label, class, wnid"
        )
    for line, row in rows if first is None else chain([first], rows):
        if len(row) <= max(file_column, *columns):
            raise DataError(f"{path.name} line {line}: {len(row)} columns; expected a file name and a label")
        yield line, row[file_column], [(header[place], row[place]) for place in columns]


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
