"""The maps of a run as tables of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...display.grid import Grid, Part, side_by_side
from .tables import MapTable

_LEAD = "  – "  # begins the row of a lead over the control that it names


def map_grids(tables: Sequence[MapTable]) -> list[Grid]:
    """Return the tables of all checkpoints side by side, those of the same scores together."""
    groups: dict[str, list[MapTable]] = {}
    for table in tables:
        groups.setdefault(table.title, []).append(table)
    return [
        grid
        for title, some in groups.items()
        for grid in side_by_side(title.replace("maps,", "Maps,", 1), [_part(table) for table in some])
    ]


def _part(table: MapTable) -> Part:
    if not any(row[0].startswith(_LEAD) for row in table.rows):
        return Part(table.checkpoint, table.headings, table.rows)
    headings = (*table.headings[:2], "best control", *table.headings[2:])
    return Part(table.checkpoint, headings, tuple(_named(table.rows)))


def _named(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the rows with a column for the best control; a lead says over what it is."""
    score = ""
    for name, n, *cells in rows:
        if name.startswith(_LEAD):
            yield (f"{score}, lead", "", name.removeprefix(_LEAD), *(cell or "–" for cell in cells))
        else:
            score = name
            yield (name, n, "", *cells)
