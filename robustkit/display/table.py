"""A table of texts, as the report and the terminal show it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIGURE = re.compile(r"[-+−<]?\s?\d.*|nan|–|")
_LONGEST = 32  # characters of a figure; what is longer is a text that begins with a digit


@dataclass(frozen=True)
class TextTable:
    """title: what is shown. headings: of the columns; rows of as many texts. flags: lines that raise a doubt. note: a
    line that explains the columns. checkpoint: the one that the table is about, with whose name the title begins.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    flags: tuple[str, ...] = ()
    note: str = ""
    checkpoint: str = ""


@dataclass(frozen=True)
class HeatTable:
    """A table whose cells are shaded by their values.

    rows: texts under `headings`. values: of each row the fraction behind each cell but the first, None where there is
    none; empty where no cell is a fraction on its own. ends: places of rows below which a group ends. flags: lines that
    name the checkpoint and the condition. checkpoint: as of a `TextTable`.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    ends: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    checkpoint: str = ""


def numeric_columns(table: TextTable) -> set[int]:
    """Return the indices of the columns that hold only figures."""
    return {
        place
        for place in range(1, len(table.headings))
        if all(_FIGURE.fullmatch(row[place]) and len(row[place]) < _LONGEST for row in table.rows)
    }
