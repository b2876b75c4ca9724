"""Read a table of several labels an image: columns of 0 and 1, or a column with a list of names.

A wrong order of labels does not crash, it only gives wrong numbers; so the order is that of the names of the outputs,
or is stated, and is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...data.class_names import first_names, places_by_name
from ...data.layouts import PATH_COLUMNS, finder, table_rows
from ...errors import DataError

LIST, SEPARATOR = "labels", ";"
HELD, ABSENT, UNKNOWN = 1, 0, -1
_CELLS = {"1": HELD, "1.0": HELD, "0": ABSENT, "0.0": ABSENT}
_UNKNOWN = ("", "nan", "-1", "-1.0")

Truth = tuple[int, ...]
"""Of an image: `HELD`, `ABSENT` or `UNKNOWN` for each label, in the order of the outputs."""


@dataclass(frozen=True)
class LabelReader:
    """How a table is read.

    outputs: how many a model has. names: of these, in their order; None where nobody names them. in_columns: the user
    says that columns are in the order of the outputs. unknown: whether empty cells and -1 are unknown labels. empty:
    whether an empty list means that an image has no label.
    """

    outputs: int
    names: Sequence[str] | None = None
    in_columns: bool = False
    unknown: bool = False
    empty: bool = False

    def read(
        self, table: Path, images: Sequence[str], where: str, prefix: str = ""
    ) -> tuple[tuple[str, ...], dict[str, Truth]]:
        """Return the labels in the order of the outputs, and the truth of every image that the table names. images: ids
        under `where`; the table may begin them with `prefix`. Raises DataError, with the line, for what is missing,
        doubled, unknown or no label.
        """
        rows = table_rows(table, LIST)
        header = next(rows, (1, []))[1]
        lower = [name.lower() for name in header]
        key = next((lower.index(name) for name in PATH_COLUMNS if name in lower), None)
        columns = [name for place, name in enumerate(header) if place != key]
        if key is None or not columns:
            expected = f"file, and a column of 0 and 1 for each label, or a column {LIST}"
            raise DataError(f"{table}: columns {first_names(header) or 'none'}; expected {expected}")
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise DataError(f"{table}: column {twice!r} occurs twice; remove one")
        is_list = [name.lower() for name in columns] == [LIST]
        names, places = self._order(table, columns, is_list)
        read: Callable[[list[str], str], Truth] = self._listed(names) if is_list else self._cells(columns, places)
        find, truths = finder(images, prefix, where), dict[str, Truth]()
        for line, row in rows:
            at = f"{table.name} line {line}"
            if len(row) != len(header):
                raise DataError(f"{at}: {len(row)} cells; expected {len(header)}, as in the header")
            if (image := find(row[key], at)) in truths:
                raise DataError(f"{at}: {row[key]!r} is named twice")
            truths[image] = read([cell for place, cell in enumerate(row) if place != key], at)
        if not truths:
            raise DataError(f"{table}: no labels; expected a row for each image below the header")
        return names, truths

    def _order(self, table: Path, columns: Sequence[str], is_list: bool) -> tuple[tuple[str, ...], list[int]]:
        """Return the labels in the order of the outputs, and the output of each column; none of a column of lists."""
        if self.in_columns:
            if is_list:
                raise DataError(f"{table}: a column of lists has no order; leave out --order columns, give --names")
            self._check_count(table, columns)
            for place, name in enumerate(columns):
                if place not in (meant := _meant(name, self.names or ()) or [place]):
                    theirs = f"which the model calls its output {meant[0]}; leave out --order columns"
                    raise DataError(f"{table}: column {name!r} would be output {place}, {theirs}")
            return tuple(columns), [*range(len(columns))]
        if self.names is None:
            remedy = "give --names FILE with the labels in the order of the outputs"
            also = "" if is_list else ", or --order columns if the columns are in that order"
            raise DataError(f"{table}: the model does not name its outputs, so no label has one; {remedy}{also}")
        self._check_count(table, self.names)
        if is_list:
            return tuple(self.names), []
        places = places_by_name(columns, self.names, str(table))
        if twice := [columns[k] for k, place in enumerate(places) if places.count(place) > 1]:
            raise DataError(f"{table}: columns {first_names(twice)} mean one label; remove all but one")
        if lacking := [name for place, name in enumerate(self.names) if place not in places]:
            raise DataError(f"{table}: no column for the labels {first_names(lacking)}; expected one for each output")
        return tuple(self.names), places

    def _check_count(self, table: Path, names: Sequence[str]) -> None:
        if len(names) != self.outputs:
            what = f"{len(names)} labels ({first_names(names, 3)}), and the model has {self.outputs} outputs"
            raise DataError(f"{table}: {what}; expected as many")

    def _cells(self, columns: Sequence[str], places: Sequence[int]) -> Callable[[list[str], str], Truth]:
        def read(cells: list[str], at: str) -> Truth:
            truth = [UNKNOWN] * self.outputs
            for name, place, text in zip(columns, places, cells, strict=True):
                if text in _CELLS:
                    truth[place] = _CELLS[text]
                elif text.lower() not in _UNKNOWN:
                    raise DataError(f"{at}: label {name!r} is {text[:40]!r}; expected 0 or 1")
                elif not self.unknown:
                    remedy = "give 0 or 1, or --unknown if such a label does not count"
                    raise DataError(f"{at}: label {name!r} is {text!r}, which may mean no or unknown; {remedy}")
            if all(value == UNKNOWN for value in truth):
                raise DataError(f"{at}: none of its labels is known; remove the line")
            return tuple(truth)

        return read

    def _listed(self, names: Sequence[str]) -> Callable[[list[str], str], Truth]:
        outputs: dict[str, int] = {}

        def read(cells: list[str], at: str) -> Truth:
            names_here = [name.strip() for name in cells[0].split(SEPARATOR) if name.strip()]
            if not names_here and not self.empty:
                raise DataError(f"{at}: no label; give one, or --empty if such an image has none")
            for name in names_here:
                if name not in outputs:
                    (outputs[name],) = places_by_name([name], names, at)
            present = {outputs[name] for name in names_here}
            if len(present) < len(names_here):
                raise DataError(f"{at}: {cells[0][:80]!r} names a label twice")
            return tuple(HELD if place in present else ABSENT for place in range(len(names)))

        return read


def _meant(column: str, names: Sequence[str]) -> list[int]:
    """Return the output that a column's name means; none where it means none, or may be several."""
    try:
        return places_by_name([column], names, "")
    except DataError:
        return []
