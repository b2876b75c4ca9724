"""Show changed images as tables: how often predictions flip, and what that does to maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...display.grid import Grid, part_of, side_by_side
from ...display.table import TextTable
from ..cells import by_checkpoint, interval_cell
from .measures import BEFORE, CHANGE, FLIPPED, FOLLOWED, RIGHT
from .vocabulary import KIND, VOCABULARY

TITLE = "Changed images"
HEADINGS = ("what is changed", "n", "top-1 %", "flips %", "flips to what was put in %")
_OF_MAPS = ("mass on the object before %", "change, points")
_NOTE = (
    "One thing of each image is changed. Top-1 is of the changed images, whose label the outline decides. Flips are of "
    "the n images that are predicted right as they are: predictions that change, and those that become the class whose "
    "colour or outline was put in. In brackets 95 % intervals."
)


def counterfactual_tables(results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    """Return a table for each checkpoint, from the rows of the summary."""
    ours = by_checkpoint(results, lambda text: text if text.startswith(f"{KIND}(") else None)
    return [_table(checkpoint, conditions) for checkpoint, conditions in ours.items()]


def counterfactual_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the tables as one grid: a row for each change, and the flips of each checkpoint side by side."""
    return side_by_side(TITLE, [part_of(table) for table in tables], headline=HEADINGS[3], note=_NOTE)


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> TextTable:
    mapped = any(CHANGE.name in figures for figures in conditions.values())
    shown = (RIGHT, FLIPPED, FOLLOWED, *([BEFORE, CHANGE] if mapped else []))
    rows = tuple(
        (
            VOCABULARY.label(text),
            str(figures[FLIPPED.name]["n"]) if FLIPPED.name in figures else "0",
            *(interval_cell(figures.get(metric.name)) for metric in shown),
        )
        for text, figures in conditions.items()
    )
    headings = (*HEADINGS, *(_OF_MAPS if mapped else ()))
    title = f"{checkpoint}: {TITLE[0].lower()}{TITLE[1:]}"
    return TextTable(title, headings, rows, (), _NOTE, checkpoint=checkpoint).said_once("n")
