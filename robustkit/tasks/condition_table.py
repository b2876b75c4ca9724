"""The table of a task's results: a row for each checkpoint and condition, a column for each metric of the task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..common.figure import Figure
from ..display.format import MISSING, amount, count
from ..display.table import Table, side_by_side, with_flags
from ..evaluations.condition import words_of
from ..evaluations.metrics import Metric, is_finite

if TYPE_CHECKING:
    from ..runs.manifest import Manifest
    from .task import Task

CHANGE = "largest |δ|"  # the last column: the size of the changes in the norm of the condition
_OF_NORMS = {f"{norm}_max": norm for norm in ("linf", "l2")}


@dataclass(frozen=True)
class ConditionTable:
    """metrics: one for each column. figures: the rows of the summary by checkpoint and condition, then by metric."""

    task: Task
    manifest: Manifest
    metrics: tuple[Metric, ...]
    figures: Mapping[tuple[str, str], Mapping[str, Figure]]

    @classmethod
    def of(cls, task: Task, results: Iterable[Figure], manifest: Manifest) -> ConditionTable:
        """Return the table of conditions that have the headline figure, of metrics with a label and a figure."""
        every: dict[tuple[str, str], dict[str, Figure]] = {}
        for row in results:
            if words_of(row.condition).in_results:
                every.setdefault((row.checkpoint, row.condition), {})[row.metric] = row
        figures = {key: by_metric for key, by_metric in every.items() if task.headline in by_metric}
        names = {name for by_metric in figures.values() for name in by_metric} - {*_OF_NORMS}
        metrics = (metric for metric in task.metrics if metric.label and not metric.parametric)
        return cls(task, manifest, tuple(metric for metric in metrics if metric.name in names), figures)

    def cells(self, key: tuple[str, str], whole: bool = False) -> dict[str, str]:
        """Return the texts of a row by heading. whole: every interval; a dash for what is not finite or left early."""
        figures, norm = self.figures[key], self.manifest.norm(key[1])
        if whole:
            figures = {name: row for name, row in figures.items() if row.is_finite}
        metrics = [replace(metric, bare=False) for metric in self.metrics] if whole else self.metrics
        largest = figures.get(f"{norm}_max")
        size = largest.value if largest else None
        none = MISSING if self.manifest.checkpoint(key[0]).is_elsewhere else count(0)  # nobody measured it
        return {
            "condition": key[1],
            "n": count(self.figures[key][self.task.headline].n),
            **{metric.column: metric.cell(figures.get(metric.name)) for metric in metrics},
            CHANGE: amount(size, norm, self.manifest.protocol.space) if is_finite(size) and size else none,
        }

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        words = {"none": "no", "other": "other"}  # shown in place of a formula where there is none
        attention = {entry.name: words.get(entry.attention, entry.attention) for entry in self.manifest.checkpoints}
        return [{"checkpoint": key[0], "attention": attention[key[0]], **self.cells(key)} for key in self.figures]

    def text_table(self, spare: tuple[str, ...] = (), mark: bool = False) -> Table:
        """Return all rows. spare: headings to leave out where room is short. mark: show which rows have a flag."""
        rows = self.rows
        flags = [self.figures[key][self.task.headline].findings for key in self.figures]
        if mark and any(flags):
            rows = [{**row, "flag": "⚑" if some else ""} for row, some in zip(rows, flags, strict=True)]
        protocol, columns = self.manifest.protocol, {metric.name: metric.column for metric in self.metrics}
        headings = tuple(rows[0]) if rows else ()
        texts = tuple(tuple(row.values()) for row in rows)
        title = f"protocol {protocol.tag}: {protocol.summary}"
        return Table(title, headings, texts, spare=tuple(columns.get(name, name) for name in spare))

    def terminal(self, spare: tuple[str, ...], mark: bool = False) -> Table:
        heads = [f"{row['checkpoint']}, {row['attention']} attention" for row in self.rows]
        return self.text_table(spare, mark).said_once("n").under_heads(heads, 2)

    def grids(self, flags: tuple[str, ...]) -> list[Table]:
        """Return the headline of all checkpoints side by side, then every figure. flags: lines below the first."""
        headline, parts = self.task.headline_metric, []
        for checkpoint in dict.fromkeys(checkpoint for checkpoint, _ in self.figures):
            rows = [self.cells(key) for key in self.figures if key[0] == checkpoint]
            lines = tuple(tuple(row.values()) for row in rows)
            parts.append(Table("", tuple(rows[0]), lines, checkpoint=checkpoint, shaded=(headline.column,)))
        return with_flags(side_by_side("Clean and attacked", parts, headline=headline.column), flags)
