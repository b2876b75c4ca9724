"""Show results of segmenters: tables, model card, grids, IoU of each class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...display.grid import Grid, Part, grid_of, side_by_side, together
from ...display.svg import Figure, Point, dots, draw, labels, legend, listed, panels, percent, plain, style
from ...display.table import CardPart, HeatTable, TextTable
from ...display.text import code, pixels
from ...evaluations.aggregate import Results
from ...evaluations.corruptions.tables import retention_tables
from ...evaluations.metrics import Cells, SummaryRow, finite, interval_cell, loss_cell, percent_cell
from ...evaluations.registry import is_over_groups, kind_of, words_of
from ...protocol.condition import CLEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

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
    by_checkpoint: dict[str, dict[tuple[str, str], SummaryRow]] = {}
    for row in results:
        by_checkpoint.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
    by_checkpoint = {
        name: cells for name, cells in by_checkpoint.items() if any(metric == "miou" for _, metric in cells)
    }
    if not by_checkpoint:
        return []
    tables = [_conditions(by_checkpoint, manifest)]
    for checkpoint, cells in by_checkpoint.items():
        tables += retention_tables(checkpoint, cells)
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


def card_parts(checkpoint: str, results: Results) -> Iterator[CardPart]:
    """Yield the tables of a checkpoint, except those of many classes, which are in results.json."""
    tables = scene_tables(results, results.manifest)
    if not tables:
        return
    first, *others = tables
    parts: list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]] = [
        ("", first.headings[2:], [(code(row[2]), *row[3:]) for row in first.rows])
    ]
    for table in others:
        title = table.title.removeprefix(f"{checkpoint}: ")
        if len(table.rows) <= LONGEST:
            parts.append((f"{title[:1].upper()}{title[1:]}", table.headings, table.rows))
    yield CardPart("Segmentation", "In brackets 95 % intervals, n is the number of images.", parts)


_MIOU = HEADINGS[4]


def scene_grids(tables: Sequence[HeatTable]) -> tuple[list[Grid], list[Grid]]:
    """Return the results under each condition, all checkpoints side by side, and the tables about parts of them."""
    of_all = [table for table in tables if table.headings[0] == HEADINGS[0]]
    conditions = [grid for table in of_all for grid in _grids_of_conditions(table)]
    return conditions, together(table for table in tables if table.headings[0] != HEADINGS[0])


def _grids_of_conditions(table: HeatTable) -> list[Grid]:
    by_checkpoint: dict[str, list[tuple[str, ...]]] = {}
    for row in table.rows:
        by_checkpoint.setdefault(row[0], []).append(row[2:])
    parts = [Part(name, table.headings[2:], tuple(rows), _shares(rows)) for name, rows in by_checkpoint.items()]
    return side_by_side("Clean and attacked", parts, headline=_MIOU) or [grid_of(table)]


def _shares(rows: Sequence[tuple[str, ...]]) -> dict[tuple[int, int], float]:
    """Return the mIoU of each row as a fraction."""
    figures = {(place, 2): row[2].split()[0] for place, row in enumerate(rows) if row[2][:1].isdigit()}
    return {place: share for place, text in figures.items() if math.isfinite(share := float(text) / 100)}


MOST = 24
"""Classes that are drawn."""
_TOGETHER = 4  # checkpoints in a figure


@dataclass(frozen=True)
class Classes:
    """The IoU of each class of a checkpoint: clean, under the worst attack, and as means over corruptions."""

    checkpoint: str
    points: Mapping[str, Mapping[str, Point]]


def class_ious(results: Sequence[Mapping[str, Any]], claims: Mapping[str, Any]) -> list[Classes]:
    """Return the classes of every checkpoint, under `in-c` if it was evaluated whole, else under each set that was."""
    by_checkpoint: dict[str, dict[str, dict[str, Point]]] = {}
    miou: dict[str, dict[str, float]] = {}
    for row in results:
        if row["value"] is None:
            continue
        if row["metric"] == "miou":
            miou.setdefault(row["checkpoint"], {})[row["condition"]] = float(row["value"])
        elif row["metric"].startswith("iou("):
            by_condition = by_checkpoint.setdefault(row["checkpoint"], {}).setdefault(row["condition"], {})
            by_condition[row["metric"][4:-1]] = Point.of(row)
    return [
        Classes(
            checkpoint,
            {
                condition: by_condition[condition]
                for condition in _shown(by_condition, miou.get(checkpoint, {}), claims)
            },
        )
        for checkpoint, by_condition in by_checkpoint.items()
    ]


def _shown(by_condition: Mapping[str, Any], miou: Mapping[str, float], claims: Mapping[str, Any]) -> list[str]:
    attacked = [
        condition
        for condition in by_condition
        if condition in claims and words_of(condition).starts_from(condition) == CLEAN.text
        if math.isfinite(miou.get(condition, math.nan))
    ]
    sets = [condition for condition in by_condition if is_over_groups(condition)]
    whole = [condition for condition in sets if kind_of(condition) == words_of(condition).benchmark]
    chosen = [*([CLEAN.text] if CLEAN.text in by_condition else []), *(whole or sets)]
    return [*chosen, *([min(attacked, key=lambda condition: miou[condition])] if attacked else [])]


def class_figures(entries: Sequence[Classes]) -> Iterator[Figure]:
    """Yield figures of a few checkpoints each, one panel per checkpoint; classes by the first one's clean IoU."""
    if not entries:
        return
    conditions = list(dict.fromkeys(condition for entry in entries for condition in entry.points))
    every = list(dict.fromkeys(name for entry in entries for points in entry.points.values() for name in points))
    first = entries[0].points.get(conditions[0], {})
    order = sorted(every, key=lambda name: first[name].value if name in first else math.inf)
    chosen = order[:MOST]
    classes, keys = labels(chosen, 20), labels(conditions, 44)
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    for start in range(0, len(entries), _TOGETHER):
        group = entries[start : start + _TOGETHER]
        names = labels((entry.checkpoint for entry in group), 22)

        def paint(canvas: Canvas, group: Sequence[Classes] = group, names: Mapping[str, str] = names) -> None:
            grid = panels(canvas, len(group), sharex=True, sharey=True)
            for axes, entry in zip(grid, group, strict=True):
                for condition, points in entry.points.items():
                    rows = [row for row, name in enumerate(chosen) if name in points]
                    bare = [Point(points[chosen[row]].value, math.nan, math.nan, points[chosen[row]].n) for row in rows]
                    dots(axes, rows, bare, looks[condition], across=True)
                axes.set_title(names[entry.checkpoint])
                axes.set_xlim(-3, 103)
            for axes in grid[-2:]:
                axes.set_xlabel("IoU in %")
            for axes in grid[::2]:
                axes.set_yticks(range(len(chosen)), [classes[name] for name in chosen])
                axes.set_ylim(len(chosen) - 0.5, -0.5)
            legend(canvas, {keys[name]: look for name, look in looks.items()}, lines=False)

        several = f", checkpoints {start + 1} to {start + len(group)}" if len(entries) > _TOGETHER else ""
        lowest = f" The {MOST} of {len(every)} classes that are lowest." if len(every) > MOST else ""
        yield draw(
            "segmentation",
            f"IoU by class{several}",
            20 + 18 * -(-len(keys) // 2) + (58 + 17 * len(chosen)) * -(-len(group) // 2),
            paint,
            alt=f"IoU by class. {listed([_in_words(entry, names[entry.checkpoint]) for entry in group])}.",
            caption=f"Classes by the IoU of {plain(entries[0].checkpoint, 40)}, {plain(conditions[0], 60)}, lowest "
            f"first.{lowest} Intervals and numbers are in the tables.",
            name=" ".join(entry.checkpoint for entry in group),
        )


def _in_words(entry: Classes, name: str) -> str:
    """Return the lowest classes of each condition in words."""
    sentences = []
    for condition, points in entry.points.items():
        low = sorted((point.value, class_name) for class_name, point in points.items())[:2]
        said = " and ".join(f"{plain(class_name, 40)} with {percent(value)}" for value, class_name in low)
        sentences.append(f"{plain(condition, 60)} lowest {said}")
    return f"{name}: {', '.join(sentences)}"
