"""Results as tables: of a run, of its weak slices, of compared checkpoints, and next to published ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..common.figure import Figure
from ..display.format import MISSING, Cell, counted, figure_cell, number, p_value, scaled
from ..display.table import Table, side_by_side
from ..errors import DamagedRecord, ProtocolError, RunError
from ..evaluations.aggregate import Results
from ..evaluations.condition import SHORT, SINGLES, BriefRow, check_condition, in_means, matches, name_of
from ..evaluations.family import by_family
from ..evaluations.metrics import Metric, is_finite
from ..evaluations.records import CheckpointRecords
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..tasks import metric_of
from ..tasks.labelled.flips import flip_table, flipped_grid
from ..tasks.labelled.parity import parity_tables
from ..tasks.labelled.tables import stacked_grids
from ..tasks.task import task_of
from .comparison import HEADINGS, Comparison, ComparisonRow, own_flags, pair_tests
from .methods import MethodResults, by_method
from .pairing import Side
from .published import Published
from .slices import (
    FEWEST,
    MOST,
    TEXTS,
    Columns,
    Slice,
    WeakSlice,
    WeakSlices,
    divisible,
    not_searched,
    searched,
    shown_conditions,
    slices_of,
)
from .survey import brief_rows

LEGEND = "[low, high]: 95 % interval. –: not evaluated."


def short_tables(results: Results) -> list[Table]:
    """Return what a terminal shows of a run: the short table; of one checkpoint, first all of its task's table."""
    manifest = results.manifest
    rows = list(_rows(results))
    if len(manifest.checkpoints) > 1:
        view, basis = by_method(results), ""
        if isinstance(view, MethodResults) and not view.compared.single:
            basis = f", means over {view.compared.trainings}"
        title = f"protocol {manifest.protocol.tag}, {samples_text(results)}{basis}"
        return [*([replace(_table(view, rows), title=title, note=LEGEND)] if rows else []), *parity_tables(results)]
    first = [*task_of(manifest).terminal(results)][:1]
    headline = task_of(manifest).headline_metric.heading
    others = [row for row in rows if row.section != headline]
    return [*first, *([_table(results, others)] if others else [])]


def samples_text(results: Results) -> str:
    """Return how many samples a run has, and in how many groups; with the design effect of what it is about."""
    manifest, headline = results.manifest, task_of(results.manifest).headline
    text = f"{manifest.data.n} {manifest.protocol.samples.many}"
    effects = [row.effect for row in results if row.metric == headline and math.isfinite(row.effect)]
    if groups := max((row.groups for row in results), default=0):
        text += f" in {groups} groups"
    ends = dict.fromkeys(number(end, 1) for end in (min(effects), max(effects))) if effects else ()
    return text + (f", design effect {' to '.join(ends)}" if effects else "")


def _rows(results: Results) -> Iterator[BriefRow]:
    """Yield the rows for which some checkpoint has a number, those of a section together."""
    rows = brief_rows(results, *SHORT)
    for section in dict.fromkeys(row.section for row in rows):
        mine = [row for row in rows if row.section == section]
        labels = [row.label for row in mine]
        for row in mine:  # a label that two share would say nothing
            alike = not row.label.startswith(" ") and labels.count(row.label) > 1
            yield row._replace(label=row.condition) if alike else row


def _table(results: Results, rows: list[BriefRow]) -> Table:
    names = results.names
    cells = tuple(
        (row.section, row.label, *(_cell(results.cells[name], row.condition, row.metric) for name in names))
        for row in rows
    )
    return Table("", ("", "", *names), cells).under_heads([row.section for row in rows])


def _cell(cells: Mapping[tuple[str, str], Figure], condition: str, metric: Metric) -> Cell:
    """Return `93.3 [84.1, 97.4]`; a dash where there is no row."""
    return replace(metric, bare=False).cell(cells.get((condition, metric.name)))


SMALL = 0.1  # where all figures of a row are below, three decimals would not tell them apart


