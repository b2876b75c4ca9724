"""Show the results of a classifier as a part of its model card."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...display.table import CardPart
from ...display.text import Made, amount, code
from ...evaluations.kinds import words_of
from ...evaluations.results import Results

HEADINGS = ("condition", "n", "top-1 % [95 %]", "top-5 % [95 %]", "NLL [95 %]", "ECE % [95 %]", "largest change")
_SCALES = (("top1", 100), ("top5", 100), ("nll", 1), ("ece", 100))


def card_parts(results: Results) -> Iterator[CardPart]:
    """Yield a table of the conditions that are in the table of results."""
    if rows := list(_conditions(results)):
        called = results.manifest.protocol.samples.many
        note = f"In brackets 95 % intervals, n is the number of {called}; ⚑ marks what is flagged above."
        yield CardPart("Clean and under attack", note, [("", HEADINGS, rows)])


def _conditions(results: Results) -> Iterator[tuple[str, ...]]:
    metrics: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in results:
        if words_of(row["condition"]).in_results:
            metrics.setdefault(row["condition"], {})[row["metric"]] = row
    for condition, metric in metrics.items():
        norm = results.manifest.norm(condition)
        largest = metric.get(f"{norm}_max")
        flagged = " ⚑" if any(row["flags"] for row in metric.values()) else ""
        yield (
            Made(code(condition) + flagged),
            str(next(iter(metric.values()))["n"]),
            *(_figure(metric.get(name), scale) for name, scale in _SCALES),
            amount(largest["value"], norm, results.manifest.protocol.space)
            if largest and largest["value"] is not None
            else "0",
        )


def _figure(row: Mapping[str, Any] | None, scale: int) -> str:
    """Return `75.0 [74.2, 75.8]`; a dash where there is no finite figure."""
    if row is None or row["value"] is None:
        return "–"
    form = ".1f" if scale == 100 else ".3f"
    text = format(scale * row["value"], form)
    if row["ci_low"] is None or row["ci_high"] is None:
        return text
    return f"{text} [{scale * row['ci_low']:{form}}, {scale * row['ci_high']:{form}}]"
