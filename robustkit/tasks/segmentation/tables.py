"""Show results of segmenters: tables, model card, grids, IoU of each class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...common.figure import Figure
from ...display.format import count, percent, scaled
from ...display.svg import Plot, dots, labels, legend, list_some, panels, shorten_name, style
from ...display.table import CardPart, Table
from ...display.text import capital, code
from ...evaluations.attacks import starts_from
from ...evaluations.condition import is_over_groups, kind_of, words_of
from ...evaluations.corruptions import BENCHMARK
from ...evaluations.corruptions.tables import retention_tables
from ...evaluations.metrics import Cells, finite_or_none
from ...protocol.condition import CLEAN
from ..condition_table import ConditionTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


LONGEST = 40  # the longest table of classes that a terminal shows, in rows


def scene_tables(results: Sequence[Figure]) -> list[Table]:
    """Return the tables about corruptions and about classes; none where no condition has an mIoU."""
    tables, by_checkpoint = list[Table](), dict[str, dict[tuple[str, str], Figure]]()
    for row in results:
        by_checkpoint.setdefault(row.checkpoint, {})[row.condition, row.metric] = row
    for checkpoint, cells in by_checkpoint.items():
        if any(metric == "miou" for _, metric in cells):
            tables += [*retention_tables(checkpoint, cells), *_classes(checkpoint, cells)]
    return tables


def _classes(checkpoint: str, cells: Cells) -> Iterator[Table]:
    """Yield the IoU of each class under everything but single corruptions; images: those that have it when clean."""
    texts = dict.fromkeys(text for text, _ in cells)
    columns = [text for text in texts if words_of(text).in_results or is_over_groups(text)]
    if not columns:
        return
    names = dict.fromkeys(metric for condition, metric in cells if condition in columns and metric.startswith("iou("))
    rows = []
    for metric in names:
        fractions = [finite_or_none(cells, condition, metric) for condition in columns]
        first = cells.get((columns[0], metric))
        rows.append((metric[4:-1], count(0 if first is None else first.n), *map(scaled, fractions)))
    title = f"{checkpoint}: IoU in % by class; images: with the class in prediction or truth, {columns[0]}"
    yield Table(title, ("class", "images", *columns), tuple(rows), checkpoint=checkpoint, shaded=tuple(columns))


def terminal_scenes(tables: Sequence[Table]) -> Iterator[Table]:
    """Yield the tables for a terminal; of a long one about classes only where to find it."""
    for table in tables:
        if table.headings[0] == "class" and len(table.rows) > LONGEST:
            yield Table(f"{table.title}: {len(table.rows)} classes; see the report", (), ())
        else:
            yield replace(table, spare=("NLL", "pixel acc. %", "mean acc. %"))


def card_parts(checkpoint: str, table: ConditionTable, others: Sequence[Table]) -> Iterator[CardPart]:
    """Yield the tables of a checkpoint, except those of many classes, which are in results.json."""
    if not table.figures and not others:
        return
    cells = list(map(table.cells, table.figures))
    rows = [tuple((row | {"condition": code(row["condition"])}).values()) for row in cells]
    parts = [Table("", tuple(cells[0]), tuple(rows))] if cells else []
    for other in others:
        title = other.title.removeprefix(f"{checkpoint}: ")
        if len(other.rows) <= LONGEST:
            parts.append(replace(other, title=capital(title)))
    yield CardPart("Segmentation", "95 % intervals in brackets; n is the number of images.", parts)


MOST = 24  # classes that are drawn
_TOGETHER = 4  # checkpoints in a figure


Points = Mapping[str, Mapping[str, Figure]]  # the IoU of each class of a checkpoint, by condition


def class_ious(results: Sequence[Figure], claims: Mapping[str, Any]) -> dict[str, Points]:
    """Return the IoU of the classes of every checkpoint: clean, under the worst attack, and under `in-c` if it was
    evaluated whole, else under each set that was.
    """
    by_checkpoint: dict[str, dict[str, dict[str, Figure]]] = {}
    miou: dict[str, dict[str, float]] = {}
    for row in results:
        if not row.is_finite:
            continue
        if row.metric == "miou":
            miou.setdefault(row.checkpoint, {})[row.condition] = row.value
        elif row.metric.startswith("iou("):
            by_condition = by_checkpoint.setdefault(row.checkpoint, {}).setdefault(row.condition, {})
            by_condition[row.metric[4:-1]] = row
    return {
        checkpoint: {condition: points[condition] for condition in _drawn(points, miou.get(checkpoint, {}), claims)}
        for checkpoint, points in by_checkpoint.items()
    }


def _drawn(by_condition: Mapping[str, Any], miou: Mapping[str, float], claims: Mapping[str, Any]) -> list[str]:
    attacks = (text for text in by_condition if text in claims and starts_from(text) == CLEAN.text)
    attacked = [text for text in attacks if math.isfinite(miou.get(text, math.nan))]
    sets = [condition for condition in by_condition if is_over_groups(condition)]
    whole = [condition for condition in sets if kind_of(condition) == BENCHMARK]
    chosen = [*([CLEAN.text] if CLEAN.text in by_condition else []), *(whole or sets)]
    return [*chosen, *([min(attacked, key=lambda condition: miou[condition])] if attacked else [])]


def class_figures(entries: Mapping[str, Points]) -> Iterator[Plot]:
    """Yield figures of a few checkpoints each, one panel per checkpoint; classes by the first one's clean IoU."""
    if not entries:
        return
    conditions = list(dict.fromkeys(condition for entry in entries.values() for condition in entry))
    every = list(dict.fromkeys(name for entry in entries.values() for points in entry.values() for name in points))
    checkpoints = list(entries)
    first = entries[checkpoints[0]].get(conditions[0], {})
    order = sorted(every, key=lambda name: first[name].value if name in first else math.inf)
    chosen = order[:MOST]
    classes, keys = labels(chosen, 20), labels(conditions, 44)
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    for start in range(0, len(entries), _TOGETHER):
        group = checkpoints[start : start + _TOGETHER]
        names = labels(group, 22)

        def paint(canvas: Canvas, group: Sequence[str] = group, names: Mapping[str, str] = names) -> None:
            grid = panels(canvas, len(group), sharex=True, sharey=True)
            for axes, checkpoint in zip(grid, group, strict=True):
                for condition, points in entries[checkpoint].items():
                    rows = [row for row, name in enumerate(chosen) if name in points]
                    bare = [Figure(points[chosen[row]].value, points[chosen[row]].n) for row in rows]
                    dots(axes, rows, bare, looks[condition], across=True)
                axes.set_title(names[checkpoint])
                axes.set_xlim(-3, 103)
            for axes in grid[-2:]:
                axes.set_xlabel("IoU in %")
            for axes in grid[::2]:
                axes.set_yticks(range(len(chosen)), [classes[name] for name in chosen])
                axes.set_ylim(len(chosen) - 0.5, -0.5)
            legend(canvas, {keys[name]: look for name, look in looks.items()}, lines=False)

        several = f", checkpoints {start + 1} to {start + len(group)}" if len(entries) > _TOGETHER else ""
        lowest = f" The {MOST} of {len(every)} classes that are lowest." if len(every) > MOST else ""
        yield Plot(
            "segmentation",
            f"IoU by class{several}",
            20 + 18 * -(-len(keys) // 2) + (58 + 17 * len(chosen)) * -(-len(group) // 2),
            paint,
            alt=f"IoU by class. {list_some([_in_words(entries[name], names[name]) for name in group])}.",
            caption=f"Classes by the IoU of {shorten_name(checkpoints[0], 40)}, "
            f"{shorten_name(conditions[0], 60)}, lowest first.{lowest} Intervals and numbers are in the tables.",
            name=" ".join(group),
        )


def _in_words(entry: Points, name: str) -> str:
    sentences = []
    for condition, points in entry.items():
        low = sorted((point.value, class_name) for class_name, point in points.items())[:2]
        classes = " and ".join(f"{shorten_name(class_name, 40)} with {percent(value)}" for value, class_name in low)
        sentences.append(f"{shorten_name(condition, 60)} lowest {classes}")
    return f"{name}: {', '.join(sentences)}"
