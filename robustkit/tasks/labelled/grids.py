"""The results of classifiers as tables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...display.grid import Grid, Part, side_by_side, with_flags
from ...display.table import TextTable
from ...evaluations.flags import flag_lines
from ...evaluations.kinds import words_of
from ...evaluations.results import Results
from .tables import HEADINGS, table_rows

_TOP1 = HEADINGS[4]


def result_grids(results: Results) -> list[Grid]:
    """Return top-1 of all checkpoints side by side, then every figure."""
    by_checkpoint: dict[str, list[tuple[str, ...]]] = {}
    for row in table_rows(results):
        by_checkpoint.setdefault(row[0], []).append(row)
    parts = [_part(name, rows) for name, rows in by_checkpoint.items()]
    flags = flag_lines(results, lambda condition: words_of(condition).in_results)
    return with_flags(side_by_side("Clean and attacked", parts, headline=_TOP1), flags)


def _part(checkpoint: str, rows: Sequence[tuple[str, ...]]) -> Part:
    values: Mapping[tuple[int, int], float] = {
        (place, 2): float(row[4].split()[0]) / 100 for place, row in enumerate(rows)
    }
    return Part(checkpoint, HEADINGS[2:], tuple(row[2:9] for row in rows), values)


def class_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the weak classes of all checkpoints together: one table when clean, one for each attack."""
    groups: dict[str, list[TextTable]] = {}
    for table in tables:
        groups.setdefault(table.title.removeprefix(f"{table.checkpoint}: "), []).append(table)
    grids = []
    for title, some in groups.items():
        several = len(some) > 1
        headings = (*(["checkpoint"] if several else []), *some[0].headings)
        rows = tuple((*([table.checkpoint] if several else []), *row) for table in some for row in table.rows)
        note = " ".join(dict.fromkeys(table.note for table in some))
        grids.append(Grid(title[:1].upper() + title[1:], headings, rows, 1 + several, note=note))
    return [grids[0], *(replace(grid, folded=True) for grid in grids[1:])] if grids else []