@dataclass(frozen=True)
class Among:
    """A figure of a checkpoint, and the published levels by attention, with standard deviations over trainings."""

    row: Figure
    levels: dict[str, float]
    spreads: dict[str, float] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        return metric_of(self.row.metric)

    @property
    def places(self) -> tuple[int, int] | None:
        """The best and the worst place that the interval allows, from 1 for the best, if one is better. Levels with a
        spread are those of another training, within two standard deviations; others are taken as exact."""
        better, value = self.metric.better, self.row.value
        if not better or not self.row.is_finite:
            return None
        ends = sorted(better * (end if math.isfinite(end) else value) for end in (self.row.low, self.row.high))
        levels = [(better * level, 2 * self.spreads.get(name, 0.0)) for name, level in self.levels.items()]
        best = 1 + sum(level - reach > ends[1] for level, reach in levels)
        return best, 1 + sum(level + reach > ends[0] for level, reach in levels)


def found_among(side: Side, reference: Published) -> list[Among]:
    """Return the figures of a checkpoint that a reference has for some attention, in the order of its results."""
    resolved = reference.resolved()
    places = []
    for row in side.results:
        condition, metric = row.condition, row.metric
        levels, spreads = (
            {name: value for name in resolved.figures if (value := take(name, condition, metric)) is not None}
            for take in (resolved.figure, resolved.spread)
        )
        if levels:
            places.append(Among(row, levels, spreads))
    return places


def sides_of(runs: Sequence[RunFolder], checkpoints: Collection[str] = ()) -> list[Side]:
    pairs = ((run, name) for run in runs for name in run.manifest.names)
    return [Side(run, name) for run, name in pairs if not checkpoints or name in checkpoints]


def among_tables(sides: Sequence[Side], reference: Published) -> list[Table]:
    note = (
        f"{reference.name}: {reference.summary}, on {reference.data} ({reference.source}). Place: the ranks that the "
        "interval allows (1 is best); it says little about other images."
    )
    tables = []
    for side in sides:
        among = found_among(side, reference)
        names = list(dict.fromkeys(name for each in among for name in each.levels))
        rows = tuple(_among_cells(each, names, side.manifest) for each in among)
        placed = [(each.row.condition, each.row.metric, each.row.n) for each in among]
        subject = f"{side.checkpoint} ({side.described.attention}) on {side.manifest.data.name}"
        title = f"{subject}, among {reference.name} on {reference.data}"
        spread = any(each.spreads for each in among)
        more = " ±: standard deviation over trainings; the place allows for two of them." if spread else ""
        if rows:
            headings = ("condition", "figure", "n", "here [95 %]", *names, "place")
            flags = tuple(map(str, reference.findings(side.manifest, placed)))
            tables.append(Table(title, headings, rows, flags, note + more, side.checkpoint, ("n",)))
    return tables


def _among_cells(each: Among, names: Sequence[str], manifest: Manifest) -> tuple[str, ...]:
    row, metric = each.row, each.metric
    figures = [row.value, *each.levels.values()]
    small = all(abs(value) < SMALL for value in figures if is_finite(value))  # such as distances in linf
    cell = partial(scaled, scale=metric.scale, digits=5 if small else 3)
    here = figure_cell(row, metric.scale, digits=5 if small else 3) if row.is_finite else MISSING
    places = " to ".join(map(str, sorted(set(each.places or ()))))
    place = Cell(f"{places} of {len(each.levels) + 1}" if places else "")
    spreads = {name: f" ± {cell(value)}" for name, value in each.spreads.items()}
    levels = (cell(each.levels.get(name)).followed_by(spreads.get(name, "")) for name in names)
    label = name_of(row.condition, "table", manifest)
    return (label, metric.label, counted(row), here, *levels, place)


def report_tables(run: RunFolder, results: Sequence[Figure]) -> list[Table]:
    """Return tables of the checkpoints of one run against its first, for its report; results: rows of the summary."""
    if len(run.manifest.checkpoints) < 2 or not results:
        return []
    return tables(pair_tests(Results.of(run, results)).comparison)


