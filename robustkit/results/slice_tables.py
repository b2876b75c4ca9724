"""Slices as tables, rows of a frame and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..common.figure import Figure
from ..display.format import count, figure_cell, p_value, scaled
from ..display.table import Table
from ..errors import DamagedRecord, ProtocolError, RunError
from ..evaluations.aggregate import Results
from ..evaluations.condition import SINGLES, check_condition, in_means, matches, name_of
from ..evaluations.metrics import Metric
from ..evaluations.records import CheckpointRecords
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..tasks.labelled.tables import stacked_grids
from ..tasks.task import task_of
from .slices import (
    FEWEST,
    MOST,
    TEXTS,
    Columns,
    Slice,
    WeakSlice,
    WeakSlices,
    divisible,
    searched,
    shown_conditions,
    slices_of,
)

_WEAK = 10  # weak slices of a condition in a table
_ROWS = 200  # slices of a condition in a table of those that are asked for


def slice_sections(results: Results, by: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the section of the page shows: the weak slices, or how they were searched, and the tables by the
    columns that are asked for, `camera,daylight` meaning both together. Raises RunError as `slices_of`."""
    asked = by_tables(results.run, by)
    tables = weak_tables(results)
    grids = [*stacked_grids(tables), *(grid for some in asked for grid in stacked_grids(some))]
    return {"grids": grids, "remark": "" if tables else search_note(results)}


def weak_tables(results: Results) -> list[Table]:
    """Return the table of each checkpoint's weak slices, at most ten for a condition; none where nothing was found."""
    manifest, note = results.manifest, search_note(results)
    headline = task_of(manifest).headline_metric
    headings = ("slice", "condition", "n", headline.column, "all others %", "points [95 %]", "p")
    rows = dict[str, list[tuple[str, ...]]]()
    for each in results.gathered(WeakSlices).searches:
        called = name_of(each.condition, "table", manifest)
        for weak in each.weak[:_WEAK]:
            rows.setdefault(each.checkpoint, []).append(_weak_cells(weak, called))
    title = "slices that do significantly worse"
    return [
        Table(f"{name}: {title}", headings, tuple(cells), (), note, name, ("all others %",))
        for name, cells in rows.items()
    ]


def _weak_cells(weak: WeakSlice, called: str) -> tuple[str, ...]:
    figure, gap = weak.slice.figure, Figure(weak.difference, weak.slice.figure.n, weak.low, weak.high)
    return (
        *(weak.slice.name, called, count(figure.n), figure_cell(figure), scaled(weak.rest.value)),
        *(figure_cell(gap), p_value(weak.p_value)),
    )


def search_note(results: Results) -> str:
    """Return how weak slices were searched, how many were found, and the control; empty where none was tested."""
    searches, manifest = results.gathered(WeakSlices).searches, results.manifest
    if not searches:
        return ""
    columns = dict.fromkeys(name for each in searches for names, _ in each.search.names for name in names)
    tested = sorted({len(each.search.names) for each in searches})
    counts = [len(each.weak) for each in searches]
    count = " to ".join(dict.fromkeys(map(str, (tested[0], tested[-1]))))
    parts = [
        f"Tested for each checkpoint and condition: {count} slices by {', '.join(columns)}, singly and in pairs, of "
        f"at least {FEWEST} samples each.",
        "" if any(counts) else "None is significantly worse than all other samples.",
        f"At most {_WEAK} of a condition are shown." if max(counts) > _WEAK else "",
    ]
    if any(counts):
        parts.append(
            "p: Fisher's exact test, one-sided, against all other samples; two values together must also be worse than "
            "the rest of each of the two. Holm's correction is over the slices of a checkpoint and condition; "
            "intervals are of each slice alone. A value that its pairs in the table explain is left out."
        )
    hits, made = (sorted({each.shuffled[place] for each in searches}) for place in (0, 1))
    often = f"{' to '.join(dict.fromkeys(map(str, (hits[0], hits[-1]))))} of {' or '.join(map(str, made))}"
    parts.append(f"Control: with right and wrong shuffled among samples, a slice is found in {often} shuffles.")
    for name in dict.fromkeys(name for each in searches for name in each.search.unsearched):
        parts.append(f"{name} has more than {TEXTS} distinct values and was not searched.")
    for name in dict.fromkeys(name for each in searches for name in each.search.idle):
        parts.append(
            f"{name} has no slice to test: each value has fewer than {FEWEST} samples, or all samples have one."
        )
    if (single := sum(in_means(text) for text in manifest.conditions)) > SINGLES:
        parts.append(f"The {single} single corruptions were not searched.")
    if left := max(each.search.left_out for each in searches):
        parts.append(f"{left} columns or pairs of columns are left out, as there are more than {MOST} slices.")
    return " ".join(filter(None, parts))


