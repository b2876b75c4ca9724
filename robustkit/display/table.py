"""A table of texts, as report and terminal show it, and a part of a page; of several checkpoints, what is alike stands
side by side in one table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from .svg import Plot

_FIGURE = re.compile(r"[-+−<]?\s?\d.*|nan|–|")
_LONGEST = 32  # characters of a figure; what is longer is a text that begins with a digit


@dataclass(frozen=True)
class TextTable:
    """title: what is shown. headings: of the columns; rows of as many texts. flags: lines that raise a doubt. note: a
    line that explains the columns. checkpoint: the one that the table is about, with whose name the title begins.

    spare: headings of columns to leave out where room is short, the first of them first. heads: headings that stand
    above rows, each with the place of its row; below: lines that stand below them, in the order of their rows. values:
    of each row the fraction behind each cell but the first, by which it is shaded, None where there is none; empty
    where no cell is a fraction on its own.
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
    values: tuple[tuple[float | None, ...], ...] = ()

    def under_heads(self, heads: Sequence[str], width: int = 1) -> TextTable:
        """Return the table without its first columns: where they change, a heading (of each row) stands above."""
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
        if len(values := {row[place] for row in self.rows} - {""}) != 1:
            return self
        headings, *rows = (row[:place] + row[place + 1 :] for row in (self.headings, *self.rows))
        return replace(self, title=f"{self.title}; {heading} = {values.pop()}", headings=headings, rows=tuple(rows))


def numeric_columns(table: TextTable) -> set[int]:
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
    figures: tuple[Plot, ...] = ()
    template: str = ""


class CardPart(NamedTuple):
    """A section of a model card. note: a line under its title. tables: title, headings and rows of each."""

    title: str
    note: str
    tables: Sequence[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]


def of_tables(name: str, title: str, tables: tuple[TextTable, ...], figures: tuple[Plot, ...] = ()) -> Section:
    """Return a section of text tables under their titles, after its figures."""
    return Section(name, title, lambda: {"tables": tables}, figures, template="tables")


Texts = tuple[str, ...]
Shades = Mapping[tuple[int, int], float]
Lines = Mapping[tuple[Texts, int], int]
T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """A table as the page shows it. keys: how many columns, from the first on, say what a row is of. shades: by row and
    column, how dark a cell is, in [0, 1]. folded: whether it is shown only when asked for."""

    title: str
    headings: Texts
    rows: tuple[Texts, ...]
    keys: int = 1
    shades: Shades | None = None
    note: str = ""
    flags: Texts = ()
    folded: bool = False

    @property
    def numeric(self) -> set[int]:
        return numeric_columns(TextTable("", self.headings, self.rows)) - set(range(self.keys))

    @property
    def repeats(self) -> set[int]:
        return {place for place in range(1, len(self.rows)) if self.rows[place][0] == self.rows[place - 1][0]}


@dataclass(frozen=True)
class Portion:
    """What a grid has of one checkpoint. values: fractions behind cells, by row and column."""

    checkpoint: str
    headings: Texts
    rows: tuple[Texts, ...]
    values: Mapping[tuple[int, int], float] | None = None
    flags: Texts = ()


