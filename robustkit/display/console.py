"""Show text tables in a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .layout import laid_out, wrapped
from .table import TextTable

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"heading": "bold", "head": "bold", "row": "", "note": "dim"}


def print_tables(
    console: Console, tables: Iterable[TextTable], elsewhere: str = "", words: Mapping[str, str] = {}
) -> None:
    """Print the tables, each after its title and before its flags; a note that they share comes last.

    elsewhere: where columns are that a narrow terminal does not show. words: with which rows may begin, each
    with its style.
    """
    notes = dict[str, None]()
    for table in tables:
        notes |= {table.note: None} if table.note else {}
        print_line(console, table.title, style="italic")
        for line in laid_out(_printable(table), console.width, elsewhere):
            word = next((word for word in words if line.text.startswith(word)), "")
            _put(console, line.text, _STYLES[line.style], word, words.get(word, ""))
        _put(console, "")
        for flag in table.flags:
            print_line(console, f"⚑ {flag}")
    for note in notes:
        print_line(console, note)


def print_line(console: Console, text: str, style: str = "", indent: int = 2, taken: int = 0) -> None:
    """Print a text, wrapped between its words where the width of the terminal is known; nothing where it is empty.

    indent: of the lines after the first. taken: columns of the first that are printed already.
    """
    if text := printable(text):
        first, *rest = wrapped(" " * taken + text, console.width, indent) if _is_read(console) else [" " * taken + text]
        for line in (first[taken:], *rest):
            _put(console, line, style)


def printable(text: str) -> str:
    """Return a text without characters that steer a terminal, which an untrusted run folder or file may hold."""
    return "".join(character for character in text if character.isprintable())


def _printable(table: TextTable) -> TextTable:
    def all_of(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(printable, texts))

    heads = tuple((place, printable(text)) for place, text in table.heads)
    below = tuple((place, printable(text)) for place, text in table.below)
    return replace(
        table, headings=all_of(table.headings), rows=tuple(map(all_of, table.rows)), heads=heads, below=below
    )


def _is_read(console: Console) -> bool:
    """Whether lines are read at the console's width: on a terminal, or as COLUMNS says. A log has lines of any length,
    which are easier to search in.
    """
    return console.is_terminal or os.environ.get("COLUMNS", "").isdigit()


def _put(console: Console, text: str, style: str = "", word: str = "", own: str = "") -> None:
    """Print a line as it is. word: with which it begins, and which has a style of its own."""
    from rich.text import Text

    shown = Text(text, style=style)
    shown.stylize(own, 0, len(word))
    console.print(shown, soft_wrap=True)
