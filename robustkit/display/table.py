"""A table of texts, as report and terminal show it, and a part of a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .svg import Figure

_FIGURE = re.compile(r"[-+−<]?\s?\d.*|nan|–|")
_LONGEST = 32  # characters of a figure; what is longer is a text that begins with a digit


@dataclass(frozen=True)
class TextTable:
    """title: what is shown. headings: of the columns; rows of as many texts. flags: lines that raise a doubt. note: a
    line that explains the columns. checkpoint: the one that the table is about, with whose name the title begins.

    spare: headings of columns to leave out where room is short, the first of them first. heads: headings that stand
    above rows, each with the place of its row; below: lines that stand below them, in the order of their rows.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    flags: tuple[str, ...] = ()
    note: str = ""
    checkpoint: str = ""
    spare: tuple[str, ...] = ()
    heads: tuple[tuple[int, str], ...] = ()
    below: tuple[tuple[int, str], ...] = ()

    def under_heads(self, heads: Sequence[str], width: int = 1) -> TextTable:
        """Return the table without its first `width` columns: where they change, a heading stands above the rows.

        heads: for each row, the text that stands for them.
        """
        starts = [row[:width] for row in self.rows]
        first = [place for place, start in enumerate(starts) if not place or starts[place - 1] != start]
        return replace(
            self,
            headings=self.headings[width:],
            rows=tuple(row[width:] for row in self.rows),
            heads=tuple((place, heads[place]) for place in first),
        )

    def said_once(self, heading: str) -> TextTable:
        """Return the table without a column whose cells say the same or nothing: its title says it."""
        if heading not in self.headings or not self.rows:
            return self
        place = self.headings.index(heading)
        if len(said := {row[place] for row in self.rows} - {""}) != 1:
            return self
        headings, *rows = (row[:place] + row[place + 1 :] for row in (self.headings, *self.rows))
        return replace(self, title=f"{self.title}; {heading} = {said.pop()}", headings=headings, rows=tuple(rows))


@dataclass(frozen=True)
class HeatTable:
    """A table whose cells are shaded by their values.

    rows: texts under `headings`. values: of each row the fraction behind each cell but the first, None where there is
    none; empty where no cell is a fraction on its own. ends: places of rows below which a group ends. checkpoint: as
    of a `TextTable`.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    ends: tuple[int, ...] = ()
    checkpoint: str = ""


def numeric_columns(table: TextTable) -> set[int]:
    """Return the indices of the columns that hold only figures."""
    return {
        place
        for place in range(1, len(table.headings))
        if all(_FIGURE.fullmatch(row[place]) and len(row[place]) < _LONGEST for row in table.rows)
    }


@dataclass(frozen=True)
class Section:
    """One part of a page, left out where its template shows nothing.

    name: of the template and of the anchor. title: the heading. values: makes what the template shows. figures: of the
    section, in their order. template: its template, if not that of the name.
    """

    name: str
    title: str
    values: Callable[[], Mapping[str, Any]] = dict
    figures: tuple[Figure, ...] = ()
    template: str = ""


class CardPart(NamedTuple):
    """A section of a model card. note: a line under its title. tables: title, headings and rows of each."""

    title: str
    note: str
    tables: Sequence[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]


def of_tables(name: str, title: str, tables: tuple[TextTable, ...], figures: tuple[Figure, ...] = ()) -> Section:
    """Return a section of text tables under their titles, after its figures."""
    return Section(name, title, lambda: {"tables": tables}, figures, template="tables")
