"""Perplexity, bits per byte, NLL and accuracy of tokens: sums over records, tables, what perturbations do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ...common.figure import Figure
from ...common.finding import Finding
from ...common.groups import Groups
from ...common.intervals import Floats, resampled_figures
from ...display.format import Cell, counted, figure_cell, number
from ...display.table import Table, side_by_side, with_flags
from ...evaluations.aggregate import RecordReader, Results, column_of
from ...evaluations.condition import Clause, name_of, words_of
from ...evaluations.family import Aggregator, AnyFamily, Family, Presenter
from ...evaluations.metrics import Cells, Metric
from ...evaluations.presenting import finding_lines
from ...runs.description import shown_as
from ...runs.manifest import CheckpointEntry, Manifest
from . import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa


SUMS = ("tokens", "words", "bytes", "nll", "right")  # the columns that every figure is made of
FIGURES = ("perplexity", "word_perplexity", "bits_per_byte", "nll", "token_accuracy")


def figures(sums: Floats) -> Floats:
    """Return the figures (..., 5), in the order of FIGURES, of sums (..., 5) in that of SUMS."""
    tokens, words, size, nll, right = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = np.exp(nll / tokens), np.exp(nll / words), nll / np.log(2) / size, nll / tokens, right / tokens
    return np.stack(parts, axis=-1)


def sums_of(table: pa.Table) -> Floats:
    """Return the sums of each document that could be read: (n, 5)."""
    return np.stack([column_of(table, name) for name in SUMS], axis=1)


def resampled(sums: Floats, groups: Groups | None) -> Floats:
    return resampled_figures(lambda counts: figures(counts @ sums), len(sums), groups)


def is_wanted(family: AnyFamily, column: str) -> bool:
    """Whether the figures of a condition need a column of its records."""
    columns = family.columns if isinstance(family, Family) else ()
    return column in (*SUMS, "unknown", "sample_id", "error", *columns)


_COLUMNS = (
    ("perplexity", "perplexity [95 %]", 1, 2),
    ("word_perplexity", "word perplexity [95 %]", 1, 2),
    ("bits_per_byte", "bits per byte [95 %]", 1, 4),
    ("nll", "NLL [95 %]", 1, 4),
    ("token_accuracy", "top-1 % of tokens [95 %]", 100, 2),
)
HEADINGS = ("condition", "n", *(heading for _, heading, _, _ in _COLUMNS), "flag")
_HEADLINE = HEADINGS[2]


def result_rows(cells: Cells) -> list[tuple[str, ...]]:
    rows = []
    for text in dict.fromkeys(text for text, _ in cells if words_of(text).in_results):
        first = cells[text, _COLUMNS[0][0]]
        values = (_cell(cells.get((text, name)), scale, digits) for name, _, scale, digits in _COLUMNS)
        rows.append((text, counted(first), *values, "⚑" if first.findings else ""))
    return rows


def _cell(row: Figure | None, scale: float, digits: int) -> Cell:
    """Return `434.70 [410.12, 460.03]`; a dash where there is no row."""
    return figure_cell(row, scale, digits=digits)


def read_as(entry: CheckpointEntry) -> str:
    return ", ".join(shown_as(entry).values())


def result_grids(results: Results) -> list[Table]:
    """Return the perplexities of all checkpoints side by side, then every figure."""
    rows = {entry.name: result_rows(results.cells[entry.name]) for entry in results.manifest.checkpoints}
    parts = [Table("", HEADINGS[:-1], tuple(row[:-1] for row in some), checkpoint=name) for name, some in rows.items()]
    remarks = dict.fromkeys(f"{entry.name}: {read_as(entry)}." for entry in results.manifest.checkpoints)
    grids = side_by_side("Clean and with changed words", parts, headline=_HEADLINE, note=" ".join(remarks))
    return with_flags(grids, finding_lines(results, lambda text: words_of(text).in_results))


class PerturbationsAggregator(Aggregator):
    """Records of perturbations into results."""

    words = VOCABULARY

    def extras(self, reading: RecordReader, condition: str, read: pa.Table) -> tuple[list[Figure], list[Finding]]:
        card = reading.manifest.protocol
        if card.parameters.get("scoring", {}).get("targets") != "changed":
            return [], []
        return [], [Finding.of("text/targets-changed", card=card.name)]


class PerturbationsPresenter(Presenter):
    """Results of perturbations for people."""

    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        rows = [row for (text, name), row in cells.items() if name == headline.name and words_of(text) is self.words]
        if rows:
            row = max(rows, key=lambda row: -headline.better * row.value)
            yield Clause(
                f"{headline.word} {number(row.value, 1)} {name_of(row.condition, 'sentence', manifest)}", (row,)
            )
