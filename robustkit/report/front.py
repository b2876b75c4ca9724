"""The first screen of the page: verdict, chips, flags, a table of evaluations by checkpoint, and one figure."""

from __future__ import annotations

import datetime
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
from ..evaluations.condition import FOLDERS, PUBLISHED_SETS, kind_of, name_of, words_of
from ..evaluations.presenting import Gap, Raised, findings_of, gaps_of, not_evaluated, note_lines
from ..evaluations.setup_findings import setups_of
from ..protocol.card import SampleWords, presets_of
from ..protocol.condition import split_list
from ..results.comparison import Asked, ComparisonRow, Tested, asked_results
from ..results.methods import MethodResults, by_method, tests_of
from ..results.summary_text import Sentence, findings
from ..results.tables import samples_text
from ..tasks import metric_of
from ..tasks.task import task_of
from .pages import gate_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MOST = 8  # checkpoints in one figure
_HEIGHT = 24  # units of a row; more where many checkpoints share it


def front_figure(rows: Sequence[Asked], results: Results, looks: Mapping[str, Style]) -> Plot | None:
    """Return a row of dots for each condition with the task's metric, or an error that is its complement."""
    headline = task_of(results.manifest).headline_metric
    entries = [entry for entry in rows if entry.metric == headline.name or metric_of(entry.metric).complement]
    if len(entries) < 2:  # maps alone: the score that most rows have
        often = Counter(entry.metric for entry in rows if metric_of(entry.metric).scale == 100)
        ((metric, _),) = often.most_common(1) or [("", 0)]
        entries = [entry for entry in rows if entry.metric == metric]
        headline = metric_of(metric) if metric else headline
    if headline.scale != 100:  # the axis is of shares
        return None
    names = results.names[:_MOST]
    unknown, rows_of = Figure(math.nan, 0), results.cells
    points = {name: [_shown(rows_of[name].get(each.key), each.metric) or unknown for each in entries] for name in names}
    if len(entries) < 2 or not any(math.isfinite(point.value) for some in points.values() for point in some):
        return None
    short = brief_labels(names, 24)
    brief = [", ".join(entry.called.split(", ")[:2]) for entry in entries]  # without what distinguishes none of them
    labels = [entry.called if brief.count(text) > 1 else text for entry, text in zip(entries, brief, strict=True)]
    titles = [shorten_name(text, 30) for text in labels]
    word = headline.noun or headline.word
    heading = capital(word)
    height = max(_HEIGHT, 7 * len(names) + 8)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1, columns=1)
        for place, name in enumerate(names):
            shift = -series_shift(place, len(names), 7, height - 6)
            dots(axes, range(len(entries)), points[name], looks[name], shift=shift, across=True)
            for training in _trainings(results, name, entries):
                dots(axes, range(len(entries)), training, looks[name], shift=shift, across=True, size=2.5)
        axes.set(xlim=(0, 100), ylim=(len(entries) - 0.4, -0.6))
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.set_xlabel(f"{word} in %")
        axes.set_yticks(range(len(entries)), titles)
        axes.grid(axis="y", visible=False)
        if len(names) > 1:
            legend(canvas, {short[name]: looks[name] for name in names}, lines=False)

    values = {name: [percent(point.value) for point in points[name]] for name in names}
    spoken = {name: ", ".join(map(" ".join, zip(titles, values[name], strict=True))) for name in names}
    descriptions = [f"{short[name]}: {spoken[name]}" for name in names]
    every = len(results.names)
    more = f" The first {_MOST} of {every} {results.kind}." if every > _MOST else ""
    small = (
        "; small marks: single trainings" if isinstance(results, MethodResults) and not results.compared.single else ""
    )
    return Plot(
        "front",
        f"{heading} by condition",
        70 + 18 * math.ceil(len(names) / 2) * (len(names) > 1) + height * len(entries),
        paint,
        alt=f"{word} in percent. {list_some(descriptions)}.",
        caption=f"{heading} with 95 % intervals{small}.{more}{_beaten(results, entries, titles, short)}",
    )


def _beaten(results: Results, entries: Sequence[Asked], titles: Sequence[str], short: Mapping[str, str]) -> str:
    """Return which maps score lower than a control."""
    texts = []
    for entry, title in zip(entries, titles, strict=True):
        leads = {name: results.cells[name].get((entry.condition, f"{entry.metric}_over_control")) for name in short}
        whose = [short[name] for name, lead in leads.items() if lead is not None and lead.value < 0]
        texts += [title if len(whose) == len(short) else f"{title} of {' and '.join(whose)}"] if whose else []
    return f" Lower than the best control, which does not look at the image: {'; '.join(texts)}." if texts else ""


