"""The segmentation results of a run as tables: clean and attacked, corruptions with what is left of mIoU, classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...display.numbers import pixels
from ...display.table import HeatTable
from ...evaluations.cells import Cells, Row, finite, flag_lines_of, interval_cell, loss_cell, percent_cell
from ...evaluations.family import families_of
from ...evaluations.kinds import is_over_groups, words_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ...runs.manifest import Manifest


HEADINGS = (
    *("checkpoint", "attention", "condition", "n", "mIoU % [95 %]"),
    *("pixel acc. % [95 %]", "mean acc. % [95 %]", "NLL", "largest |δ|"),
)
LONGEST = 40
"""Rows of a table of classes up to which a terminal shows it."""


def scene_tables(results: Sequence[Mapping[str, Any]], manifest: Manifest) -> list[HeatTable]:
    """Return the tables of all checkpoints, from the rows of the summary; none where no condition has a mIoU."""
    own: dict[str, dict[tuple[str, str], Row]] = {}
    for row in results:
        own.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
    own = {name: found for name, found in own.items() if any(metric == "miou" for _, metric in found)}
    if not own:
        return []
    tables = [_conditions(own, manifest)]
    for checkpoint, found in own.items():
        for family in families_of(manifest):
            tables += family.heat_tables(checkpoint, found)
        tables += _classes(checkpoint, found)
    return tables


def _conditions(own: Mapping[str, Cells], manifest: Manifest) -> HeatTable:
    words = {"none": "no", "other": "other"}  # what stands for a formula where there is none
    attention = {known.name: words.get(known.attention, known.attention) for known in manifest.checkpoints}
    rows, ends, flags = [], [], list[str]()
    for checkpoint, found in own.items():
        plain = {key: row for key, row in found.items() if words_of(key[0]).in_results}
        for condition in dict.fromkeys(condition for condition, _ in plain):
            norm = manifest.norm(condition)
            largest = finite(found, condition, f"{norm}_max")
            accuracies = (interval_cell(found.get((condition, f"{which}_accuracy"))) for which in ("pixel", "mean"))
            miou = found[condition, "miou"]
            rows.append(
                (
                    *(checkpoint, attention[checkpoint], condition, str(miou["n"]), interval_cell(miou)),
                    *accuracies,
                    loss_cell(found.get((condition, "nll"))),
                    pixels(largest, norm) if largest else "0",
                )
            )
        ends.append(len(rows) - 1)
        flags += flag_lines_of(checkpoint, plain)
    title = f"protocol {manifest.protocol.tag}: {manifest.protocol.summary}"
    return HeatTable(title, HEADINGS, tuple(rows), ends=tuple(ends), flags=tuple(flags))


def _classes(checkpoint: str, found: Cells) -> Iterator[HeatTable]:
    """Yield the IoU of each class under everything but single corruptions; images are those that have it when clean."""
    shown = [
        condition
        for condition in dict.fromkeys(condition for condition, _ in found)
        if words_of(condition).in_results or is_over_groups(condition)
    ]
    if not shown:
        return
    names = dict.fromkeys(metric for condition, metric in found if condition in shown and metric.startswith("iou("))
    rows, values = [], []
    for metric in names:
        fractions = [finite(found, condition, metric) for condition in shown]
        first = found.get((shown[0], metric))
        rows.append((metric[4:-1], "0" if first is None else str(first["n"]), *map(percent_cell, fractions)))
        values.append((None, *fractions))
    title = f"{checkpoint}: IoU in % by class; images: with the class in prediction or truth, {shown[0]}"
    yield HeatTable(title, ("class", "images", *shown), tuple(rows), tuple(values))


def terminal_scenes(tables: Sequence[HeatTable]) -> Iterator[Table | Text]:
    """Yield the tables for a terminal, each after its title; of a long one about classes only where it is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for found in tables:
        yield Text(found.title, style="italic")
        if found.headings[0] == "class" and len(found.rows) > LONGEST:
            yield Text(f"  {len(found.rows)} classes; see the report")
            continue
        table = Table(box=box.SIMPLE_HEAD)
        for place, heading in enumerate(found.headings):
            words = place == 0 or heading in HEADINGS[:3]
            fold = heading in ("checkpoint", "condition", "class")
            table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not fold)
        for place, row in enumerate(found.rows):
            table.add_row(*map(Text, row), end_section=place in found.ends)
        yield table