def tables(comparison: Comparison) -> list[Table]:
    """Return a table per pair. Flags of the results that are compared stand under the last one."""
    result = []
    for place, pair in enumerate(comparison.pairs, 1):
        of_results = own_flags(comparison.pairs) if place == len(comparison.pairs) else []
        flags = (*map(str, pair.findings), *pair.left_out, *of_results)
        title = "; ".join([f"{pair.names[1]} against {pair.names[0]}, paired by {comparison.sample}", *pair.changed])
        published = comparison.reference is not None
        headings = (*HEADINGS, *(["published, not paired"] if published else []))
        rows = tuple(_cells(row, published) for row in pair.rows)
        note, spare = _note(comparison), ("p", "n", "p (Holm)")
        result.append(Table(title, headings, rows, flags, note, pair.names[1], spare))
    return result


def compared_tables(comparison: Comparison) -> list[Table]:
    """Return the same, then a table per pair of predictions that changed, where records have predictions."""
    return [*tables(comparison), *_flip_tables(comparison)]


def _flip_tables(comparison: Comparison) -> list[Table]:
    return [flip_table(pair.second, pair.names, pair.flips) for pair in comparison.pairs if pair.flips]


def compared_grids(run: RunFolder, results: Sequence[Figure]) -> list[Table]:
    """Return, for the page of a run, the differences from its first checkpoint, the predictions that changed, and which
    samples those are that were right before."""
    if not (differences := report_tables(run, results)):
        return []
    comparison, first = pair_tests(Results.of(run, results)).comparison, run.manifest.names[0]
    by_pair, lists = _flip_tables(comparison), (flipped_grid(pair.second, pair.flips) for pair in comparison.pairs)
    title, note = f"Predictions that changed from {first}", by_pair[0].note if by_pair else ""
    return [*comparison_grids(differences, first), *side_by_side(title, by_pair, note=note), *filter(None, lists)]


def _note(comparison: Comparison) -> str:
    rows = comparison.rows
    notes = ["The difference is value minus baseline, in points where they are in %."]
    words: dict[str, dict[str, None]] = {}
    for row in rows:
        words.setdefault(row.difference.test, {})[row.shown[0].word] = None
    if words:
        *each, (last, _) = words.items()
        tests = "".join(f"{test} for {', '.join(of)}, " for test, of in each) + (f"else {last}" if each else last)
        others = f", and {len(comparison.others)} other tests of the run's page" if comparison.others else ""
        notes.append(f"Intervals and p are per row; p is from {tests}.")
        notes.append(f"Holm's p corrects for all {len(rows)} rows{others}.")
    sides = dict.fromkeys(side for pair in comparison.pairs for side in (pair.first, pair.second))
    in_rows = dict(by_family(row.condition for row in rows))
    notes += filter(None, dict.fromkeys(family.words.claims.compared for family, texts in in_rows.items() if texts))
    records = by_family(condition for side in sides for condition in side.conditions)
    if rows and (absent := [family.name for family, texts in records if texts and not in_rows[family]]):
        notes.append(f"Not compared here: {', '.join(absent)}. Their figures are in each report and summary.json.")
    if (reference := comparison.reference) is not None:
        what = "their difference, or the figure where both have the same attention"
        notes.append(f"Published: {what}; {reference.summary}, on {reference.data} ({reference.source}).")
    return " ".join(notes)


def _cells(row: ComparisonRow, with_published: bool) -> tuple[str, ...]:
    metric, difference = row.shown
    cell = partial(scaled, scale=metric.scale)
    gap = Figure(difference.value, difference.n, difference.ci_low, difference.ci_high)
    label = name_of(row.condition, "table", row.second.manifest)
    cells = (label, metric.label, counted(difference), cell(difference.first), cell(difference.second))
    same = row.first.described.attention == row.second.described.attention
    value = row.published
    if value is not None and metric.is_complement:
        value = 1 - value if same else -value
    published = MISSING if value is None else cell(value, sign="" if same else "+")
    figures = (figure_cell(gap, metric.scale, sign="+"), p_value(difference.p_value), p_value(row.p_value), row.verdict)
    return (*cells, *figures, *([published] if with_published else []))


