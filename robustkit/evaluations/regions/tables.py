"""Show drowned regions as tables: what is kept of the accuracy, next to random regions of the same size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...display.grid import Grid, part_of, side_by_side
from ...display.table import TextTable
from ..cells import by_checkpoint
from .measures import ACCURACY, AREA, KEPT, LEAD, RANDOM
from .vocabulary import KIND, VOCABULARY

TITLE = "Region noise"
_NOTE = (
    "Kept: of the images that are predicted right as they are, the share that still is with the region drowned in "
    "noise; random: with the same region drowned at a random place. Difference: kept minus random in points, paired by "
    "image. In brackets 95 % intervals."
)
_SHOWN = (AREA, ACCURACY, KEPT, RANDOM, LEAD)
HEADINGS = ("region", "n", "area %", "top-1 %", "kept %", "random %", "difference")


def region_tables(results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    """Return a table for each checkpoint, from the rows of the summary."""
    ours = by_checkpoint(results, lambda text: text if text.startswith(f"{KIND}(") else None)
    return [_table(checkpoint, conditions) for checkpoint, conditions in ours.items()]


def region_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the tables as one grid: a row for each region, and what is kept of each checkpoint side by side."""
    return side_by_side(TITLE, [part_of(table) for table in tables], headline=HEADINGS[4], note=_NOTE)


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> TextTable:
    rows = tuple(
        (
            VOCABULARY.label(text),
            str(figures[ACCURACY.name]["n"]),
            *(_cell(figures.get(metric.name), metric == LEAD) for metric in _SHOWN),
        )
        for text, figures in conditions.items()
    )
    title = f"{checkpoint}: {TITLE[0].lower()}{TITLE[1:]}"
    return TextTable(title, HEADINGS, rows, (), _NOTE, checkpoint=checkpoint).said_once("n")


def _cell(row: Mapping[str, Any] | None, signed: bool) -> str:
    """Return `86.0 [84.5, 87.4]` of a fraction in percent."""
    if row is None or row["value"] is None:
        return "–"
    value, low, high = (
        None if row[key] is None else f"{round(100 * row[key], 1) + 0.0:{'+' * signed}.1f}"  # no -0.0
        for key in ("value", "ci_low", "ci_high")
    )
    return f"{value} [{low}, {high}]" if low and high else f"{value}"
