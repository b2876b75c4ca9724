"""The first screen of the page: verdict, chips, flags, a table of evaluations by checkpoint, and one figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..common.figure import Figure
from ..display.format import figure_cell, interval, p_equals, percent, scaled
from ..display.svg import Plot, Style, brief_labels, dots, legend, list_some, panels, series_shift, shorten_name, style
from ..display.text import capital
from ..evaluations.aggregate import Results
from ..evaluations.condition import is_attack, kind_of, words_of
from ..evaluations.presenting import Gap, Raised, findings_of, gaps_of, not_evaluated, note_lines
from ..evaluations.setup_findings import setups_of
from ..protocol.card import SampleWords
from ..results.comparison import Asked, ComparisonRow, Tested, asked_results
from ..results.methods import MethodResults, by_method, tests_of
from ..results.summary_text import Sentence, findings, listed, standings
from ..tasks import metric_of
from ..tasks.task import task_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MOST = 8  # checkpoints in one figure
_HEIGHT = 24  # units of a row; more where many checkpoints share it


def front_figure(rows: Sequence[Asked], results: Results, looks: Mapping[str, Style]) -> Plot | None:
    """Return a row of dots for each condition with the task's metric, or an error that is its complement."""
    headline = task_of(results.manifest).headline_metric
    drawn = [entry for entry in rows if entry.metric == headline.name or _is_error(entry.metric)]
    if headline.scale != 100:  # the axis is of shares
        return None
    names = results.names[:_MOST]
    points = {name: [_point(results, name, entry) for entry in drawn] for name in names}
    if len(drawn) < 2 or not any(math.isfinite(point.value) for some in points.values() for point in some):
        return None
    short = brief_labels(names, 24)
    brief = [", ".join(entry.called.split(", ")[:2]) for entry in drawn]  # without what distinguishes none of them
    called = [entry.called if brief.count(text) > 1 else text for entry, text in zip(drawn, brief, strict=True)]
    titles = [shorten_name(text, 30) for text in called]
    word = headline.noun or headline.word
    heading = capital(word)
    height = max(_HEIGHT, 7 * len(names) + 8)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1, columns=1)
        for place, name in enumerate(names):
            shift = -series_shift(place, len(names), 7, height - 6)
            dots(axes, range(len(drawn)), points[name], looks[name], shift=shift, across=True)
            for training in _trainings(results, name, drawn):
                dots(axes, range(len(drawn)), training, looks[name], shift=shift, across=True, size=2.5)
        axes.set(xlim=(0, 100), ylim=(len(drawn) - 0.4, -0.6))
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.set_xlabel(f"{word} in %")
        axes.set_yticks(range(len(drawn)), titles)
        axes.grid(axis="y", visible=False)
        if len(names) > 1:
            legend(canvas, {short[name]: looks[name] for name in names}, lines=False)

    values = {name: [percent(point.value) for point in points[name]] for name in names}
    spoken = {name: ", ".join(map(" ".join, zip(titles, values[name], strict=True))) for name in names}
    descriptions = [f"{short[name]}: {spoken[name]}" for name in names]
    every = len(results.names)
    more = f" The first {_MOST} of {every} {results.kind}." if every > _MOST else ""
    error = "; under corruption, one minus the mean error" if any(_is_error(entry.metric) for entry in drawn) else ""
    error += "; small: each training" if isinstance(results, MethodResults) and not results.compared.single else ""
    return Plot(
        "front",
        f"{heading} by condition",
        70 + 18 * math.ceil(len(names) / 2) * (len(names) > 1) + height * len(drawn),
        paint,
        alt=f"{word} in percent. {list_some(descriptions)}.",
        caption=f"{heading} with 95 % intervals{error}.{more}",
    )


def _is_error(name: str) -> bool:
    metric = metric_of(name)
    return metric.better < 0 and metric.share


def _trainings(results: Results, name: str, drawn: Sequence[Asked]) -> Iterator[list[Figure]]:
    """Yield the points of each training of a method, without intervals; none of a checkpoint."""
    if isinstance(results, MethodResults):
        method = next(each for each in results.compared.methods if each.name == name)
        for side in method.sides if len(method.sides) > 1 else ():
            rows = {row.key: row for row in side.results}
            points = (rows.get(entry.key) for entry in drawn)
            complete = (
                point.complement if point and _is_error(entry.metric) else point
                for entry, point in zip(drawn, points, strict=True)
            )
            yield [Figure(math.nan if point is None else point.value, 0) for point in complete]


def _point(results: Results, name: str, entry: Asked) -> Figure:
    row = results.cells[name].get(entry.key)
    if row is None:
        return Figure(math.nan, 0)
    return row.complement if _is_error(entry.metric) else row