def side_by_side(
    title: str, parts: Sequence[Portion], *, keys: int = 1, headline: str = "", lower: bool = True, note: str = ""
) -> list[Grid]:
    """Return the parts of several checkpoints as grids: a row names its checkpoint after its keys, and the same rows of
    all stand together; before it the column of a `headline`, a checkpoint per column. lower: darker where lower."""
    if not parts:
        return []
    flags = tuple(dict.fromkeys(flag for part in parts for flag in part.flags))
    several = len(parts) > 1
    columns = list(dict.fromkeys(column for part in parts for column in _counted(part.headings)[keys:]))
    named = [{key: row for row, key in enumerate(_counted(row[:keys] for row in part.rows))} for part in parts]
    rows, shades = list[Texts](), dict[tuple[int, int], float]()
    for key in dict.fromkeys(key for lines in named for key in lines):
        for part, lines in zip(parts, named, strict=True):
            if key not in lines:
                continue
            row = lines[key]
            places = {column: place for place, column in enumerate(_counted(part.headings))}
            start = keys + several
            for offset, column in enumerate(columns):
                value = (part.values or {}).get((row, places.get(column, -1)))
                if value is not None:
                    shades[len(rows), start + offset] = _shade(value, lower)
            cells = (part.rows[row][places[column]] if column in places else "–" for column in columns)
            rows.append((*part.rows[row][:keys], *([part.checkpoint] if several else []), *cells))
    first = parts[0].headings[:keys]
    names = tuple(heading for heading, _ in columns)
    whole = Grid(title, (*first, *(["checkpoint"] if several else []), *names), tuple(rows), keys + several, shades)
    if not several or not headline:
        return [replace(whole, note=note, flags=flags)]
    short = _pivot(title, parts, named, keys, headline, lower)
    return [replace(short, note=note, flags=flags), replace(whole, title=f"{title}: all figures", folded=True)]


def _pivot(title: str, parts: Sequence[Portion], named: Sequence[Lines], keys: int, headline: str, lower: bool) -> Grid:
    """Return a grid of one figure: a row for each key, a column for each checkpoint."""
    rows, shades = list[Texts](), dict[tuple[int, int], float]()
    for key in dict.fromkeys(key for lines in named for key in lines):
        cells = []
        for which, (part, lines) in enumerate(zip(parts, named, strict=True)):
            row, column = lines.get(key), part.headings.index(headline) if headline in part.headings else -1
            cells.append("–" if row is None or column < 0 else part.rows[row][column])
            value = None if row is None else (part.values or {}).get((row, column))
            if value is not None:
                shades[len(rows), keys + which] = _shade(value, lower)
        rows.append((*key[0], *cells))
    headings = (*parts[0].headings[:keys], *(part.checkpoint for part in parts))
    return Grid(f"{title}: {headline}", headings, tuple(rows), keys, shades)


def _counted(things: Iterable[T]) -> list[tuple[T, int]]:
    """Return each heading, or keys of each row, with the number of those before it that are the same."""
    seen, counted = Counter[T](), []
    for thing in things:
        counted.append((thing, seen[thing]))
        seen[thing] += 1
    return counted


def _shade(value: float, lower: bool) -> float:
    return min(max(1 - value if lower else value, 0.0), 1.0)


def grid_of(table: TextTable, *, folded: bool = False) -> Grid:
    shades = {place: _shade(value, True) for place, value in (portion_of(table).values or {}).items()}
    return Grid(table.title, table.headings, table.rows, 1, shades, table.note, table.flags, folded)


def with_flags(grids: Sequence[Grid], flags: Texts) -> list[Grid]:
    return [replace(grids[0], flags=(*grids[0].flags, *flags)), *grids[1:]] if grids else []


def portion_of(table: TextTable) -> Portion:
    values = {
        (row, column): value
        for row, line in enumerate(table.values)
        for column, value in enumerate(line, start=1)
        if value is not None
    }
    return Portion(table.checkpoint, table.headings, table.rows, values, table.flags)


def join_tables(tables: Iterable[TextTable]) -> list[Grid]:
    """Return tables as grids: those of several checkpoints whose titles are alike except for the name become one."""
    groups: dict[tuple[str, str], list[TextTable]] = {}
    for place, table in enumerate(tables):
        alone = "" if table.checkpoint else str(place)
        groups.setdefault((alone, table.title.removeprefix(f"{table.checkpoint}: ")), []).append(table)
    grids = list[Grid]()
    for (alone, title), some in groups.items():
        if alone or len(some) == 1:
            grids.append(grid_of(some[0]))
            continue
        notes = dict.fromkeys(table.note for table in some)
        capital = title if title[1:2].isupper() else title[:1].upper() + title[1:]
        grids += side_by_side(capital, [portion_of(table) for table in some], note=" ".join(filter(None, notes)))
    return grids
