"""Compared checkpoints as tables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..display.grid import Grid, Part, side_by_side
from ..display.table import TextTable
from .tables import HEADINGS

_KEYS = 2  # condition and figure
_DIFFERENCE, _VERDICT, _BASE = (HEADINGS.index(name) for name in ("difference [95 %]", "at 0.05", "baseline"))


def comparison_grids(tables: Sequence[TextTable], baseline: str) -> list[Grid]:
    """Return all differences from the baseline side by side: those that are significant, then, folded, the others.

    tables: one per checkpoint compared, from `report_tables`. baseline: the name of what they are compared with.
    """
    if not tables:
        return []
    flags = tuple(dict.fromkeys(flag for table in tables for flag in table.flags))
    pairs = [(table, {row[:_KEYS]: row for row in table.rows}) for table in tables]
    order = dict.fromkeys(key for _, rows in pairs for key in rows)
    headings = (*HEADINGS[:_KEYS], baseline, *(table.checkpoint for table in tables))
    tell, cannot = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for key in order:
        found = [rows.get(key) for _, rows in pairs]
        base = next(row[_BASE] for row in found if row is not None)
        cells = ("–" if row is None else f"{row[_DIFFERENCE]} {row[_VERDICT]}".strip() for row in found)
        told = any(row is not None and row[_VERDICT] for row in found)
        (tell if told else cannot).append((*key, base, *cells))
    grids = [
        Grid(
            f"Differs from {baseline} beyond chance: {len(tell)} of {len(order)} figures", headings, tuple(tell), _KEYS
        ),
        Grid(f"Cannot tell: {len(cannot)} of {len(order)} figures", headings, tuple(cannot), _KEYS, folded=True),
    ]
    grids = [grid for grid in grids if grid.rows]
    parts = [Part(table.checkpoint, table.headings, table.rows) for table in tables]
    title = f"Differences from {baseline}, with p-values"
    grids += (replace(grid, folded=True) for grid in side_by_side(title, parts, keys=_KEYS))
    titles = " ".join(f"{table.title}." for table in tables)
    return [replace(grids[0], note=f"{titles} {tables[0].note}", flags=flags), *grids[1:]]
