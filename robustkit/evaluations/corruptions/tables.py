"""Show the corruptions of a run: tables, plots, sentence and front page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ...common.figure import Figure
from ...display.format import MISSING, counted, figure_cell, loss_cell, percent, scaled, share
from ...display.svg import Plot, Style, dots, labels, legend, list_some, panels, series_shift
from ...display.table import Section, Table, side_by_side, with_flags
from ...runs.manifest import Manifest
from ..condition import FIRST, BriefRow, Clause, kind_of, name_of
from ..family import Presenter
from ..metrics import Cells, Metric, finite_or_none, is_whole, metric_named
from ..presenting import finding_lines, left_out_lines, of_family
from . import (
    BENCHMARK,
    METRICS,
    SETS,
    VOCABULARY,
    Corrupted,
    categories,
    category_of,
    corruption_names,
    definition_of,
    in_short,
    parse_corrupted,
    set_of,
    shares_of,
    span,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ..aggregate import Results
    from ..family import Looks


def _worst_mean(cells: Cells, metric: str, sign: int) -> Figure | None:
    """Return the mean over the benchmark's set if there is one, else the highest (sign 1) or lowest mean over a set."""
    means = [row for (condition, name), row in cells.items() if name == metric and _set(condition)]
    return max(means, key=lambda row: (_set(row.condition) == BENCHMARK, sign * row.value), default=None)


def _set(condition: str) -> str:
    """Return the set of corruptions that a mean is over; empty for other conditions."""
    return name if (name := kind_of(condition)) in SETS else ""


def _is_single(condition: str) -> bool:
    """Whether it is one corruption at one severity."""
    return condition.startswith("corruption(") and "severity=" in condition and "+" not in condition


def _at(row: Figure | None, headline: Metric, start: str) -> str:
    if row is None or (part := parse_corrupted(row.condition)) is None:
        return ""
    value = percent(1 - row.value) if headline.binary else f"{headline.word} {percent(row.value)}"
    called = part.label.replace("_", " ")
    return f"{start} {called} at severity {part.severity} with {value}"


ERROR_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "CE %", "NLL", "ECE %")
_LOSSES = (Metric("nll", "NLL", bare=True), Metric("ece", "ECE %", 100, bare=True))


@dataclass(frozen=True)
class CorruptionTables:
    """A checkpoint under one definition. errors: a row for each corruption, of `kinds`; without AlexNet as a yardstick,
    its column is left out. means: over sets."""

    definition: str
    errors: Table
    kinds: tuple[str, ...]
    means: Table

    @property
    def source(self) -> str:
        released = "source=released" in self.definition
        where = "released files" if released else "corrupted in memory after resize and crop"
        words = {"preset=cifar": "CIFAR-10-C's constants", "variant=bethgelab": "the code of imagecorruptions"}
        return ", ".join([where, *(phrase for key, phrase in words.items() if key in self.definition)])


def corruption_tables(results: Sequence[Figure]) -> list[CorruptionTables]:
    cells_of: dict[str, dict[tuple[str, str], Figure]] = {}
    for row in results:
        cells_of.setdefault(row.checkpoint, {})[row.condition, row.metric] = row
    tables = []
    for checkpoint, cells in cells_of.items():
        parts = [part for condition, _ in cells if (part := parse_corrupted(condition)) is not None]
        for definition in dict.fromkeys(part.definition for part in parts):
            examples = {part.label: part.mean for part in parts if part.definition == definition}
            ordered = sorted(examples.values(), key=lambda part: corruption_names().index(part.name))
            lines = [_errors(part, cells) for part in ordered]
            ce = ERROR_HEADINGS.index("CE %")
            with_ce = any(row[ce] != MISSING for row in lines)  # AlexNet is a yardstick
            headings, *rows = (row if with_ce else row[:ce] + row[ce + 1 :] for row in (ERROR_HEADINGS, *lines))
            errors = Table("", headings, tuple(rows), checkpoint=checkpoint, shaded=headings[1:7], dark="high")
            kinds = tuple(category_of(part.name) for part in ordered)
            tables.append(CorruptionTables(definition, errors, kinds, _means(checkpoint, definition, cells)))
    return tables


