"""Show smallest changes as tables: the median, and accuracy at each radius."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...display.grid import Grid, part_of, side_by_side
from ...display.table import TextTable
from ...display.text import pixels
from .measures import BY_CHANCE, CORRELATION, FURTHEST, OF_HEAD, OPTIMALITY
from .vocabulary import VOCABULARY, norm_of

_TITLE = "Smallest changes"
_NOTE = (
    "Accuracy at a radius counts the samples whose nearest wrong point found is further away; samples that are wrong "
    "as they are have distance 0. 95 % intervals: of the median by order statistics, of accuracies Wilson's."
)
_OF_SLOPES = (
    " Slope correlation: Spearman's, of distance and softmax slope on the clean image, over the samples that are right "
    "as they are. Samples without a wrong point rank last, ties share their rank; the interval is a bootstrap's. The "
    "head is picked from all for the largest, which is large by chance, too: in 95 % of 1000 shuffles of the distances "
    "the largest stays below the figure that is said to be chance's."
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
    grids = side_by_side(_TITLE, parts, keys=2, headline="value", note=max((t.note for t in tables), key=len))[:1]
    return [replace(grid, title=_TITLE) for grid in grids]


def _table(checkpoint: str, conditions: Mapping[str, Sequence[Mapping[str, Any]]]) -> TextTable:
    lines = []
    for condition, rows in conditions.items():
        norm, name = norm_of(condition), VOCABULARY.label(condition)
        for row in rows:
            if str(row["metric"]).startswith(CORRELATION.name):
                continue
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
        lines += [(name, *line) for line in _correlations(rows)]
    n = next(iter(conditions.values()))[0]["n"]
    return TextTable(
        f"{checkpoint}: smallest changes, n = {n}",
        ("attack", "figure", "value"),
        tuple(lines),
        (),
        _NOTE + _OF_SLOPES * any(what == CORRELATION.label for _, what, _ in lines),
        checkpoint=checkpoint,
    )


def _correlations(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what the rows say about softmax slopes: of all heads together, and of the one with most."""
    of = {str(row["metric"]): row for row in rows if row["value"] is not None}
    if (row := of.get(CORRELATION.name)) is not None:
        ends = [row["ci_low"], row["ci_high"]]
        interval = "" if None in ends else f" [{ends[0]:+.2f}, {ends[1]:+.2f}]"
        yield CORRELATION.label, f"{row['value']:+.2f}{interval}, n = {row['n']}"
    for metric, row in of.items():
        if metric.startswith(OF_HEAD.name) and BY_CHANCE.name in of:
            head = metric.removeprefix(OF_HEAD.name).removesuffix(")")
            chance = of[BY_CHANCE.name]["value"]
            yield f"{CORRELATION.label}, largest of all heads", f"{row['value']:+.2f} ({head}; chance {chance:.2f})"


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
