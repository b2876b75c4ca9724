"""Read a table of metadata: columns of the user's own, by which the samples of a run are divided into slices, or
grouped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import CELL, CELLS, COLUMNS
from ..errors import DataError, ProtocolError, unknown
from .layouts import PATH_COLUMNS, finder, table_rows

RESERVED = ("class", "difficulty")
"""Columns that every run has without a table."""
NO_GROUPS = "none"
"""Given in place of a column of groups, it makes each sample stand for itself again."""
FROM_IDS = "group by id"
"""The column of groups that were found in the ids of samples."""
_NAMES = ("sample_id", *PATH_COLUMNS)
_EMPTY = ("", "nan", "null", "n/a", "<na>")


def rows_in_memory(table: Any, ids: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a DataFrame, or of a dict of columns, with a number for each, the header first. Without a
    column that names samples, an index of a DataFrame that holds the ids does, else the order: one row for each of
    `ids`. Raises DataError for another type, and for columns of unlike lengths.
    """
    columns = {str(name): list(table[name]) for name in table} if hasattr(table, "keys") else {}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        what = f"columns of {' and '.join(map(str, sorted(lengths)))} rows" if lengths else type(table).__name__
        raise DataError(f"metadata is {what}; expected a path, a DataFrame or a dict of columns, all as long")
    (count,) = lengths
    if not {name.lower() for name in columns} & {*_NAMES}:
        index = [str(each) for each in getattr(table, "index", ())]
        named = bool(index) and {*index} <= {*ids}
        if not named and count != len(ids):
            remedy = "add a column sample_id, or give one row for each"
            raise DataError(f"metadata has {count} rows without ids for {len(ids)} samples; {remedy}")
        columns = {"sample_id": index if named else list(ids), **columns}
    yield 1, list(columns)
    for number, row in enumerate(zip(*columns.values(), strict=True), 2):
        yield (
            number,
            ["" if cell is None or cell != cell else str(cell) for cell in row],
        )  # NaN and NaT differ from themselves


def read_metadata(
    table: Path, ids: Sequence[str], where: str, whole: bool, rows: Iterator[tuple[int, list[str]]] | None = None
) -> dict[str, list[str]]:
    """Return the columns of a CSV, each with a text for every id, in the order of `ids`; empty where a cell is.

    A row names its sample as rows of a table of labels do, in `sample_id` or a column of file names. where: what the
    ids are of, for messages. whole: they are all samples of a data set, so that a row of another one is an error; else
    it is ignored. rows: of a table that is in memory. Raises DataError, with the line, for what is missing, doubled,
    unknown, or larger than is read.
    """
    rows = rows or table_rows(table, "metadata")
    header = next(rows, (1, [""]))[1]
    key, names = _columns(table, header)
    if len(header) * len(ids) > CELLS:
        raise DataError(f"{table}: {len(header)} columns of {len(ids)} samples; expected at most {CELLS} cells")
    find, values = finder(ids, "", where, strict=whole), dict[str, list[str]]()
    for line, cells in rows:
        at = f"{table.name} line {line}"
        if len(cells) != len(header):
            raise DataError(f"{at}: {len(cells)} cells; expected {len(header)}, as in the header")
        if long := next((cell for cell in cells if len(cell) > CELL), None):
            raise DataError(f"{at}: a cell of {len(long)} characters, {long[:40]!r}…; expected at most {CELL}")
        if not (sample := find(cells[key], at)):
            continue
        if sample in values:
            raise DataError(f"{at}: {cells[key]!r} is named twice; expected one row for each sample")
        values[sample] = ["" if cells[place].lower() in _EMPTY else cells[place] for place in names.values()]
    if lacking := [sample for sample in ids if sample not in values]:
        few = f"{lacking[0]!r} has no row ({len(lacking)} of {len(ids)} samples have none)"
        raise DataError(f"{table}: {few}; expected one for each sample of {where}")
    return {name: [values[sample][place] for sample in ids] for place, name in enumerate(names)}


def _columns(table: Path, header: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return the place of the column that names samples, and the others by name."""
    lower = [name.lower() for name in header]
    key = next((lower.index(name) for name in _NAMES if name in lower), None)
    if key is None:
        raise DataError(f"{table}: no column names the samples; expected one of {', '.join(_NAMES)}")
    for place, name in enumerate(lower):
        if not name or "," in name or len(name) > CELL:
            what = f"is called {header[place][:40]!r}" if name else "has no name"
            raise DataError(f"{table}: column {place + 1} {what}; expected a name of at most {CELL} letters, no comma")
        if lower.index(name) < place:
            raise DataError(f"{table}: column {header[place]!r} appears twice; rename one of the two")
        if name in RESERVED and place != key:
            raise DataError(f"{table}: column {header[place]!r} is one that every run has; rename or delete it")
    if not 1 < len(header) <= COLUMNS:
        raise DataError(f"{table}: {len(header)} columns; expected one that names samples, and 1 to {COLUMNS - 1} more")
    return key, {name: place for place, name in enumerate(header) if place != key}


@dataclass(frozen=True)
class Grouping:
    """Which samples belong together: by a column of metadata, or by what a regular expression finds in their ids."""

    column: str = ""
    pattern: str = ""

    @classmethod
    def of(cls, groups: str | None, groups_from: str | None) -> Grouping | None:
        """Return the grouping that options ask for; None without one. Raises ProtocolError where both are given, or
        the pattern is none."""
        if groups and groups_from:
            raise ProtocolError(f"--groups {groups} and --groups-from {groups_from}: leave one out")
        try:
            re.compile(groups_from or "")
        except re.error as fault:
            raise ProtocolError(f"--groups-from {groups_from}: {fault}; expected a regular expression") from None
        return cls(groups or "", groups_from or "") if groups or groups_from else None

    def names(self, ids: Sequence[str], columns: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the group of each of all samples. Raises DataError where there is none, or no choice of groups."""
        what = f"--groups-from {self.pattern}" if self.pattern else f"--groups {self.column}"
        if self.pattern:
            matches = [re.search(self.pattern, name) for name in ids]
            names = ["" if each is None else "/".join(filter(None, each.groups())) or each[0] for each in matches]
        elif self.column not in columns:
            why = unknown("column", self.column, columns) if columns else "there is no table of columns"
            raise DataError(f"{what}: {why}; give it with --metadata FILE.csv, or use --groups-from REGEX")
        else:
            names = list(columns[self.column])
        if lost := [name for name, group in zip(ids, names, strict=True) if not group]:
            remedy = "match every id" if self.pattern else "fill in the cells"
            raise DataError(f"{what}: no group for {len(lost)} of {len(ids)} samples, such as {lost[0]!r}; {remedy}")
        if (count := len({*names})) == 1 and len(ids) > 1:
            few = f"all {len(ids)} samples are of one group, {names[0]!r}: nothing says how much groups differ"
            raise DataError(f"{what}: {few}; expected ten groups or more")
        if count == len(ids):
            raise DataError(f"{what}: each of the {count} samples is a group of its own; leave it out")
        return names