def by_tables(run: RunFolder, by: Sequence[str]) -> list[list[Table]]:
    """Return for each entry of `by` the tables of all checkpoints. Raises RunError as `slices_of`."""
    if not by:
        return []
    columns, sides = Columns(run), [CheckpointRecords(run, name) for name in run.manifest.names]
    return [[_by_table(side, columns, columns_asked(each)) for side in sides] for each in by]


def columns_asked(by: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns that `camera,daylight` or a list names. Raises ProtocolError for none, or one twice."""
    names = tuple(name.strip() for name in (by.split(",") if isinstance(by, str) else by))
    if not all(names) or len({*names}) < len(names):
        raise ProtocolError(f"by {','.join(names)!r}: expected columns such as camera or camera,daylight, each once")
    return names


def _by_table(side: CheckpointRecords, columns: Columns, names: tuple[str, ...]) -> Table:
    task, rows, more = task_of(side.manifest), list[tuple[str, ...]](), 0
    metrics = [metric for metric in task.metrics if metric.name in task.paired]
    for condition in shown_conditions(side.conditions):
        headline = slices_of(side, columns, condition, task.headline, names)
        figures = [_figures_of(side, columns, condition, metric, names, len(headline)) for metric in metrics]
        called, more = name_of(condition, "table", side.manifest), max(more, len(headline) - _ROWS)
        for place, each in enumerate(headline[:_ROWS]):
            cells = (metric.cell(own[place]) for metric, own in zip(metrics, figures, strict=True))
            rows.append((called, *each.values, count(each.figure.n), *cells))
    headings = ("condition", *names, "n", *(metric.column for metric in metrics))
    title = f"{side.checkpoint}: slices by {', '.join(names)}"
    note = f"The first {_ROWS} slices of each condition; {more} more in Run.slices." if more > 0 else ""
    return Table(title, headings, tuple(rows), (), note, side.checkpoint, ("NLL", "top-5 %"))


def _figures_of(
    side: CheckpointRecords, columns: Columns, condition: str, metric: Metric, names: Sequence[str], count: int
) -> Sequence[Figure | None]:
    """Return the figures of all slices; None for each where records have none, or they have no meaning."""
    try:
        return [each.figure for each in slices_of(side, columns, condition, metric.name, names)]
    except DamagedRecord:
        raise
    except RunError:
        return [None] * count


def frame_rows(results: Results, by: Sequence[str], metric: str, condition: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each slice, or without `by` for each weak slice. condition: as rules name it; empty for all of
    the table of results. Raises RunError as `slices_of`, and where no condition of the run is meant."""
    run = results.run
    if not divisible(task := task_of(results.manifest)):
        raise RunError(f"{run.path}: samples of {task.name} are not right or wrong, so they have no slices")
    pattern = check_condition(condition) if condition else None

    def meant(text: str) -> bool:
        return pattern is None or matches(pattern, text)

    if not any(map(meant, results.manifest.conditions)):
        raise RunError(f"{run.path} has no {condition}; it has {', '.join(results.manifest.conditions)}")
    searches = results.gathered(WeakSlices).searches
    columns, pairs = Columns(run), {(each.checkpoint, each.condition) for each in searches}
    if not by:
        sides = [CheckpointRecords(run, name) for name in results.manifest.names] if pattern is not None else []
        more = [(side, text) for side in sides for text in filter(meant, side.conditions)]
        searches = [*searches, *(searched(s, columns, t) for s, t in more if (s.checkpoint, t) not in pairs)]
        for search in searches:
            for weak in search.weak if meant(search.condition) else ():
                yield _weak_row(search.checkpoint, search.condition, weak)
        return
    for name in results.manifest.names:
        side = CheckpointRecords(run, name)
        for text in filter(meant, shown_conditions(side.conditions) if pattern is None else side.conditions):
            for each in slices_of(side, columns, text, metric, by):
                yield {**_named(name, text, each), "metric": metric, **_row(each.figure)}


def _row(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "n": figure.n, "ci_low": figure.low, "ci_high": figure.high}


def _named(checkpoint: str, condition: str, part: Slice) -> dict[str, Any]:
    return {"checkpoint": checkpoint, "condition": condition, "slice": part.name}


def _weak_row(checkpoint: str, condition: str, weak: WeakSlice) -> dict[str, Any]:
    more = {"rest": weak.rest.value, "difference": weak.difference, "difference_low": weak.low}
    more |= {"difference_high": weak.high, "p_holm": weak.p_value}
    return _named(checkpoint, condition, weak.slice) | _row(weak.slice.figure) | more


def weakest_slice(results: Results) -> tuple[str, str, WeakSlice, int] | None:
    """Return checkpoint and condition of the weak slice with the smallest p-value, the slice, and how many others there
    are; of clean images where they have one. None where none was found."""
    candidates = [(each, weak) for each in results.gathered(WeakSlices).searches for weak in each.weak]
    if not candidates:
        return None
    search, weak = min(candidates, key=lambda pair: (pair[0].condition != CLEAN.text, pair[1].p_value))
    return search.checkpoint, search.condition, weak, len(candidates) - 1
