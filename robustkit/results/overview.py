"""The results of a run in one short table: a row for what was asked, a column for each checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..display.table import TextTable
from ..evaluations.cells import Row, is_finite
from ..evaluations.family import by_family
from ..evaluations.metric import Metric
from ..evaluations.results import Results
from ..evaluations.short_row import ShortRow
from ..tasks.task import task_of

LEGEND = "[low, high]: 95 % interval. –: not evaluated."


def short_tables(results: Results) -> list[TextTable]:
    """Return what a terminal shows of a run: the short table; of a single checkpoint all numbers of its task's table
    first.
    """
    manifest = results.manifest
    rows = list(_rows(results))
    if len(manifest.checkpoints) > 1:
        title = f"protocol {manifest.protocol.tag}, {manifest.data.n} {manifest.protocol.samples.many}"
        return [replace(_table(results, rows), title=title, note=LEGEND)] if rows else []
    first = [*task_of(manifest).terminal(results)][:1]
    headline = task_of(manifest).headline_metric.heading
    others = [row for row in rows if row.section != headline]
    return [*first, *([_table(results, others)] if others else [])]


def _rows(results: Results) -> Iterator[ShortRow]:
    """Yield the rows for which some checkpoint has a number, those of a section together."""
    manifest, headline = results.manifest, task_of(results.manifest).headline_metric
    conditions = dict.fromkeys(row["condition"] for row in results)
    every = [row for family, texts in by_family(conditions) for row in family.short(texts, manifest, headline)]
    there = {(row["condition"], row["metric"]) for row in results}
    shown = [row for row in every if (row.condition, row.metric.name) in there]
    for section in dict.fromkeys(row.section for row in shown):
        mine = [row for row in shown if row.section == section]
        labels = [row.label for row in mine]
        for row in mine:  # a label that two share would say nothing
            alike = not row.label.startswith(" ") and labels.count(row.label) > 1
            yield row._replace(label=row.condition) if alike else row


def _table(results: Results, rows: list[ShortRow]) -> TextTable:
    names = results.manifest.names
    cells = tuple(
        (row.section, row.label, *(_cell(results.cells[name], row.condition, row.metric) for name in names))
        for row in rows
    )
    return TextTable("", ("", "", *names), cells).under_heads([row.section for row in rows])


def _cell(cells: Mapping[tuple[str, str], Row], condition: str, metric: Metric) -> str:
    """Return `93.3 [84.1, 97.4]`; a dash where there is no row."""
    row = cells.get((condition, metric.name))
    if row is None:
        return "–"
    sign, digits = "+" if metric.name.endswith("_over_control") else "", 1 if metric.scale == 100 else 2
    value = _number(row["value"], metric.scale, digits, sign)
    low, high = (_number(row[key], metric.scale, digits) for key in ("ci_low", "ci_high"))
    return f"{value} [{low}, {high}]" if is_finite(row["ci_low"]) and is_finite(row["ci_high"]) else value


def _number(value: float | None, scale: float, digits: int, sign: str = "") -> str:
    if value is None or not math.isfinite(value):
        return "nan"
    return f"{round(scale * value, digits) + 0.0:{sign}.{digits}f}"  # no -0.0
