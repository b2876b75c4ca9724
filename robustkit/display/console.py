"""Show text tables in a terminal, laid out in its width: no figure is cut or wrapped.

What is tried, in this order: all columns in full; the first column as headings above its rows, where it repeats; words
wrapped; spare columns left out, with a line that says which; a single column that does not fit as lines below the rows;
the columns in several blocks, one below the other; a line for each cell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from .format import Cell
from .table import Table

if TYPE_CHECKING:
    from rich.console import Console

GAP, INDENT = 2, 2
LEAST, WHOLE = 14, 36  # the least widths to which words are wrapped, and names of rows
_UNBOUNDED = 100_000  # columns of a table in a pipe or a file, where each row is one line
_HEADING = re.compile(r"(?<=\S)\s+(?!%)")
_BETWEEN = re.compile(r"(?<=\s)(?=[^\s%])|(?<=[,;])(?=[^\s\d])")
_INSIDE = re.compile(r"(?<=\()(?=[^\s\d])|(?<=[-_/:=.|])(?=[^\W\d])")

Style = Literal["title", "heading", "head", "row", "note"]


@dataclass(frozen=True)
class ConsoleLine:
    """A line of a table, without white space at its end."""

    text: str
    style: Style = "row"


@dataclass(frozen=True)
class _Column:
    """words: whether it may be wrapped, and stands on the left. key: whether it names the rows, and is wrapped last."""

    heading: str
    cells: tuple[str, ...]
    words: bool
    key: bool

    @property
    def full(self) -> int:
        parts = [self.heading] if self.words else _HEADING.split(self.heading)
        heading = min(max(map(width_of, parts)), len(self.heading) if self.words else LEAST)
        return max([heading, *map(width_of, self.cells)])

    @property
    def least(self) -> int:
        return min(self.full, WHOLE if self.key else LEAST) if self.words else self.full


def table_lines(table: Table, width: int, elsewhere: str = "") -> Iterator[ConsoleLine]:
    """Yield a table's lines without title, flags and note, in `width` columns. elsewhere: names the place that shows
    left-out columns.
    """
    if not table.headings:
        return
    columns, firsts = _columns(table), [row[0] for row in table.rows]
    if not table.heads and len(table.headings) > 2 and any(a == b for a, b in pairwise(firsts)):
        if _fits(columns, table, width):
            cells = columns[0].cells  # without those that say the same as the one above
            once = ("" if place and cell == cells[place - 1] else cell for place, cell in enumerate(cells))
            columns[0] = replace(columns[0], cells=tuple(once))
        else:
            table = table.under_heads(firsts)  # headings above rows stand for the first column
            columns = _columns(table)
    left_out, needed = list[str](), _indent(table) + sum(column.full + GAP for column in columns) - GAP
    needed_ones = [column for column in columns if column.heading not in table.spare]
    if not _fits(needed_ones, table, width, least=True):
        columns[0] = replace(columns[0], key=False)
    for heading in table.spare:
        if _fits(columns, table, width, least=True):
            break
        left_out += [column.heading for column in columns if column.heading == heading]
        columns = [column for column in columns if column.heading != heading]
    blocks = list(_blocks(columns, width - _indent(table)))
    below = [[text for at, text in table.below if at == place] for place in range(len(table.rows))]
    if len(blocks) == 2 and len(blocks[1]) == 2 and (lines := _as_lines(blocks[1][0], blocks[1][1], width)):
        blocks, below = blocks[:1], [line + texts for line, texts in zip(lines, below, strict=True)]
    for number, block in enumerate(blocks):
        yield from [ConsoleLine("")] if number else []
        yield from _drawn(block, table.heads, below if block is blocks[-1] else [[] for _ in below], width)
    if left_out:
        where = f"in {elsewhere}, and in" if elsewhere else "in"
        text = f"not shown: {', '.join(left_out)} ({where} a terminal of {needed} columns)"
        yield from (ConsoleLine(line, "note") for line in wrap(text, width))


def width_of(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text in lines, those after the first indented: broken at white space and after commas, a name that is
    too long between its parts or, without any, cut, one with digits where these end; never inside a number."""
    lines, line = list[str](), ""
    whole = _BETWEEN.split(text)
    for part in (p for w in whole for p in (_INSIDE.split(w) if width_of(w.rstrip()) > width - indent else [w])):
        if width_of(line + part.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = " " * indent
        line += part
        while width_of(line.rstrip()) > width and (cut := _cut(line, width, indent)):
            lines.append(line[:cut])
            line = " " * indent + line[cut:]
    return [*lines, line.rstrip()]


def shorten(text: str, width: int) -> str:
    """Return a text in so many columns: what is too long ends in an ellipsis, which stands for no part of a number."""
    if width_of(text) <= width:
        return text
    return f"{text[: _cut(text, width - 1, 0)]}…" if width > 0 else ""


def _cut(line: str, width: int, indent: int) -> int:
    """Return the last place before `width` at which a name may be cut; 0 where there is none."""
    fits = max((place for place in range(len(line)) if width_of(line[:place]) <= width), default=0)
    digits = re.compile(r"[\d.,+−-]")
    places = range(fits, max(indent, 1), -1)
    return next((p for p in places if not (digits.match(line[p - 1]) and digits.match(line[p]))), 0)


def _columns(table: Table) -> list[_Column]:
    numeric = table.numeric
    return [
        _Column(heading, tuple(row[place] for row in table.rows), place not in numeric, place == 0)
        for place, heading in enumerate(table.headings)
    ]


def _indent(table: Table) -> int:
    return INDENT if table.heads else 0


def _fits(columns: Sequence[_Column], table: Table, width: int, least: bool = False) -> bool:
    widths = [column.least if least else column.full for column in columns]
    return _indent(table) + sum(widths) + GAP * (len(widths) - 1) <= width


def _blocks(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """Yield columns that fit next to each other, each time after the first one; all where one of them does not fit."""
    key, *others = columns
    if any(key.least + GAP + column.least > width for column in others):
        yield list(columns)
        return
    block, room = [key], width - key.least
    for column in others:
        if column.least + GAP > room:  # of a block with a column besides the key
            yield block
            block, room = [key], width - key.least
        block, room = [*block, column], room - column.least - GAP
    yield block


def _as_lines(key: _Column, column: _Column, width: int) -> list[list[str]]:
    """Return a column as lines below its rows, for each row; nothing where a figure would have to be broken."""
    lines = [f"{column.heading}: {cell}".removeprefix(": ") for cell in column.cells]
    start = max(2 * INDENT, min(key.full, width // 4) + GAP)  # at most
    if not column.words and max(map(width_of, lines)) + start > width:
        return []
    return [[line] if cell else [] for line, cell in zip(lines, column.cells, strict=True)]


def _drawn(
    columns: Sequence[_Column], heads: Sequence[tuple[int, str]], below: Sequence[Sequence[str]], width: int
) -> Iterator[ConsoleLine]:
    """Yield headings and rows of a block; a line for each cell where even two columns do not fit. below: lines under
    each row.
    """
    above, indent = dict(heads), INDENT if heads else 0
    widths = _widths(columns, width - indent)
    start = widths[0] + GAP if not heads and 4 * widths[0] < width else indent + INDENT
    listed = len(columns) > 1 and sum(widths) + GAP * (len(widths) - 1) > width - indent
    if not listed:
        texts = [_headed(column.heading, room) for column, room in zip(columns, widths, strict=True)]
        tallest = max(map(len, texts))
        yield from _next_to(columns, [[""] * (tallest - len(t)) + t for t in texts], widths, indent, "heading")
        yield ConsoleLine("─" * min(width, indent + sum(widths) + GAP * (len(widths) - 1)), "heading")
    for place in range(len(columns[0].cells)):
        if place in above:
            yield from (ConsoleLine(line, "head") for line in wrap(above[place], width, indent=INDENT))
        cells = [column.cells[place] for column in columns]
        if listed:
            yield from (ConsoleLine(" " * indent + line) for line in wrap(cells[0], width - indent, INDENT))
            named = (f"{column.heading}: {cell}" for column, cell in zip(columns[1:], cells[1:], strict=True) if cell)
            yield from (ConsoleLine(" " * (indent + INDENT) + line) for line in named)
        else:
            parts = [wrap(x, w, INDENT) if c.words else [x] for c, x, w in zip(columns, cells, widths, strict=True)]
            yield from _next_to(columns, parts, widths, indent, "row")
        for text in below[place]:
            yield from (ConsoleLine(line) for line in wrap(" " * start + text, width, start + INDENT))


def _headed(heading: str, width: int) -> list[str]:
    """Return a heading in as few lines as it fits into; a unit stays with its word."""
    first, *words = _HEADING.split(heading)
    lines = [first]
    for word in words:
        if width_of(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [part for line in lines for part in wrap(line, width)]


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the widths of columns: what is missing is taken from the widest words, to `LEAST` at most."""
    widths = [column.full for column in columns]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        place = max(range(len(widths)), key=lambda p: widths[p] - columns[p].least)
        if widths[place] <= columns[place].least:
            break
        widths[place] -= 1
    return widths


def _next_to(
    columns: Sequence[_Column], parts: Sequence[Sequence[str]], widths: Sequence[int], indent: int, style: Style
) -> Iterator[ConsoleLine]:
    for number in range(max(map(len, parts))):
        line = " " * indent
        for column, part, room in zip(columns, parts, widths, strict=True):
            text = part[number] if number < len(part) else ""
            space = " " * (room - width_of(text))
            line += (text + space if column.words else space + text) + " " * GAP
        yield ConsoleLine(line.rstrip(), style)


_STYLES = {"heading": "bold", "head": "bold", "row": "", "note": "dim"}


def print_tables(console: Console, tables: Iterable[Table], elsewhere: str = "", words: Mapping[str, str] = {}) -> None:
    """Print the tables, each after its title and before its flags; a note that they share comes last. elsewhere: where
    left-out columns are. words: with which rows may begin, each with its style."""
    notes = dict[str, None]()
    for table in tables:
        notes |= {table.note: None} if table.note else {}
        print_line(console, table.title, style="italic")
        width = console.width if _is_read(console) else _UNBOUNDED
        for line in table_lines(_printable(table), width, elsewhere):
            word = next((word for word in words if line.text.startswith(word)), "")
            _put(console, line.text, _STYLES[line.style], word, words.get(word, ""))
        _put(console, "")
        for flag in table.flags:
            print_line(console, f"⚑ {flag}")
    for note in notes:
        print_line(console, note)


def print_line(console: Console, text: str, style: str = "", indent: int = 2, taken: int = 0) -> None:
    """Print a text, wrapped where the terminal's width is known. indent: of later lines. taken: columns already
    printed.
    """
    if text := strip_controls(text):
        first, *rest = wrap(" " * taken + text, console.width, indent) if _is_read(console) else [" " * taken + text]
        for line in (first[taken:], *rest):
            _put(console, line, style)


def print_as_it_is(console: Console, *lines: str) -> None:
    """Print lines that somebody may copy, such as a path or a command, on one line each; nothing for empty ones."""
    for line in filter(None, lines):
        _put(console, line)


def strip_controls(text: str) -> str:
    """Return a text without characters that steer a terminal, which an untrusted run folder or file may hold."""
    return "".join(character for character in text if character.isprintable())


def _printable(table: Table) -> Table:
    headings, *rows = (tuple(map(_stripped, texts)) for texts in (table.headings, *table.rows))
    heads, below = (tuple((at, strip_controls(text)) for at, text in lines) for lines in (table.heads, table.below))
    return replace(table, headings=headings, rows=tuple(rows), heads=heads, below=below)


def _stripped(text: str) -> str:
    plain = strip_controls(text)
    return Cell(plain, text.value, text.figure, text.ends) if isinstance(text, Cell) else plain


def _is_read(console: Console) -> bool:
    """Whether lines are read at the console's width: on a terminal, or as COLUMNS says; logs are not wrapped, so that
    they can be searched.
    """
    return console.is_terminal or os.environ.get("COLUMNS", "").isdigit()


def _put(console: Console, text: str, style: str = "", word: str = "", word_style: str = "") -> None:
    """Print a line as it is. word: with which it begins, and which has a style of its own."""
    from rich.text import Text

    line = Text(text, style=style)
    line.stylize(word_style, 0, len(word))
    console.print(line, soft_wrap=True)
