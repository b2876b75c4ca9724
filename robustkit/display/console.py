"""Show text tables in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .table import TextTable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WORDS = ("condition", "figure", "at 0.05")  # headings of columns that are words


def terminal_tables(tables: Sequence[TextTable]) -> Iterator[Table | Text]:
    """Yield the tables, each after its title and before its flags; a note that they share comes last."""
    from rich import box
    from rich.table import Table

    for table in tables:
        title = cell(table.title)
        title.stylize("italic")
        yield title
        drawn = Table(box=box.SIMPLE_HEAD)
        for heading in table.headings:
            words = heading in _WORDS
            fold = heading == "condition"
            drawn.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not fold)
        for place, row in enumerate(table.rows):
            again = place > 0 and table.rows[place - 1][0] == row[0]
            drawn.add_row(*map(cell, ("" if again else row[0], *row[1:])))
        yield drawn
        yield from (cell(f"⚑ {flag}") for flag in table.flags)
    yield from map(cell, dict.fromkeys(table.note for table in tables))


def cell(text: str) -> Text:
    """Return a text without characters that steer a terminal, which an untrusted run folder or file may hold."""
    from rich.text import Text

    return Text("".join(character for character in text if character.isprintable()))
