"""Show transfer as matrices: for whom images were found, and who is scored on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...display.grid import Grid
from ...display.table import TextTable
from ..cells import interval_cell, is_finite
from ..family import family_of
from ..flags import short_names
from ..kinds import kind_of
from ..results import Results
from .condition import passed_of
from .measures import ACCURACY, KEPT

_OWN = "top1"
_NOTE = (
    "Rows: the checkpoint that the adversarial images were found for; columns: the one that is scored. On the diagonal "
    "its own attack. What others see is rounded to 16 bits. Verdicts kept: the share of samples on which a checkpoint "
    "is as right or wrong on its own images, rounded so, as before. 95 % intervals: Wilson's."
)
_FIRST, _LAST = "found for", "verdicts kept"

Cell = Mapping[str, Any]


@dataclass
class Matrix:
    """What one attack found and for whom. accuracy: by the checkpoint it was found for and the one that is scored.
    kept: by checkpoint.
    """

    attack: str
    accuracy: dict[tuple[str, str], Cell] = field(default_factory=dict)
    kept: dict[str, Cell] = field(default_factory=dict)


def matrices(results: Results) -> list[Matrix]:
    """Return a matrix for each attack whose images were passed on."""
    found: dict[str, Matrix] = {}
    for row in results:
        passed, name = passed_of(row["condition"]), row["checkpoint"]
        if passed is None:
            continue
        matrix = found.setdefault(passed.attack, Matrix(passed.attack))
        if row["metric"] == KEPT.name:
            matrix.kept[name] = row
        elif row["metric"] == ACCURACY.name:
            own = results.cells[name].get((passed.attack, _OWN)) if passed.source == name else None
            matrix.accuracy[passed.source, name] = row if own is None else own
    return list(found.values())


def transfer_tables(results: Results) -> list[TextTable]:
    """Return each matrix as a table."""
    return [_table(matrix, results) for matrix in matrices(results)]


def transfer_grids(results: Results) -> list[Grid]:
    """Return each matrix as a grid, darker where less is right."""
    grids = []
    for matrix in matrices(results):
        table = _table(matrix, results)
        sources, scored = _names(matrix, results)
        shades = {
            (row, column): 1 - float(cell["value"])
            for row, source in enumerate(sources)
            for column, name in enumerate(scored, start=1)
            if (cell := matrix.accuracy.get((source, name))) is not None and is_finite(cell["value"])
        }
        title = table.title[:1].upper() + table.title[1:]
        grids.append(Grid(title, table.headings, table.rows, 1, shades))
    return [*grids[:-1], *(replace(grid, note=_NOTE) for grid in grids[-1:])]


def _table(matrix: Matrix, results: Results) -> TextTable:
    sources, scored = _names(matrix, results)
    called = short_names(results.manifest.names)
    rows = [
        (called[source], *(interval_cell(matrix.accuracy.get((source, name))) for name in scored)) for source in sources
    ]
    if matrix.kept:
        rows.append((_LAST, *(interval_cell(matrix.kept.get(name)) for name in scored)))
    attack = family_of(kind_of(matrix.attack)).called(matrix.attack, results.manifest)
    sizes = sorted({str(cell["n"]) for cell in matrix.accuracy.values()}, key=int)
    title = f"transfer of {attack}: accuracy in %, n = {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))}"
    return TextTable(title, (_FIRST, *(called[name] for name in scored)), tuple(rows), (), _NOTE)


def _names(matrix: Matrix, results: Results) -> tuple[list[str], list[str]]:
    """Return for whom images were found, and who is scored, in the order of the run."""
    names = results.manifest.names
    sources = {source for source, _ in matrix.accuracy}
    scored = {name for _, name in matrix.accuracy}
    return [name for name in names if name in sources], [name for name in names if name in scored]