WIDE = 4  # the number of checkpoints up to which a narrow screen shows the table as cards


@dataclass(frozen=True)
class FrontColumn:
    """A checkpoint. label: its name, shortened; name: in full."""

    label: str
    name: str
    attention: str


@dataclass(frozen=True)
class FrontCell:
    """A figure with its interval. mark: best or worst of all, or than the first; empty where that is not significant.
    control: the best control's figure, of a map."""

    value: str
    interval: str = ""
    mark: str = ""
    control: str = ""


@dataclass(frozen=True)
class FrontLine:
    """A row of the table. lower: whether lower is better. n: samples, where not all. verdict: the p-value of a
    significant difference, `inconclusive` or `not tested`; detail: its size."""

    title: str
    unit: str
    lower: bool
    n: str
    cells: tuple[FrontCell, ...]
    verdict: str
    detail: str


@dataclass(frozen=True)
class Chip:
    """A figure at a glance. value: of all checkpoints. detail: the best one, or an interval. section: what it opens."""

    label: str
    value: str
    detail: str = ""
    section: str = "results"


@dataclass(frozen=True)
class FrontPage:
    """What the template shows. setups: checkpoints, and their set-up in words. stops: what the samples are called of a
    run that looks at them until rules are decided; None of others."""

    findings: Sequence[Sentence]
    chips: Sequence[Chip]
    columns: Sequence[FrontColumn]
    groups: Sequence[Sequence[FrontLine]]
    note: str
    figure: Plot | None
    flags: Sequence[Raised]
    remarks: Sequence[str]
    setups: Sequence[tuple[str, str]]
    gaps: Sequence[Gap]
    stops: SampleWords | None
    cards: bool

    @property
    def missing(self) -> int:
        return sum(gap.missing for gap in self.gaps)


def front_of(results: Results, looks: Mapping[str, Style]) -> FrontPage:
    manifest, original, results = results.manifest, results, by_method(results)
    rows, tests, short = asked_results(results), tests_of(results), brief_labels(results.names, 28)
    if isinstance(results, MethodResults):
        columns = [FrontColumn(short[each.name], each.name, each.trainings) for each in results.compared.methods]
        looks = {name: style(place) for place, name in enumerate(results.names)}
    else:
        words = {"none": "no attention", "other": "another attention"}
        pairs = ((each, words.get(each.attention, f"{each.attention} attention")) for each in manifest.checkpoints)
        columns = [FrontColumn(short[each.name], each.name, attention) for each, attention in pairs]
    groups, several = dict[str, list[FrontLine]](), Counter(entry.called for entry in rows)
    for entry in rows:
        more = f": {metric_of(entry.metric).word}" if several[entry.called] > 1 else ""
        groups.setdefault(entry.family, []).append(_line(f"{entry.called}{more}", entry, results, tests))
    return FrontPage(
        findings(original),
        list(_chips(rows, results, tests, short)),
        columns,
        list(groups.values()),
        _note(rows, tests, results),
        front_figure(rows, results, looks),
        [*findings_of(original), *(Raised("", "", each) for each in not_evaluated(results.run))],
        note_lines(original),
        setups_of(results.run),
        gaps_of(results.run),
        manifest.protocol.samples if manifest.is_sequential else None,
        len(columns) <= WIDE,
    )


def _chips(rows: Sequence[Asked], results: Results, tests: Tested, short: Mapping[str, str]) -> Iterator[Chip]:
    """Yield a chip for each area of the first page: of its first row, which is the strongest attack of several."""
    names, many = results.names, results.manifest.protocol.samples.many
    best = {each.area: each for each in standings(results, tests)} if tests.all_pairs else {}
    more = next((each.more for each in findings(results) if each.more), "")
    detail = f"{more} more would probably settle the closest undecided comparison" if more else ""
    yield Chip(many, f"{results.manifest.data.n:,}".replace(",", "\u202f"), detail.lower(), section="reproduce")
    areas = dict[str, list[Asked]]()
    for entry in rows:
        areas.setdefault(words_of(entry.condition).claims.area.format(many=many), []).append(entry)
    for area, (entry, *others) in areas.items():
        metric = metric_of(entry.metric)
        finite = [row for name in names if (row := results.cells[name].get(entry.key)) and row.is_finite]
        if not finite:
            continue
        ends = [scaled(end(row.value for row in finite), metric.scale) for end in (min, max)]
        unit = " %" if metric.scale == 100 else ""
        detail, standing = _cell(finite[0], metric.scale, "").interval, best.get(area)
        if len(finite) == 1 < len(names):
            detail = f"{short[finite[0].checkpoint]} only"
        elif len(names) > 1:
            leaders = listed([short[name] for name in standing.leaders]) if standing else ""
            detail = f"best: {leaders}" if leaders else "mixed" if standing and standing.mixed else "inconclusive"
            detail = "equal" if detail == "inconclusive" and ends[0] == ends[1] else detail
        several = " (strongest)" if others and is_attack(kind_of(entry.condition)) else ""
        called = ", ".join(entry.called.split(", ")[:2])
        value = " to ".join(dict.fromkeys(ends)) + unit
        yield Chip(f"{called}{several}: {metric.word}", value, detail, entry.family)


