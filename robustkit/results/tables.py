"""Results as tables: of a run, of compared checkpoints, and next to published ones."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from ..common.figure import Figure
from ..display.format import MISSING, Cell, count, figure_cell, p_value, scaled
from ..display.table import Table, side_by_side
from ..evaluations.aggregate import Results
from ..evaluations.condition import SHORT, BriefRow, name_of
from ..evaluations.family import by_family
from ..evaluations.metrics import Metric, is_finite, scored_by
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..tasks.labelled.parity import parity_tables
from ..tasks.registry import metric_of
from ..tasks.task import task_of
from .comparison import Comparison, ComparisonRow, own_flags, pair_tests
from .flips import flip_table, flipped_grid
from .pairing import Side
from .published import Published
from .survey import brief_rows

LEGEND = "[low, high]: 95 % interval. –: not evaluated."


def short_tables(results: Results) -> list[Table]:
    """Return what a terminal shows of a run: the short table; of one checkpoint, first all of its task's table."""
    manifest = results.manifest
    rows = list(_rows(results))
    if len(manifest.checkpoints) > 1:
        title = f"protocol {manifest.protocol.tag}, {manifest.data.n} {manifest.protocol.samples.many}"
        return [*([replace(_table(results, rows), title=title, note=LEGEND)] if rows else []), *parity_tables(results)]
    first = [*task_of(manifest).terminal(results)][:1]
    headline = task_of(manifest).headline_metric.heading
    others = [row for row in rows if row.section != headline]
    return [*first, *([_table(results, others)] if others else [])]


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
    names = results.manifest.names
    cells = tuple(
        (row.section, row.label, *(_cell(results.cells[name], row.condition, row.metric) for name in names))
        for row in rows
    )
    return Table("", ("", "", *names), cells).under_heads([row.section for row in rows])


def _cell(cells: Mapping[tuple[str, str], Figure], condition: str, metric: Metric) -> Cell:
    """Return `93.3 [84.1, 97.4]`; a dash where there is no row."""
    sign = "+" if scored_by(metric.name) else ""
    return figure_cell(cells.get((condition, metric.name)), metric.scale, sign=sign)


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
    called = name_of(row.condition, "table", manifest)
    return (called, metric.label, count(row.n), here, *levels, place)


HEADINGS = ("condition", "figure", "n", "baseline", "value", "difference [95 %]", "p", "p (Holm)", "at 0.05")


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


def flip_grids(run: RunFolder, results: Sequence[Figure]) -> list[Table]:
    """Return, for the page of a run, the predictions that changed from its first checkpoint, and which samples those
    are that were right before."""
    if len(run.manifest.checkpoints) < 2 or not results:
        return []
    comparison = pair_tests(Results.of(run, results)).comparison
    by_pair, lists = flip_tables(comparison), (flipped_grid(pair.second, pair.flips) for pair in comparison.pairs)
    title = f"Predictions that changed from {run.manifest.names[0]}"
    return [*side_by_side(title, by_pair, note=by_pair[0].note if by_pair else ""), *filter(None, lists)]


def flip_tables(comparison: Comparison) -> list[Table]:
    """Return a table for each pair of predictions that changed, where records have predictions."""
    return [flip_table(pair.second, pair.names, pair.flips) for pair in comparison.pairs if pair.flips]


def _note(comparison: Comparison) -> str:
    rows = comparison.rows
    notes = ["The difference is value minus baseline, in points where they are in %."]
    words: dict[str, dict[str, None]] = {}
    for row in rows:
        words.setdefault(row.difference.test, {})[metric_of(row.metric).word] = None
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
    metric, difference = metric_of(row.metric), row.difference
    cell = partial(scaled, scale=metric.scale)
    gap = Figure(difference.value, difference.n, difference.ci_low, difference.ci_high)
    called = name_of(row.condition, "table", row.second.manifest)
    cells = (called, metric.label, count(difference.n), cell(difference.first), cell(difference.second))
    same = row.first.described.attention == row.second.described.attention
    published = MISSING if row.published is None else cell(row.published, sign="" if same else "+")
    figures = (figure_cell(gap, metric.scale, sign="+"), p_value(difference.p_value), p_value(row.p_value), row.verdict)
    return (*cells, *figures, *([published] if with_published else []))


def _with_verdict(difference: str, verdict: str) -> str:
    return difference.followed_by(f" {verdict}" * bool(verdict)) if isinstance(difference, Cell) else difference


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
        cells = (_with_verdict(row["difference [95 %]"], row["at 0.05"]) if row else MISSING for row in matches)
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
