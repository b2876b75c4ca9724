"""Show the segmentation results of a run as tables: clean and attacked, corruptions with retention of mIoU, classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...display.table import HeatTable, TextTable
from ...display.text import pixels
from ...evaluations.cells import Cells, Row, finite, interval_cell, loss_cell, percent_cell
from ...evaluations.family import families_of
from ...evaluations.kinds import is_over_groups, words_of

if TYPE_CHECKING:
    from ...runs.manifest import Manifest


HEADINGS = (
    *("checkpoint", "attention", "condition", "n", "mIoU % [95 %]"),
    *("pixel acc. % [95 %]", "mean acc. % [95 %]", "NLL", "largest |δ|"),
)
WORST = "worst-case mIoU % [95 %]"
"""The heading of a further column after mIoU, where an attack makes several runs."""
LONGEST = 40
"""The longest table of classes that a terminal shows, in rows."""


def scene_tables(results: Sequence[Mapping[str, Any]], manifest: Manifest) -> list[HeatTable]:
    """Return the tables of all checkpoints, from the rows of the summary; none where no condition has an mIoU."""
    by_checkpoint: dict[str, dict[tuple[str, str], Row]] = {}
    for row in results:
        by_checkpoint.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
    by_checkpoint = {
        name: cells for name, cells in by_checkpoint.items() if any(metric == "miou" for _, metric in cells)
    }
    if not by_checkpoint:
        return []
    tables = [_conditions(by_checkpoint, manifest)]
    for checkpoint, cells in by_checkpoint.items():
        for family in families_of(manifest, results):
            tables += family.heat_tables(checkpoint, cells)
        tables += _classes(checkpoint, cells)
    return tables


def _conditions(by_checkpoint: Mapping[str, Cells], manifest: Manifest) -> HeatTable:
    words = {"none": "no", "other": "other"}  # shown in place of a formula where there is none
    attention = {entry.name: words.get(entry.attention, entry.attention) for entry in manifest.checkpoints}
    rows, ends = [], []
    chosen = any((text, "miou_worst") in cells for cells in by_checkpoint.values() for text, _ in cells)
    headings = (*HEADINGS[:5], *[WORST] * chosen, *HEADINGS[5:])
    for checkpoint, cells in by_checkpoint.items():
        plain = {key: row for key, row in cells.items() if words_of(key[0]).in_results}
        for condition in dict.fromkeys(condition for condition, _ in plain):
            norm = manifest.norm(condition)
            largest = finite(cells, condition, f"{norm}_max")
            accuracies = (interval_cell(cells.get((condition, f"{which}_accuracy"))) for which in ("pixel", "mean"))
            miou = cells[condition, "miou"]
            rows.append(
                (
                    *(checkpoint, attention[checkpoint], condition, str(miou["n"]), interval_cell(miou)),
                    *[interval_cell(cells.get((condition, "miou_worst")))] * chosen,
                    *accuracies,
                    loss_cell(cells.get((condition, "nll"))),
                    pixels(largest, norm) if largest else "0",
                )
            )
        ends.append(len(rows) - 1)
    title = f"protocol {manifest.protocol.tag}: {manifest.protocol.summary}"
    return HeatTable(title, headings, tuple(rows), ends=tuple(ends))


def _classes(checkpoint: str, cells: Cells) -> Iterator[HeatTable]:
    """Yield the IoU of each class under everything but single corruptions; images: those that have it when clean."""
    shown = [
        condition
        for condition in dict.fromkeys(condition for condition, _ in cells)
        if words_of(condition).in_results or is_over_groups(condition)
    ]
    if not shown:
        return
    names = dict.fromkeys(metric for condition, metric in cells if condition in shown and metric.startswith("iou("))
    rows, values = [], []
    for metric in names:
        fractions = [finite(cells, condition, metric) for condition in shown]
        first = cells.get((shown[0], metric))
        rows.append((metric[4:-1], "0" if first is None else str(first["n"]), *map(percent_cell, fractions)))
        values.append((None, *fractions))
    title = f"{checkpoint}: IoU in % by class; images: with the class in prediction or truth, {shown[0]}"
    yield HeatTable(title, ("class", "images", *shown), tuple(rows), tuple(values), checkpoint=checkpoint)


def terminal_scenes(tables: Sequence[HeatTable]) -> Iterator[TextTable]:
    """Yield the tables for a terminal; of a long one about classes only where to find it."""
    for table in tables:
        if table.headings[0] == "class" and len(table.rows) > LONGEST:
            yield TextTable(f"{table.title}: {len(table.rows)} classes; see the report", (), ())
        elif table.headings[0] == "checkpoint":
            shown = TextTable(table.title, table.headings, table.rows, spare=(*HEADINGS[6:4:-1], *HEADINGS[:6:-1]))
            heads = [f"{row[0]}, {row[1]} attention" for row in table.rows]
            yield shown.said_once("n").under_heads(heads, 2)
        else:
            yield TextTable(table.title, table.headings, table.rows, spare=("NLL", "pixel acc. %", "mean acc. %"))
