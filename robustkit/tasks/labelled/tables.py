"""The table of results of classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...display.table import TextTable
from ...display.text import amount
from ...evaluations.kinds import words_of
from ...evaluations.results import Results

HEADINGS = ("checkpoint", "attention", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row of texts under `HEADINGS` per checkpoint and condition of this table; flags come last, joined.

    A dash stands where samples left an attack at their first wrong prediction, so that the figure would mean nothing.
    """
    protocol = results.manifest.protocol
    words = {"none": "no", "other": "other"}  # shown in place of a formula where there is none
    attention = {c.name: words.get(c.attention, c.attention) for c in results.manifest.checkpoints}
    cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in results:
        if not words_of(row["condition"]).in_results:
            continue
        cells.setdefault((row["checkpoint"], row["condition"]), {})[row["metric"]] = row
    rows: list[tuple[str, ...]] = []
    for (checkpoint, condition), metric in cells.items():
        top1 = metric["top1"]
        norm = results.manifest.norm(condition)
        largest = metric.get(f"{norm}_max")
        rows.append(
            (
                checkpoint,
                attention[checkpoint],
                condition,
                str(top1["n"]),
                f"{100 * top1['value']:.1f} [{100 * top1['ci_low']:.1f}, {100 * top1['ci_high']:.1f}]",
                f"{100 * metric['top5']['value']:.1f}" if "top5" in metric else "–",
                _figure(metric.get("nll"), 1, ".3f"),
                _figure(metric.get("ece"), 100, ".1f"),
                amount(largest["value"], norm, protocol.space) if largest else "0",
                "; ".join(top1["flags"]),
            )
        )
    return rows


def _figure(row: Mapping[str, Any] | None, scale: float, form: str) -> str:
    """Return a value as text; a dash where there is none, nan where it is not finite (None in summary.json)."""
    if row is None:
        return "–"
    return "nan" if row["value"] is None else format(scale * row["value"], form)


def terminal_table(results: Results) -> TextTable:
    """Return the results for a terminal, each checkpoint above its conditions; the caller prints the flags under it."""
    protocol = results.manifest.protocol
    rows = table_rows(results)
    shown = tuple((row[0], *row[2:9]) for row in rows)
    marked = any(row[9] for row in rows)
    headings = (HEADINGS[0], *HEADINGS[2:], *(["flag"] if marked else []))
    if marked:
        shown = tuple((*cells, "⚑" if row[9] else "") for cells, row in zip(shown, rows, strict=True))
    title = f"protocol {protocol.tag}: {protocol.summary}"
    table = TextTable(title, headings, shown, spare=(HEADINGS[5], HEADINGS[7], HEADINGS[8], "n"))
    return table.said_once("n").under_heads([f"{row[0]}, {row[1]} attention" for row in rows])
