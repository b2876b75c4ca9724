"""The results of segmenters as tables of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...display.grid import Grid, Part, grid_of, side_by_side, together
from ...display.table import HeatTable
from .tables import HEADINGS

_MIOU = HEADINGS[4]


def scene_grids(tables: Sequence[HeatTable]) -> tuple[list[Grid], list[Grid]]:
    """Return the results under each condition, all checkpoints side by side, and the tables about parts of them."""
    of_all = [table for table in tables if table.headings[0] == HEADINGS[0]]
    conditions = [grid for table in of_all for grid in _conditions(table)]
    return conditions, together(table for table in tables if table.headings[0] != HEADINGS[0])


def _conditions(table: HeatTable) -> list[Grid]:
    by_checkpoint: dict[str, list[tuple[str, ...]]] = {}
    for row in table.rows:
        by_checkpoint.setdefault(row[0], []).append(row[2:])
    parts = [Part(name, table.headings[2:], tuple(rows), _shares(rows)) for name, rows in by_checkpoint.items()]
    return side_by_side("Clean and attacked", parts, headline=_MIOU) or [grid_of(table)]


def _shares(rows: Sequence[tuple[str, ...]]) -> dict[tuple[int, int], float]:
    """Return the mIoU of each row as a fraction."""
    figures = {(place, 2): row[2].split()[0] for place, row in enumerate(rows) if row[2][:1].isdigit()}
    return {place: share for place, text in figures.items() if math.isfinite(share := float(text) / 100)}
