"""Show smallest changes as tables: the median, and accuracy at each radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...display.grid import Grid, part_of, side_by_side
from ...display.numbers import pixels
from ...display.table import TextTable
from .measures import FURTHEST, OPTIMALITY
from .vocabulary import VOCABULARY, norm_of

_TITLE = "Smallest changes"
_NOTE = (
    "Accuracy at a radius counts the samples whose nearest wrong point found is further away; samples that are wrong "
    "as they are have distance 0. 95 % intervals: of the median by order statistics, of accuracies Wilson's."
)
Rows = Sequence[Mapping[str, Any]]


def distance_tables(results: Rows, texts: Sequence[str]) -> list[TextTable]:
    """Return a table for each checkpoint, from the rows of the summary. texts: the conditions of the family."""
    figures: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in results:
        if row["condition"] in texts:
            figures.setdefault(row["checkpoint"], {}).setdefault(row["condition"], []).append(row)
    return [_table(checkpoint, conditions) for checkpoint, conditions in figures.items()]


def distance_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the tables as one grid: a row for each figure, a column for each checkpoint."""
    parts = [part_of(table) for table in tables]
    grids = side_by_side(_TITLE, parts, keys=2, headline="value", note=_NOTE)[:1]
    return [replace(grid, title=_TITLE) for grid in grids]


def _table(checkpoint: str, conditions: Mapping[str, Sequence[Mapping[str, Any]]]) -> TextTable:
    lines = []
    for condition, rows in conditions.items():
        norm, name = norm_of(condition), VOCABULARY.label(condition)
        for row in rows:
            metric, percent = str(row["metric"]), row["metric"] != "median_distance"
            what = {"median_distance": "median distance"}.get(metric, "")
            if metric == OPTIMALITY.name:
                what = "optimality among all attacks of this norm, %"
            elif metric == "distance_area":
                what = f"area under the curve to {pixels(FURTHEST[norm], norm)}, %"
            elif not what:
                radius = metric.removeprefix("accuracy_at(").removesuffix(")")
                what = f"accuracy at {radius}, %"
            lines.append((name, what, _cell(row, norm, percent)))
    n = next(iter(conditions.values()))[0]["n"]
    return TextTable(
        f"{checkpoint}: smallest changes, n = {n}",
        ("attack", "figure", "value"),
        tuple(lines),
        (),
        _NOTE,
        checkpoint=checkpoint,
    )


def _cell(row: Mapping[str, Any], norm: str, percent: bool) -> str:
    """Return `2.74/255 [2.30, 3.49]`, or `43.3 [31.6, 55.9]` of percentages."""
    if row["value"] is None:
        return "none found"
    levels = norm == "linf" and not percent

    def shown(value: float | None) -> str:
        if value is None:
            return "…"
        return f"{100 * value:.1f}" if percent else f"{255 * value:.2f}" if levels else f"{value:.3g}"

    text = shown(row["value"]) + "/255" * levels
    if row["ci_low"] is None and row["ci_high"] is None:
        return text
    return f"{text} [{shown(row['ci_low'])}, {shown(row['ci_high'])}]"
