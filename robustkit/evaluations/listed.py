"""A table of a family with a row for each condition: one for each checkpoint, and all of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..display.grid import Grid, part_of, side_by_side
from ..display.table import TextTable
from .cells import by_checkpoint

Figures = Mapping[str, Mapping[str, Any]]
"""The rows of a condition by metric."""


@dataclass(frozen=True)
class ListedConditions:
    """How a family shows its results. kind: what its conditions' texts begin with. title: of the tables, in sentence
    case. headings: the condition's, n, and those of the figures. headline: which of them is shown of each checkpoint
    side by side. note: below each table. label: what a condition is called. counted: the metric whose n stands for
    the row; 0 where a condition lacks it. cells: the texts of a condition's figures, fewer than headings where it has
    none of the last ones.
    """

    kind: str
    title: str
    headings: tuple[str, ...]
    headline: int
    note: str
    label: Callable[[str], str]
    counted: str
    cells: Callable[[Figures], Iterable[str]]

    def tables(self, results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
        """Return a table for each checkpoint, from the rows of the summary."""
        ours = by_checkpoint(results, lambda text: text if text.startswith(f"{self.kind}(") else None)
        return [self._table(checkpoint, conditions) for checkpoint, conditions in ours.items()]

    def grids(self, tables: Sequence[TextTable]) -> list[Grid]:
        """Return the tables as one grid: a row for each condition, and the headline of each checkpoint."""
        parts = [part_of(table) for table in tables]
        return side_by_side(self.title, parts, headline=self.headings[self.headline], note=self.note)

    def _table(self, checkpoint: str, conditions: Mapping[str, Figures]) -> TextTable:
        every = [
            (self.label(text), str(figures.get(self.counted, {"n": 0})["n"]), *self.cells(figures))
            for text, figures in conditions.items()
        ]
        headings = self.headings[: max(map(len, every))]
        rows = tuple((*cells, *["–"] * (len(headings) - len(cells))) for cells in every)
        title = f"{checkpoint}: {self.title[0].lower()}{self.title[1:]}"
        return TextTable(title, headings, rows, (), self.note, checkpoint=checkpoint).said_once("n")