def _errors(part: Corrupted, cells: Cells) -> tuple[str, ...]:
    """Return the row of a corruption."""
    texts = [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    values = [None if (right := finite_or_none(cells, text, "top1")) is None else 1 - right for text in texts]
    present = [text for text, value in zip(texts, values, strict=True) if value is not None]
    whole = (part.text, "mean_error") in cells
    if whole:
        mean, nll, ece = (finite_or_none(cells, part.text, metric) for metric in ("mean_error", "nll", "ece"))
    else:  # over the severities that were evaluated, which the cells name
        mean = _mean([value for value in values if value is not None])
        nll, ece = (_mean([finite_or_none(cells, text, metric) for text in present]) for metric in ("nll", "ece"))
    loss = scaled(nll, 1)
    ends = [scaled(mean), scaled(finite_or_none(cells, part.text, "ce")), loss, scaled(ece)]
    only = "" if whole or not present else f" ({span(texts.index(text) + 1 for text in present)})"
    ends = [cell.followed_by(only) if cell != MISSING else cell for cell in ends]
    return part.label, *map(scaled, values), *ends


def _mean(figures: Sequence[float | None]) -> float | None:
    present = [figure for figure in figures if figure is not None]
    return sum(present) / len(present) if present and len(present) == len(figures) else None


def _means(checkpoint: str, definition: str, figures: Cells) -> Table:
    """Return the means over sets: a column for each metric that one has, and for losses."""
    texts = {text: set_of(text) for text, metric in figures if metric == "mean_error"}
    sets = {text: parts for text, parts in texts.items() if parts and definition_of(parts[2]) == definition}
    names = {metric for text, metric in figures if text in sets}
    metrics = [*(metric for metric in METRICS if metric.name in names), *_LOSSES]
    rows = []
    for text, (name, some, of) in sets.items():
        only = f", severity {span(some)} only" if some else ""
        row_figures = (figures.get((text, metric.name)) for metric in metrics)
        finite = (row if row and row.is_finite else None for row in row_figures)
        cells = (metric.cell(row) for metric, row in zip(metrics, finite, strict=True))
        frost = " (frost: texture=own)" if "texture=own" in of else ""
        rows.append((f"{name}{only}{frost}", counted(figures[text, "mean_error"]), *cells))
    headings = ("mean over", "n", *(metric.column for metric in metrics))
    return Table("", headings, tuple(rows), checkpoint=checkpoint)


SEVERITY_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
RETENTION_HEADINGS = ("mean over", "n", "mIoU % [95 %]", "retention % [95 %]", "pixel acc. %", "mean acc. %", "NLL")

Values = tuple[float | None, ...]


def retention_tables(checkpoint: str, cells: Cells) -> Iterator[Table]:
    """Yield the tables of one checkpoint, those of each definition of corruptions together."""
    for definition in dict.fromkeys(_definition(condition) for condition, _ in cells):
        if definition is not None:
            yield from _tables(checkpoint, definition, cells)


@lru_cache(maxsize=1024)
def _definition(condition: str) -> str | None:
    """Return the definition of a corruption or a mean over corruptions, `(preset=cifar)`; None for other conditions."""
    part = parse_corrupted(next(iter(shares_of(condition))))
    return None if part is None else part.definition


def _tables(checkpoint: str, definition: str, cells: Cells) -> Iterator[Table]:
    mine = {key: row for key, row in cells.items() if _definition(key[0]) == definition}
    parts = [parse_corrupted(next(iter(shares_of(condition)))) for condition, _ in mine]
    labels = {part.label: part.mean for part in parts if part is not None}
    ordered = sorted(labels.values(), key=lambda part: corruption_names().index(part.name))
    lines = [_by_severity(part, mine, finite_or_none(cells, "clean", "miou")) for part in ordered]
    rows = _with_categories([part.name for part in ordered], lines)
    source = "released files" if "source=released" in definition else "corrupted in memory"
    title = f"{checkpoint}: mIoU in % by corruption and severity, {source}{f' {definition}' if definition else ''}"
    yield Table(title, SEVERITY_HEADINGS, tuple(rows), checkpoint=checkpoint, shaded=SEVERITY_HEADINGS[1:])
    means = []
    for text in [condition for condition, metric in mine if metric == "miou" and set_of(condition)]:
        shares = (scaled(finite_or_none(mine, text, f"{which}_accuracy")) for which in ("pixel", "mean"))
        whole = (figure_cell(mine.get((text, metric))) for metric in ("miou", "retention"))
        means.append((text, counted(mine[text, "miou"]), *whole, *shares, loss_cell(mine.get((text, "nll")))))
    if means:
        title = f"{checkpoint}: means over sets of corruptions, {source}"
        yield Table(title, RETENTION_HEADINGS, tuple(means), checkpoint=checkpoint)


def _by_severity(part: Corrupted, cells: Cells, clean: float | None) -> tuple[tuple[str, ...], Values]:
    """Return the row of a corruption, and the fractions behind its cells."""
    every, texts = part.text, [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    some = texts[0].replace("severity=1", "severity=1+2+3", 1)
    mean = every if (every, "miou") in cells else some
    left = finite_or_none(cells, mean, "retention")
    fractions = [*(finite_or_none(cells, text, "miou") for text in texts), finite_or_none(cells, mean, "miou"), left]
    columns = [scaled(value) for value in fractions]
    which = "1–3" if mean == some else ""
    if fractions[5] is None:
        those, which = _of_those(fractions[:5], clean)
        columns[5:] = map(scaled, those)
    if which:
        columns[5:] = [cell.followed_by(f" ({which})") if cell != MISSING else cell for cell in columns[5:]]
    return (part.label, *columns), tuple(fractions)


def _of_those(mious: Sequence[float | None], clean: float | None) -> tuple[list[float | None], str]:
    """Return mean and retention over the severities that were evaluated, and which these are."""
    present = {severity: miou for severity, miou in enumerate(mious, start=1) if miou is not None}
    if not present:
        return [None, None], ""
    mean = sum(present.values()) / len(present)
    return [mean, mean / clean if clean else None], span(present)


def _with_categories(order: Sequence[str], lines: Sequence[tuple[tuple[str, ...], Values]]) -> list[tuple[str, ...]]:
    """Return the rows of corruptions, with a mean below each category that has several."""
    texts = list[tuple[str, ...]]()
    for kind in dict.fromkeys(map(category_of, order)):
        places = [place for place, name in enumerate(order) if category_of(name) == kind]
        texts += (lines[place][0] for place in places)
        if len(places) > 1:
            means = [_mean(column) for column in zip(*(lines[place][1] for place in places), strict=True)]
            if means[-2] is not None:  # every one of them has a mean
                texts.append((f"mean of {kind}", *map(scaled, means)))
    return texts


def corruption_grids(tables: Sequence[CorruptionTables]) -> list[Table]:
    """Return the tables of all checkpoints side by side, by definition."""
    grids = list[Table]()
    for definition in dict.fromkeys(table.definition for table in tables):
        some = [table for table in tables if table.definition == definition]
        where = some[0].source
        means = [each.means for each in some if each.means.rows]
        grids += side_by_side(f"Means over sets of corruptions, {where}", means)
        title = f"Error in % by corruption, {where}"
        grids += side_by_side(title, [_with_severities(each.errors) for each in some], headline="mean")
    return grids


def _with_severities(errors: Table) -> Table:
    names = {str(severity): f"severity {severity}" for severity in range(1, 6)}
    headings = tuple(names.get(heading, heading) for heading in errors.headings)
    return replace(errors, headings=headings, shaded=headings[1:7])


class CorruptionsPresenter(Presenter):
    words = VOCABULARY

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        """Yield the means over sets, else of each corruption: errors, the mCE, and the task's metric. A first page has
        the mean error, else the task's metric, and then the mCE."""
        error, mce = (metric_named(METRICS, name) for name in ("mean_error", "mce"))
        assert error is not None and mce is not None
        texts = in_short(text for text, _ in keys)
        for metric in (error, mce, headline) if headline.binary else (headline,):
            for text in texts:
                yield BriefRow(f"under corruption: {metric.heading}", name_of(text, "table", manifest), text, metric)
        for text in sorted(texts, key=lambda text: kind_of(text) != BENCHMARK):
            yield BriefRow("", "", text, error if (text, error.name) in keys else headline, FIRST)
        yield from (BriefRow("", "", text, mce, FIRST) for text, name in keys if name == mce.name)

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        """Yield the mean over the benchmark's set, else the worst, and the worst corruption (so far)."""
        asked = [condition for condition in manifest.conditions if _is_single(condition)]
        so_far = "" if all(is_whole(cells, condition, headline.name) for condition in asked) else " so far"
        single = (row for (text, name), row in cells.items() if name == headline.name and _is_single(text))
        worst = min(single, key=lambda row: row.value, default=None)
        if headline.binary:
            if (mean := _worst_mean(cells, "mean_error", 1)) is not None:
                most, over = _at(worst, headline, f",{so_far} most under"), mean.condition
                over = over if _set(over) == BENCHMARK else f"mean over {over}, the worst set{so_far}"
                yield Clause(f"its error under corruption is {share(mean)} ({over}){most}", (mean,))
            elif worst is not None:
                yield Clause(f"its error under corruption{_at(worst, headline, f' is{so_far} largest under')}")
        elif (retention := _worst_mean(cells, "retention", -1)) is not None:
            most = _at(worst, headline, f",{so_far} worst")
            yield Clause(f"corruption leaves {share(retention)} of it ({retention.condition}){most}", (retention,))
        elif worst is not None:
            yield Clause(f"under corruption{_at(worst, headline, f' it is{so_far} lowest under')}")

    def tables(self, results: Results) -> Iterable[Table]:
        """Yield those of a terminal and a card; the page has those of all checkpoints side by side."""
        places = ("terminal", "card")
        for part in corruption_tables(results) if any(row.metric in ("top1", "mean_error") for row in results) else ():
            errors, checkpoint = part.errors, part.errors.checkpoint
            title = f"{checkpoint}: error in % by corruption and severity, {part.source}"
            rows = tuple((f"{kind}:", *row) for kind, row in zip(part.kinds, errors.rows, strict=True))
            table = Table(title, ("", *errors.headings), rows, spare=("ECE %", "NLL", "CE %"), places=places)
            yield table.under_heads([row[0] for row in rows])
            if part.means.rows:
                spare = ("ECE %", "NLL", "n", "relative mCE %")
                title = f"{checkpoint}: means over sets of corruptions"
                yield replace(part.means, title=title, spare=spare, places=places)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        lines = finding_lines(results, of_family(self.name))
        bars = accuracy_bars(results)
        by_severity = severity_figures(bars, looks, "corruptions")
        drawn = bar_figures(bars, looks, "corruptions", "Accuracy under corruption", "accuracy")
        yield Section(
            "corruptions",
            "Corruptions",
            lambda: {
                "grids": with_flags(corruption_grids(corruption_tables(results)), lines),
                "left_out": left_out_lines(results.run),
            },
            (*by_severity, *drawn),
        )


_TOGETHER = 6  # checkpoints in a figure


@dataclass(frozen=True)
class CorruptionBars:
    """A checkpoint under one definition. clean: without corruption, if known. bars: by corruption, with the severities
    of the mean, `""` for all five; only these have intervals. single: by corruption and severity."""

    checkpoint: str
    definition: str
    clean: Figure | None
    bars: Mapping[str, tuple[Figure, str]]
    single: Mapping[str, Mapping[int, Figure]] = field(default_factory=dict)


def accuracy_bars(results: Sequence[Figure], metric: str = "top1") -> list[CorruptionBars]:
    clean: dict[str, Figure] = {}
    means: dict[tuple[str, str], dict[str, Figure]] = {}
    single: dict[tuple[str, str], dict[str, dict[int, Figure]]] = {}
    for row in results:
        if not row.is_finite or row.metric not in (metric, "mean_error"):
            continue
        if row.condition == "clean":
            clean[row.checkpoint] = row
        elif "+" not in row.condition and (part := parse_corrupted(row.condition)) is not None:
            key = row.checkpoint, part.definition
            if part.severity:
                single.setdefault(key, {}).setdefault(part.label, {})[part.severity] = row
            elif row.metric == "mean_error":
                means.setdefault(key, {})[part.label] = row.complement
    bars = []
    for key in single:
        points = {name: (_mean_of(some), span(some)) for name, some in single[key].items()}
        points |= {name: (point, "") for name, point in means.get(key, {}).items()}
        bars.append(CorruptionBars(*key, clean.get(key[0]), points, single[key]))
    return bars


def _mean_of(some: Mapping[int, Figure]) -> Figure:
    """Return the mean over severities that have no mean in the results."""
    if len(some) == 1:
        return next(iter(some.values()))
    value = sum(point.value for point in some.values()) / len(some)
    return Figure(value, min(point.n for point in some.values()))


def retention_bars(results: Sequence[Figure]) -> list[CorruptionBars]:
    """Return the share of the clean mIoU that is left, averaged over all five severities or the first three."""
    by_key: dict[tuple[str, str], dict[str, tuple[Figure, str]]] = {}
    for row in results:
        if row.metric != "retention" or not row.is_finite or not row.condition.startswith("corruption("):
            continue
        some = "severity=1+2+3"
        part = parse_corrupted(row.condition.replace(some, "severity=1", 1))
        assert part is not None
        points = by_key.setdefault((row.checkpoint, part.definition), {})
        if some not in row.condition or part.label not in points:
            points[part.label] = (row, "1–3" if some in row.condition else "")
    return [CorruptionBars(*key, None, points) for key, points in by_key.items()]


def bar_figures(
    drawn: Sequence[CorruptionBars], looks: Mapping[str, Style], section: str, title: str, what: str
) -> Iterator[Plot]:
    """Yield figures for each definition, with a panel for each of a few checkpoints. what: the figure shown."""
    for definition in dict.fromkeys(bars.definition for bars in drawn):
        every = [bars for bars in drawn if bars.definition == definition]
        for start in range(0, len(every), _TOGETHER):
            group = every[start : start + _TOGETHER]
            several = f", {start + 1} to {start + len(group)} of {len(every)}" if len(every) > _TOGETHER else ""
            yield _figure(group, looks, section, f"{title}{f' {definition}' if definition else ''}{several}", what)


def _figure(group: Sequence[CorruptionBars], looks: Mapping[str, Style], section: str, title: str, what: str) -> Plot:
    rows = list(_rows(group))
    names = labels((bars.checkpoint for bars in group), 22)
    points = [point for bars in group for point, _ in bars.bars.values()]
    highest = max(1.0, *(point.high if math.isfinite(point.high) else point.value for point in points))
    reference = "the dashed line is the clean one" if any(bars.clean for bars in group) else "100 % is the clean mIoU"
    listed = list_some([_words(bars, names[bars.checkpoint]) for bars in group])

    def paint(canvas: Canvas) -> None:
        grid = panels(canvas, len(group), sharex=True, sharey=True)
        for axes, bars in zip(grid, group, strict=True):
            _bars(axes, bars, rows, looks[bars.checkpoint])
            axes.set_title(names[bars.checkpoint])
            axes.set_xlim(0, 100 * highest)
            axes.set_xticks([0, 25, 50, 75, 100])
        for axes in grid[-2:]:
            axes.set_xlabel(f"{what} in %")
        for axes in grid[::2]:
            axes.set_yticks(range(len(rows)), [text for text, _ in rows])
            axes.set_ylim(len(rows) - 0.4, -0.6)
            for label, (_, name) in zip(axes.get_yticklabels(), rows, strict=True):
                label.set_fontweight("normal" if name else "bold")

    return Plot(
        section,
        title,
        20 + (66 + 17 * len(rows)) * -(-len(group) // 2),
        paint,
        alt=f"{what.capitalize()} by corruption. {listed}.",
        caption=f"{what.capitalize()}, mean over severities, with 95 % intervals; {reference}.",
        name=" ".join(bars.checkpoint for bars in group),
        chief=True,
    )


def severity_figures(
    drawn: Sequence[CorruptionBars], looks: Mapping[str, Style], section: str, what: str = "accuracy"
) -> Iterator[Plot]:
    """Yield a figure for each definition with several severities: a panel for each category, a line for each
    checkpoint. A point is the mean over the category's corruptions that have all its severities."""
    for definition in dict.fromkeys(bars.definition for bars in drawn):
        group = [bars for bars in drawn if bars.definition == definition]
        panes = dict[str, tuple[list[str], list[int]]]()
        for category, members in categories().items():
            names = [label for name in members for label in (name, f"{name}(texture=own)") if label in group[0].single]
            severities = sorted({level for bars in group for name in names for level in bars.single.get(name, ())})
            whole = [name for name in names if all({*severities} <= {*bars.single.get(name, ())} for bars in group)]
            if whole and len(severities) > 1:
                panes[category] = whole, severities
        if panes:
            yield _severity_figure(group, looks, section, definition, panes, what)


def _severity_figure(
    group: Sequence[CorruptionBars],
    looks: Mapping[str, Style],
    section: str,
    definition: str,
    panes: Mapping[str, tuple[Sequence[str], Sequence[int]]],
    what: str,
) -> Plot:
    names, clean = labels(bars.checkpoint for bars in group), any(bars.clean for bars in group)

    def line(bars: CorruptionBars, members: Sequence[str], severities: Sequence[int]) -> list[tuple[int, Figure]]:
        means = [_mean_of({k: bars.single[name][level] for k, name in enumerate(members)}) for level in severities]
        return [*([(0, bars.clean)] if bars.clean else []), *zip(severities, means, strict=True)]

    def paint(canvas: Canvas) -> None:
        grid = panels(canvas, len(panes), sharex=True, sharey=True)
        every = sorted({level for _, severities in panes.values() for level in severities})
        for axes, (category, pane) in zip(grid, panes.items(), strict=True):
            for place, bars in enumerate(group):
                places, points = zip(*line(bars, *pane), strict=True)
                shift = series_shift(place, len(group), 5)
                dots(axes, places, points, looks[bars.checkpoint], shift=shift)
            members = pane[0]
            axes.set_title(f"{category} ({len(members)})" if len(members) > 1 else members[0].replace("_", " "))
            axes.set_ylim(0, 104)
            axes.set_xticks([0, *every] if clean else every, [*["clean"] * clean, *map(str, every)])
            axes.set_xlim(-0.5 if clean else every[0] - 0.5, every[-1] + 0.5)
        for axes in grid[-2:]:
            axes.set_xlabel("severity")
        for axes in grid[::2]:
            axes.set_ylabel(f"{what} in %")
        legend(canvas, {names[bars.checkpoint]: looks[bars.checkpoint] for bars in group})

    sentences = []
    for bars in group:
        ends = {category: line(bars, *pane)[-1][1] for category, pane in panes.items()}
        worst = min(ends, key=lambda category: ends[category].value)
        value, level = percent(ends[worst].value), panes[worst][1][-1]
        sentences.append(f"{names[bars.checkpoint]} has {value} under {worst} at severity {level}")
    start = what if what[1:2].isupper() else what.capitalize()  # mIoU
    return Plot(
        section,
        f"{start} by severity{f' {definition}' if definition else ''}",
        20 + 18 * -(-len(names) // 2) + 190 * -(-len(panes) // 2),
        paint,
        alt=f"{start} by severity, lowest: {list_some(sentences)}.",
        caption="Means over the corruptions of a category that have all its severities; of one with 95 % intervals.",
        chief=True,
    )


def _rows(group: Sequence[CorruptionBars]) -> Iterator[tuple[str, str]]:
    """Yield the text and corruption of each row; a category's heading has an empty corruption."""
    for category, members in categories().items():
        every = (label for name in members for label in (name, f"{name}(texture=own)"))
        present = [label for label in every if any(label in bars.bars for bars in group)]
        if present:
            yield category, ""
        for name in present:
            over = {bars.bars[name][1] for bars in group if name in bars.bars} - {""}
            texture = f" ({min(over)})" if len(over) == 1 else " (some)" if over else ""
            yield name.replace("_", " ") + texture, name


def _bars(axes: Axes, bars: CorruptionBars, rows: Sequence[tuple[str, str]], look: Style) -> None:
    places = [place for place, (_, name) in enumerate(rows) if name in bars.bars]
    points = [bars.bars[rows[place][1]][0] for place in places]
    axes.barh(places, [100 * point.value for point in points], height=0.62, color=look.colour)
    ink = axes.spines["left"].get_edgecolor()
    lows, highs = [100 * point.low for point in points], [100 * point.high for point in points]
    axes.hlines(places, lows, highs, colors=[ink], linewidth=1.6)
    axes.grid(visible=False, axis="y")
    if bars.clean is not None:
        axes.axvline(100 * bars.clean.value, color=ink, linestyle="--", linewidth=1.2)


def _words(bars: CorruptionBars, name: str) -> str:
    order = sorted((point.value, corruption) for corruption, (point, _) in bars.bars.items())
    start = f"{name}: {percent(bars.clean.value)} clean, " if bars.clean else f"{name}: "
    lowest = ", ".join(f"{percent(value)} under {corruption}" for value, corruption in order[:3])
    best = f"; highest {percent(order[-1][0])} under {order[-1][1]}" if len(order) > 3 else ""
    return f"{start}lowest {lowest}{best}"
