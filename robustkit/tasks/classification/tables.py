"""The table of results of classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...display.numbers import pixels
from ...evaluations.kinds import words_of
from ...evaluations.results import Results

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("checkpoint", "attention", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row of texts under `HEADINGS` per checkpoint and condition of this table; flags come last, joined.

    A dash stands where samples left an attack at their first wrong prediction, so that the figure would mean nothing.
    """
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
                pixels(largest["value"], norm) if largest else "0",
                "; ".join(top1["flags"]),
            )
        )
    return rows


def _figure(row: Mapping[str, Any] | None, scale: float, form: str) -> str:
    """Return a value as text; a dash where there is none, nan where it is not finite (None in summary.json)."""
    if row is None:
        return "–"
    return "nan" if row["value"] is None else format(scale * row["value"], form)


def terminal_table(results: Results) -> Table:
    """Return the results as a rich table, a section per checkpoint; the caller prints the flags under it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    manifest = results.manifest
    title = f"protocol {manifest.protocol.tag}: {manifest.protocol.summary}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (HEADINGS[0], *HEADINGS[2:], ""):
        words = heading in ("checkpoint", "condition")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    rows = table_rows(results)
    for index, row in enumerate(rows):
        first = index == 0 or rows[index - 1][0] != row[0]
        last = index + 1 == len(rows) or rows[index + 1][0] != row[0]
        second = index > 0 and not first and (index == 1 or rows[index - 2][0] != row[0])
        name = row[0] if first else f"  {row[1]} attention" if second else ""
        cells = [f"{name}\n  {row[1]} attention" if first and last else name, *row[2:9], "⚑" if row[9] else ""]
        table.add_row(*map(Text, cells), end_section=last)
    return table
