"""Show the logit ledger as tables: under each condition, and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.intervals import Floats
from ...display.table import TextTable
from ..cells import by_checkpoint
from .condition import under_of
from .measures import BACK, CHANGE, LISTS, METRICS
from .summary import Books

_MOST = 64  # layers in a table
_NOTE = (
    "Why attention scores change from the clean image: by norms of queries, norms of keys, and directions of both. "
    "Back: of the n samples whose prediction changed, those whose prediction comes back when norms or directions of "
    "the clean image are put in place of the others, in every layer. Means over samples, 95 % intervals."
)
_HEADINGS = tuple(metric.label for metric in METRICS[:4])
Rows = Sequence[Mapping[str, Any]]


def ledger_tables(results: Rows) -> list[TextTable]:
    """Return a table for each checkpoint whose books were kept, from the rows of the summary."""
    return [_table(checkpoint, conditions) for checkpoint, conditions in by_checkpoint(results, under_of).items()]


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> TextTable:
    rows = []
    for under, figures in conditions.items():
        changed = figures.get(METRICS[-1].name)
        cells = [_cell(figures.get(m.name), int(m.scale), m in (CHANGE, *BACK)) for m in METRICS]
        rows.append((under, *cells[:4], str(changed["n"] if changed else 0), *cells[4:]))
    headings = ("condition", *(m.label for m in METRICS[:4]), "n", *(m.label for m in METRICS[4:]))
    n = max(row["n"] for figures in conditions.values() for row in figures.values())
    return TextTable(f"{checkpoint}: logit ledger, n = {n}", headings, tuple(rows), (), _NOTE, checkpoint=checkpoint)


def _cell(row: Mapping[str, Any] | None, factor: int, interval: bool) -> str:
    """Return `12.3 [11.0, 14.2]`, or `12.3`."""
    if row is None or row["value"] is None:
        return "–"
    decimals = 1 if factor == 100 else 2
    text = _number(factor * row["value"], decimals)
    if not interval or row["ci_low"] is None or row["ci_high"] is None:
        return text
    return f"{text} [{', '.join(_number(factor * row[key], decimals) for key in ('ci_low', 'ci_high'))}]"


def _number(value: float, decimals: int) -> str:
    return f"{round(value, decimals) + 0.0:.{decimals}f}" if math.isfinite(value) else "nan"  # no -0.00


def layer_table(books: Books, title: str) -> TextTable:
    """Return a row for each layer: means over its heads, and the highest with its number from 0 on."""
    rows = []
    for place, layer in enumerate(books.layers[:_MOST]):
        figures = [books.by_layer(name)[place] for name in LISTS]
        cells = (_mean_and_most(values, factor) for values, factor in zip(figures, (1, 100, 100, 100), strict=True))
        rows.append((layer.name, str(layer.heads), *cells))
    note = "Mean over the heads of a layer, then the highest of them with its number from 0 on."
    more = len(books.layers) - len(rows)
    note += f" {more} more layers are left out." if more else ""
    return TextTable(title, ("layer", "heads", *_HEADINGS), tuple(rows), (), note)


def _mean_and_most(values: Floats, factor: int) -> str:
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return "–"
    most, decimals = int(finite[values[finite].argmax()]), 1 if factor == 100 else 2
    mean = float(values[finite].mean())
    return f"{_number(factor * mean, decimals)}, {_number(factor * float(values[most]), decimals)} ({most})"
