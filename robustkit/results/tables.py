"""Show compared checkpoints as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..display.table import TextTable
from ..evaluations.family import by_family
from ..evaluations.results import Results
from ..runs.folder import RunFolder
from ..tasks.measures import metric_of
from .comparison import Comparison, ComparisonRow, own_flags, pair_tests

HEADINGS = ("condition", "figure", "n", "baseline", "value", "difference [95 %]", "p", "p (Holm)", "at 0.05")


def report_tables(run: RunFolder, results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    """Return tables of the checkpoints of one run against its first, for its report; results: rows of the summary."""
    if len(run.manifest.checkpoints) < 2 or not results:
        return []
    return tables(pair_tests(Results.of(run, results)).comparison)


def tables(comparison: Comparison) -> list[TextTable]:
    """Return a table per pair. Flags of the results that are compared stand under the last one."""
    result = []
    for place, pair in enumerate(comparison.pairs, 1):
        own = own_flags(comparison.pairs) if place == len(comparison.pairs) else []
        flags = (*pair.flags, *pair.left_out, *own)
        title = "; ".join([f"{pair.names[1]} against {pair.names[0]}, paired by {comparison.sample}", *pair.changed])
        beside = comparison.reference is not None
        headings = (*HEADINGS, *(["published, not paired"] if beside else []))
        rows = tuple(_cells(row, beside) for row in pair.rows)
        spare = ("p", "n", "p (Holm)")
        result.append(TextTable(title, headings, rows, flags, _note(comparison), pair.names[1], spare))
    return result


def _note(comparison: Comparison) -> str:
    """Say what the columns mean."""
    rows = comparison.rows
    notes = ["The difference is value minus baseline, in points where they are in %."]
    words: dict[str, dict[str, None]] = {}
    for row in rows:
        words.setdefault(row.difference.test, {})[metric_of(row.metric).word] = None
    if words:
        *each, (last, _) = words.items()
        tests = "".join(f"{test} for {', '.join(of)}, " for test, of in each) + (f"else {last}" if each else last)
        others = f", and {len(comparison.others)} other tests of the run's page" if comparison.others else ""
        notes.append(f"Intervals and p are of each row alone; p is of {tests}.")
        notes.append(f"Holm's p counts all {len(rows)} rows{others}.")
    sides = dict.fromkeys(side for pair in comparison.pairs for side in (pair.first, pair.second))
    there = by_family(condition for side in sides for condition in side.conditions)
    shown = dict(by_family(row.condition for row in rows))
    notes += (note for family, texts in there for note in family.comparison_notes(shown[family], texts))
    if (reference := comparison.reference) is not None:
        what = "their difference, or the figure where both have the same attention"
        notes.append(f"Published: {what}; {reference.summary}, on {reference.data} ({reference.source}).")
    return " ".join(notes)


def _cells(row: ComparisonRow, beside: bool) -> tuple[str, ...]:
    metric, difference = metric_of(row.metric), row.difference
    digits = 2 if metric.scale == 100 else 3

    def cell(value: float, sign: str = "") -> str:
        return f"{metric.scale * value:{sign}.{digits}f}" if math.isfinite(value) else "nan"

    low, high = difference.ci_low, difference.ci_high
    bounds = f" [{cell(low, '+')}, {cell(high, '+')}]" if math.isfinite(low) else ""
    cells = (row.condition, metric.label, str(difference.n), cell(difference.first), cell(difference.second))
    same = row.first.described.attention == row.second.described.attention
    published = "–" if row.published is None else cell(row.published, "" if same else "+")
    figures = (cell(difference.value, "+") + bounds, p_text(difference.p_value), p_text(row.p_value), row.verdict)
    return (*cells, *figures, *([published] if beside else []))


def p_text(value: float) -> str:
    """Return a p-value as text."""
    return "nan" if not math.isfinite(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"
