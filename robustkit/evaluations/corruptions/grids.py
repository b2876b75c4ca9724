"""The corruptions of a run as tables of the page."""

from __future__ import annotations

from collections.abc import Sequence

from ...display.grid import Grid, Part, side_by_side
from .tables import CorruptionTable


def corruption_grids(tables: Sequence[CorruptionTable]) -> list[Grid]:
    """Return the tables of all checkpoints side by side, those of each definition of corruptions together."""
    grids = list[Grid]()
    for definition in dict.fromkeys(table.definition for table in tables):
        some = [table for table in tables if table.definition == definition]
        where = some[0].source
        means = [Part(table.checkpoint, table.mean_headings, table.means) for table in some if table.means]
        grids += side_by_side(f"Means over sets of corruptions, {where}", means)
        title = f"Error in % by corruption, {where}"
        grids += side_by_side(title, [_errors(table) for table in some], headline="mean", lower=False)
    return grids


def _errors(table: CorruptionTable) -> Part:
    values = {
        (place, column): fraction
        for place, (_, _, fractions) in enumerate(table.errors)
        for column, fraction in enumerate(fractions, start=1)
        if fraction is not None
    }
    names = {str(severity): f"severity {severity}" for severity in range(1, 6)}
    headings = tuple(names.get(heading, heading) for heading in table.error_headings)
    return Part(table.checkpoint, headings, tuple(cells for _, cells, _ in table.errors), values)
