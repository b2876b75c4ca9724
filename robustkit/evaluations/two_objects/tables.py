"""Show maps of two objects as tables: what lies in the object that was asked for, and how far ahead of controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...display.grid import Grid, part_of, side_by_side
from ...display.table import TextTable
from ..cells import by_checkpoint, interval_cell
from .measures import ASKED, FOUND, LEADS, OTHER, SHARE
from .vocabulary import KIND, VOCABULARY

TITLE = "Two objects"
HEADINGS = (
    *("map", "n", "share of the asked %", "mass in the asked %", "in the other %"),
    *("over the other class's map", "over centre", "over random", "both found %"),
)
_NOTE = (
    "A map is asked for the class of each of two objects in turn. Share: of what it has in both objects, the part in "
    "the one that was asked for; 50 % for a map that is the same for all classes. Then how far its mass in the asked "
    "object is ahead, in points, of the map of the other class, a centred Gaussian, and a random map. Both found: the "
    "two most probable classes are those of the objects. In brackets 95 % intervals."
)


def two_object_tables(results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    """Return a table for each checkpoint, from the rows of the summary."""
    ours = by_checkpoint(results, lambda text: text if text.startswith(f"{KIND}(") else None)
    return [_table(checkpoint, conditions) for checkpoint, conditions in ours.items()]


def two_object_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the tables as one grid: a row for each map, and the share of each checkpoint side by side."""
    return side_by_side(TITLE, [part_of(table) for table in tables], headline=HEADINGS[2], note=_NOTE)


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> TextTable:
    shown = (SHARE, ASKED, OTHER, *LEADS.values(), FOUND)
    rows = tuple(
        (
            VOCABULARY.label(text),
            str(figures[SHARE.name]["n"]),
            *(interval_cell(figures.get(metric.name)) for metric in shown),
        )
        for text, figures in conditions.items()
    )
    title = f"{checkpoint}: {TITLE[0].lower()}{TITLE[1:]}"
    return TextTable(title, HEADINGS, rows, (), _NOTE, checkpoint=checkpoint).said_once("n")