def _line(title: str, entry: Asked, results: Results, tests: Tested) -> FrontLine:
    metric, names = metric_of(entry.metric), results.names
    rows = [results.cells[name].get(entry.key) for name in names]
    marks = _marks(names, tests.of(entry.key), tests.all_pairs)
    leads = [results.cells[name].get((entry.condition, f"{entry.metric}_over_control")) for name in names]
    cells = tuple(
        _cell(row, metric.scale, marks.get(name, ""), lead) for name, row, lead in zip(names, rows, leads, strict=True)
    )
    counts = sorted({int(row.n) for row in rows if row is not None})
    n = f"n = {' to '.join(dict.fromkeys(map(str, (counts[0], counts[-1]))))}" if counts else ""
    n = "" if counts == [results.manifest.data.n] else n
    verdict = _verdict(tests.of(entry.key), metric.scale, len(names))
    return FrontLine(title, metric.label or metric.name, metric.better < 0, n, cells, *verdict)


def _cell(row: Figure | None, scale: float, mark: str, lead: Figure | None = None) -> FrontCell:
    """Return the cell of a result. lead: how far it is above the best control, if there are any."""
    if row is None or not row.is_finite:
        return FrontCell("–" if row is None else "nan")
    control = scaled(row.value - lead.value, scale) if lead is not None and lead.is_finite else ""
    return FrontCell(scaled(row.value, scale), interval(row.low, row.high, scale), mark, control)


def _marks(names: Sequence[str], tested: Sequence[ComparisonRow], all_pairs: bool) -> dict[str, str]:
    """Return who is best (no other is significantly better, some are worse) and who is worst; where each was tested
    against the first alone, who is better or worse than that one."""
    above: dict[str, set[str]] = {name: set() for name in names}  # whom each is better than
    below: dict[str, set[str]] = {name: set() for name in names}
    for row in tested:
        if row.verdict in ("better", "worse"):
            ends = row.second.checkpoint, row.first.checkpoint
            high, low = ends if row.verdict == "better" else ends[::-1]
            above[high].add(low)
            below[low].add(high)
    if not all_pairs:
        first = names[0]
        better = {name: "better" for name in names if first in above[name]}
        return better | {name: "worse" for name in names if first in below[name]}
    best = {name: "best" for name in names if above[name] and not below[name]}
    return best | {name: "worst" for name in names if below[name] and not above[name]}


def _verdict(tested: Sequence[ComparisonRow], scale: float, count: int) -> tuple[str, str]:
    """Return what the tests of a row say, and the difference of two checkpoints, or how many pairs differ."""
    if count < 2:
        return "", ""
    finite = [row for row in tested if math.isfinite(row.p_value)]
    if not finite:
        return "not tested", ""
    beyond = [row for row in finite if row.significant]
    if count == 2:
        difference = finite[0].difference
        gap = Figure(difference.value, difference.n, difference.ci_low, difference.ci_high)
        text = figure_cell(gap, scale, sign="+")
        return p_equals(finite[0].p_value) if beyond else "inconclusive", text
    if not beyond:
        return "inconclusive", ""
    smallest = min(row.p_value for row in beyond)
    return p_equals(smallest), f"{len(beyond)} of {len(finite)} pair{'' if len(finite) == 1 else 's'} differ"


def _note(rows: Sequence[Asked], tests: Tested, results: Results) -> str:
    note, called = "In brackets: 95 % intervals. ↓: lower is better.", results.manifest.protocol.samples
    if len(results.names) < 2:
        return note
    if isinstance(results, MethodResults) and not results.compared.single:
        note += f" Figures are means over trainings; intervals and tests are for other {called.many} and trainings."
    one = results.kind.removesuffix("s")
    best = f"Best: no other {one} is significantly better, and at least one is worse. Worst: the reverse."
    marks = best if tests.all_pairs else f"Better, worse: significantly so than the first {one}."
    chance = (
        f"Significant: p < 0.05 in tests paired by {called.one}, Holm-corrected over all {len(tests.rows)} tests of "
        "the run. Inconclusive: the difference may be chance."
    )
    gaps = f"metrics that are not per-{called.one} means, single severities, and conditions missing for a {one}"
    untested = f" Not tested: {gaps}." if any(not tests.of(entry.key) for entry in rows) else ""
    return f"{note} {marks} {chance}{untested}"
