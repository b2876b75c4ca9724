"""Figures of conditions on a part of the samples, supported by a condition on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.prediction_powered import supported_mean
from ..display.grid import Grid, Part, side_by_side
from ..display.table import TextTable
from .cells import interval_cell, is_finite
from .flags import short_names
from .kinds import words_of
from .metric import Metric
from .results import Results
from .rows import Row, column_of
from .supported import PREFIX, WEIGHT, weight_of

if TYPE_CHECKING:
    import pyarrow as pa

HEADINGS = ("condition", "n", "plain [95 %]", "supported [95 %]", "by", "λ", "on more")
TITLE = "Figures of few samples, supported"
NOTE = (
    "Supported: the plain figure, of the samples drawn, corrected by a condition that was evaluated on all samples "
    "(prediction-powered inference). The plain figure stands next to it; rules take it only by its name."
)


def supported_rows(
    condition: str, metric: Metric, table: pa.Table, by: str, others: pa.Table, flags: Sequence[str]
) -> Iterator[Row]:
    """Yield the supported figure of a condition, and the weight of what supports it, named in the metric.

    table, others: the readable rows of the condition and of the one that supports it, `by`, each with `sample_id` and
    a second column, whose mean over the first is the metric. Samples that only one of the two could read are left out.
    """
    figure, cheap = (next(name for name in each.column_names if name != "sample_id") for each in (table, others))
    known = dict(zip(others["sample_id"].to_pylist(), column_of(others, cheap), strict=True))
    dear = zip(table["sample_id"].to_pylist(), column_of(table, figure), strict=True)
    both = np.array([(value, known.pop(sample)) for sample, value in dear if sample in known]).reshape(-1, 2)
    rest = np.array([*known.values()])
    if not len(both) or not len(rest) or not (np.isfinite(both).all() and np.isfinite(rest).all()):
        return
    found = supported_mean(both[:, 0], both[:, 1], rest, binary=metric.binary)
    yield condition, PREFIX + metric.name, found.value, len(both), found.low, found.high, [*flags]
    yield condition, f"{WEIGHT.name}{metric.name} by {by})", found.weight, len(rest), np.nan, np.nan, [*flags]


def support_rows(results: Results, wanted: Callable[[str], bool]) -> dict[str, list[tuple[str, ...]]]:
    """Return rows of texts under `HEADINGS`, by checkpoint, of the conditions that are wanted."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for checkpoint, cells in results.cells.items():
        for (condition, name), row in cells.items():
            metric, by = weight_of(name)
            if not metric or not wanted(condition):
                continue
            own = words_of(condition).metric(PREFIX + metric)
            cell = interval_cell if own and own.scale == 100 else _plain_cell
            before, after = cells.get((condition, metric)), cells[condition, PREFIX + metric]
            figures = cell(before), cell(after), by, f"{row['value']:.2f}", str(row["n"])
            rows.setdefault(checkpoint, []).append((f"{condition}, {metric}", str(after["n"]), *figures))
    return rows


def _plain_cell(row: Mapping[str, Any] | None) -> str:
    """Return `0.436 [0.410, 0.461]`; a dash where there is no row."""
    if row is None or not is_finite(row["value"]):
        return "–"
    known = all(is_finite(row[end]) for end in ("ci_low", "ci_high"))
    return f"{row['value']:.3f}" + (f" [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" if known else "")


def support_tables(results: Results, wanted: Callable[[str], bool]) -> list[TextTable]:
    """Return a table of supported figures next to the plain ones; none where there are none."""
    called = short_names(results.manifest.names)
    every = support_rows(results, wanted)
    lines = tuple((called[name], *row) for name, rows in every.items() for row in rows)
    return [TextTable(TITLE, ("checkpoint", *HEADINGS), lines, note=NOTE)] if lines else []


def support_grids(results: Results, wanted: Callable[[str], bool]) -> list[Grid]:
    """Return the same for the page, all checkpoints side by side."""
    parts = [Part(name, HEADINGS, tuple(rows)) for name, rows in support_rows(results, wanted).items()]
    return side_by_side(TITLE, parts, headline=HEADINGS[3], lower=False, note=NOTE)