def _trainings(results: Results, name: str, drawn: Sequence[Asked]) -> Iterator[list[Figure]]:
    """Yield the points of each training of a method, without intervals; none of a checkpoint."""
    if isinstance(results, MethodResults):
        method = next(each for each in results.compared.methods if each.name == name)
        for side in method.sides if len(method.sides) > 1 else ():
            rows = {row.key: row for row in side.results}
            points = (rows.get(entry.key) for entry in drawn)
            complete = (_shown(point, entry.metric) for entry, point in zip(drawn, points, strict=True))
            yield [Figure(math.nan if point is None else point.value, 0) for point in complete]


def _shown(row: Figure | None, metric: str) -> Figure | None:
    """Return the figure as the page shows it: of an error, the accuracy."""
    return row.complement if row is not None and metric_of(metric).complement else row


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
    lead: how far a map is above the best control."""

    value: str
    interval: str = ""
    mark: str = ""
    lead: str = ""


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
    """A figure at a glance. value: of the best and the worst. detail: whose, or an interval. section: what it opens."""

    label: str
    value: str
    detail: str = ""
    section: str = "results"


@dataclass(frozen=True)
class FrontPage:
    """What the template shows. scope: by heading. setups: checkpoints, and their set-up in words. stops: what the
    samples are called of a run that looks at them until rules are decided; None of others."""

    scope: Sequence[tuple[str, str]]
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
        columns = [FrontColumn(short[each.name], each.name, each.attention_words) for each in manifest.checkpoints]
    groups, several = dict[str, list[FrontLine]](), Counter(entry.called for entry in rows)
    for entry in rows:
        more = f": {metric_of(entry.metric).shown.word}" if several[entry.called] > 1 else ""
        groups.setdefault(entry.family, []).append(_line(f"{entry.called}{more}", entry, results, tests))
    raised = [*findings_of(original), *(Raised("", "", each) for each in not_evaluated(results.run))]
    remarks = note_lines(original)
    return FrontPage(
        [*_scope(rows, results, raised, len(remarks))],
        findings(original),
        list(_chips(rows, results, tests, short)),
        columns,
        list(groups.values()),
        _note(rows, tests, results),
        front_figure(rows, results, looks),
        raised,
        remarks,
        setups_of(results.run),
        gaps_of(results.run),
        manifest.protocol.samples if manifest.is_sequential else None,
        len(columns) <= WIDE,
    )


def _chips(rows: Sequence[Asked], results: Results, tests: Tested, short: Mapping[str, str]) -> Iterator[Chip]:
    """Yield a chip for each area of the first page: best against worst, of the condition that differs most, or the
    first, which is the strongest attack, of one checkpoint."""
    names, areas = results.names, dict[str, list[Asked]]()
    many = results.manifest.protocol.samples.many
    for entry in rows:
        areas.setdefault(words_of(entry.condition).claims.area.format(many=many), []).append(entry)
    for entries in areas.values():
        finite = {each: some for each in entries if (some := _finite(each, results, names))}
        if not finite:
            continue

        def differs(entry: Asked, finite: Mapping[Asked, list[Figure]] = finite) -> tuple[bool, float]:
            values = [row.value for row in finite[entry]]
            return any(row.significant for row in tests.of(entry.key)), max(values) - min(values)

        def lowest(entry: Asked, finite: Mapping[Asked, list[Figure]] = finite) -> float:
            return -(metric_of(entry.metric).shown.better or 1) * finite[entry][0].value

        entry = max(finite, key=differs if len(names) > 1 else lowest)
        metric = metric_of(entry.metric).shown
        ends = sorted(finite[entry], key=lambda row: (metric.better or 1) * -row.value)
        best, worst = (end if metric.better else finite[entry][0] for end in (ends[0], ends[-1]))
        unit = " %" if metric.scale == 100 else ""
        texts = [str(scaled(row.value, metric.scale)) for row in finite[entry]]
        cells = [texts[finite[entry].index(row)] for row in (best, worst)]
        label = ", ".join(entry.called.split(", ")[:2])
        value = " vs ".join(dict.fromkeys(cells)) + unit
        if len(names) == 1:
            detail = interval(best.low, best.high, metric.scale)
        elif len(finite[entry]) == 1:
            detail = f"{short[best.checkpoint]} only"
        elif cells[0] == cells[1]:
            detail = "equal"
        else:
            pair = {best.checkpoint, worst.checkpoint}
            of_pair = [row for row in tests.of(entry.key) if {row.first.checkpoint, row.second.checkpoint} == pair]
            chance = p_equals(of_pair[0].p_value) if any(row.significant for row in of_pair) else "inconclusive"
            last = [short[row.checkpoint] for row, cell in zip(finite[entry], texts, strict=True) if cell == cells[1]]
            who = last[0] if len(last) == 1 else f"{len(last)} others"
            detail = f"{short[best.checkpoint]} vs {who}, {chance}"
        yield Chip(f"{label}: {metric.word}", value, detail, entry.family)


def _finite(entry: Asked, results: Results, names: Sequence[str]) -> list[Figure]:
    """Return the figures of a row, as the page shows them."""
    rows = (results.cells[name].get(entry.key) for name in names)
    return [_shown(row, entry.metric) or row for row in rows if row is not None and row.is_finite]


def _scope(rows: Sequence[Asked], results: Results, raised: Sequence[Raised], notes: int) -> Iterator[tuple[str, str]]:
    """Yield what the page is about: of when, by what, of which data; what was evaluated and what was not; what a policy
    said, and how many findings there are."""
    manifest = results.manifest
    total_text = f" (of {total:,})" if isinstance(total := manifest.data.total, int) else ""
    started = datetime.datetime.fromisoformat(manifest.started)
    yield "date", f"{started.day} {started:%b %Y}, robustkit {manifest.robustkit}"
    origin = "in memory" if manifest.data.layout == "memory" else f"of {manifest.data.name}"
    yield "data", f"{samples_text(results)} {origin}{total_text}"
    yield "protocol", f"{manifest.protocol.name}@{manifest.protocol.version}"
    yield "evaluated", ", ".join(dict.fromkeys(entry.called.split(", ")[0] for entry in rows)) or "nothing"
    if lacking := _lacking(results):
        yield "not evaluated", ", ".join(lacking)
    yield "gate", gate_text(results.run)
    counts = Counter(each.finding.severity for each in raised)
    counts["note"] += notes
    words = [f"{count} {name}{'s' * (count > 1)}" for name in ("doubt", "limit", "note") if (count := counts[name])]
    yield "findings", ", ".join(words) or "none"


def _lacking(results: Results) -> Iterator[str]:
    """Return what presets of the task evaluate and the run does not: attacks, sets of corruptions, maps."""
    manifest, presets = results.manifest, presets_of(results.manifest.protocol.task).values()
    attack_names = {name_of(text, "table", manifest).split(", ")[0] for text in manifest.conditions}
    names = dict.fromkeys(name for each in presets for name in split_list(str(each.get("attacks", ""))))
    lacking = dict.fromkeys(name_of(kind_of(name), "table", manifest) for name in names)
    yield from (
        f"standard {name}" if f"modified {name}" in attack_names else name
        for name in lacking
        if name not in attack_names
    )
    have = {row.condition for row in results}
    rooms = {FOLDERS.get(kind_of(text)) for text in have}
    for name in dict.fromkeys(name for each in presets for name in split_list(str(each.get("corruptions", "")))):
        if name in PUBLISHED_SETS and not any(kind_of(text) == name and "severity=" not in text for text in have):
            yield PUBLISHED_SETS[name][1] + " in full" * ("corruptions" in rooms)
    if any("cams" in each for each in presets) and "maps" not in rooms:
        yield "attribution maps"


def _line(title: str, entry: Asked, results: Results, tests: Tested) -> FrontLine:
    metric, names = metric_of(entry.metric).shown, results.names
    rows = [_shown(results.cells[name].get(entry.key), entry.metric) for name in names]
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
    ahead = scaled(lead.value, scale, sign="+") if lead is not None and lead.is_finite else ""
    return FrontCell(scaled(row.value, scale), interval(row.low, row.high, scale), mark, ahead)


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
        difference = finite[0].shown[1]
        gap = Figure(difference.value, difference.n, difference.ci_low, difference.ci_high)
        text = figure_cell(gap, scale, sign="+")
        return p_equals(finite[0].p_value) if beyond else "inconclusive", text
    if not beyond:
        return "inconclusive", ""
    smallest = min(row.p_value for row in beyond)
    return p_equals(smallest), f"{len(beyond)} of {len(finite)} pair{'' if len(finite) == 1 else 's'} differ"


def _note(rows: Sequence[Asked], tests: Tested, results: Results) -> str:
    note, words = "In brackets: 95 % intervals.", results.manifest.protocol.samples
    note += " ↓: lower is better." * any(metric_of(entry.metric).shown.better == -1 for entry in rows)
    if any(
        (entry.condition, f"{entry.metric}_over_control") in results.cells[name]
        for entry in rows
        for name in results.names
    ):
        note += f" Lead: how far a map is above the best control, which ignores the {words.one}."
    if len(results.names) < 2:
        return note
    if isinstance(results, MethodResults) and not results.compared.single:
        note += f" Figures are means over trainings; intervals and tests are for other {words.many} and trainings."
    one = results.kind.removesuffix("s")
    best = f"Best: significantly better than another {one}, worse than none. Worst: the reverse."
    if len(results.names) == 2:
        note += f" Differences: {results.names[1]} minus {results.names[0]}."
    marks = best if tests.all_pairs else f"Better, worse: significantly so than the first {one}."
    chance = (
        f"Significant: p < 0.05 in tests paired by {words.one}, Holm-corrected over all {len(tests.rows)} tests of "
        "the run; intervals are not corrected, so that one without 0 may be inconclusive."
    )
    gaps = f"metrics that are not per-{words.one} means, and conditions missing for a {one}"
    untested = f" Not tested: {gaps}." if any(not tests.of(entry.key) for entry in rows) else ""
    return f"{note} {marks} {chance}{untested}"