def comparison_grids(tables: Sequence[Table], baseline: str) -> list[Table]:
    """Return all differences from the baseline (its name) side by side: the significant ones, then others, folded."""
    if not tables:
        return []
    flags = tuple(dict.fromkeys(flag for table in tables for flag in table.flags))
    pairs = [{row[:2]: dict(zip(table.headings, row, strict=True)) for row in table.rows} for table in tables]
    order = dict.fromkeys(key for rows in pairs for key in rows)
    headings = ("condition", "figure", baseline, *(table.checkpoint for table in tables))
    tell, cannot = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for key in order:
        matches = [rows.get(key, {}) for rows in pairs]
        base = next(row["baseline"] for row in matches if row)
        pairs_of_key = ((row.get("difference [95 %]", MISSING), row.get("at 0.05", "")) for row in matches)
        cells = [
            cell.followed_by(f" {word}") if word and isinstance(cell, Cell) else cell for cell, word in pairs_of_key
        ]
        (tell if any(row and row["at 0.05"] for row in matches) else cannot).append((*key, base, *cells))
    of = f"of {len(order)} figures"
    grids = [
        Table(f"Significantly different from {baseline}: {len(tell)} {of}", headings, tuple(tell), keys=2),
        Table(f"Inconclusive: {len(cannot)} {of}", headings, tuple(cannot), keys=2, folded=True),
    ]
    grids = [grid for grid in grids if grid.rows]
    parts = [replace(table, keys=2, flags=()) for table in tables]
    title = f"Differences from {baseline}, with p-values"
    grids += (replace(grid, folded=True) for grid in side_by_side(title, parts))
    every = " ".join(f"{table.title}." for table in tables)
    return [replace(grids[0], note=f"{every} {tables[0].note}", flags=flags), *grids[1:]]


_WEAK = 10  # weak slices of a condition in a table
_ROWS = 200  # slices of a condition in a table of those that are asked for


def slice_sections(results: Results, by: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the section of the page shows: the weak slices, or how they were searched, and the tables by the
    columns that are asked for, `camera,daylight` meaning both together. Raises RunError as `slices_of`."""
    asked = by_tables(results.run, by)
    tables = weak_tables(results)
    several = len(results.names) > 1
    grids = [grid for some in (tables, *asked) for grid in stacked_grids(some, several)]
    return {"grids": grids, "remark": "" if tables else search_note(results)}


def weak_tables(results: Results) -> list[Table]:
    """Return the table of each checkpoint's weak slices, at most ten for a condition; none where nothing was found."""
    manifest, note = results.manifest, search_note(results)
    headings = ("slice", "condition", "n", task_of(manifest).judged.column, "all others %", "points [95 %]", "p")
    rows = dict[str, list[tuple[str, ...]]]()
    for each in results.gathered(WeakSlices).searches:
        label = name_of(each.condition, "table", manifest)
        for weak in each.weak[:_WEAK]:
            rows.setdefault(each.checkpoint, []).append(_weak_cells(weak, label))
    title = "slices that do significantly worse"
    return [
        Table(f"{name}: {title}", headings, tuple(cells), (), note, name, ("all others %",))
        for name, cells in rows.items()
    ]


def _weak_cells(weak: WeakSlice, label: str) -> tuple[str, ...]:
    figure, gap = weak.slice.figure, Figure(weak.difference, weak.slice.figure.n, weak.low, weak.high)
    return (
        *(weak.slice.name, label, counted(figure), figure_cell(figure), scaled(weak.rest.value)),
        *(figure_cell(gap), p_value(weak.p_value)),
    )


def search_note(results: Results) -> str:
    """Return how weak slices were searched, how many were found, and the control; empty where none was tested."""
    gatherer, manifest = results.gathered(WeakSlices), results.manifest
    if (groups := gatherer.sample_groups) is not None:
        return f"Weak slices are not searched: {not_searched(groups.count)}."
    if not (searches := gatherer.searches):
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
        parts.append(f"{name} has no slice to test: each value has fewer than {FEWEST} samples, or all have one.")
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
        headline = slices_of(side, columns, condition, task.judged.name, names)
        figures = [_figures_of(side, columns, condition, metric, names, len(headline)) for metric in metrics]
        label, more = name_of(condition, "table", side.manifest), max(more, len(headline) - _ROWS)
        for place, each in enumerate(headline[:_ROWS]):
            cells = (metric.cell(own[place]) for metric, own in zip(metrics, figures, strict=True))
            rows.append((label, *each.values, counted(each.figure), *cells))
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
    run, metric = results.run, metric or task_of(results.manifest).judged.name
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
