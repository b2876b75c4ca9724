"""Show the corruptions of a run: tables, plots, sentence and front page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ...common.figure import Figure
from ...display.format import MISSING, counted, figure_cell, loss_cell, percent, scaled, share
from ...display.svg import Plot, Style, brief_labels, dots, legend, list_some, panels, series_shift
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
    value = percent(row.value) if headline.binary else f"{headline.word} {percent(row.value)}"
    called = part.label.replace("_", " ")
    return f"{start} {called} at severity {part.severity} with {value}"


ERROR_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "CE %", "NLL", "ECE %")
_LOSSES = (Metric("nll", "NLL", bare=True), Metric("ece", "ECE %", 100, bare=True))


@dataclass(frozen=True)
class CorruptionTables:
    """A checkpoint under one definition. errors: a row for each corruption, of `kinds`; without AlexNet as a yardstick,
    its column is left out. means: over sets. over: the severities that all rows are of, where these are not all."""

    definition: str
    errors: Table
    kinds: tuple[str, ...]
    means: Table
    over: str

    @property
    def source(self) -> str:
        released = "source=released" in self.definition
        where = "released files" if released else "corrupted in memory after resize and crop"
        words = {"preset=cifar": "CIFAR-10-C's constants", "variant=bethgelab": "the code of imagecorruptions"}
        at = [f"severity {self.over} only"] if self.over else []
        return ", ".join([*at, where, *(phrase for key, phrase in words.items() if key in self.definition)])


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
            overs = {_over(part, cells) for part in ordered}
            over = overs.pop() if len(overs) == 1 else None
            lines = [_errors(part, cells, over is None) for part in ordered]
            ce = ERROR_HEADINGS.index("CE %")
            with_ce = any(row[ce] != MISSING for row in lines)  # AlexNet is a yardstick
            headings, *rows = (row if with_ce else row[:ce] + row[ce + 1 :] for row in (ERROR_HEADINGS, *lines))
            errors = Table("", headings, tuple(rows), checkpoint=checkpoint, shaded=headings[1:7])
            kinds = tuple(category_of(part.name) for part in ordered)
            means = _means(checkpoint, definition, cells)
            tables.append(CorruptionTables(definition, errors, kinds, means, over or ""))
    return tables


def _over(part: Corrupted, cells: Cells) -> str:
    """Return the severities of a corruption's mean, `1–3`; empty for all five."""
    if (part.text, "mean_error") in cells:
        return ""
    texts = {severity: replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)}
    return span(severity for severity, text in texts.items() if finite_or_none(cells, text, "top1") is not None)


def _errors(part: Corrupted, cells: Cells, with_over: bool) -> tuple[str, ...]:
    """Return the row of a corruption. with_over: with the severities of its mean, where these are not all."""
    texts = [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    values = [finite_or_none(cells, text, "top1") for text in texts]
    present = [text for text, value in zip(texts, values, strict=True) if value is not None]
    whole = (part.text, "mean_error") in cells
    if whole:
        error, nll, ece = (finite_or_none(cells, part.text, metric) for metric in ("mean_error", "nll", "ece"))
        mean = None if error is None else 1 - error
    else:  # over the severities that were evaluated, which the cells name
        mean = _mean([value for value in values if value is not None])
        nll, ece = (_mean([finite_or_none(cells, text, metric) for text in present]) for metric in ("nll", "ece"))
    loss = scaled(nll, 1)
    ends = [scaled(mean), scaled(finite_or_none(cells, part.text, "ce")), loss, scaled(ece)]
    only = f" ({over})" if with_over and (over := _over(part, cells)) else ""
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
    metrics = [*(metric.shown for metric in METRICS if metric.name in names), *_LOSSES]
    rows = []
    for text, (name, some, of) in sets.items():
        only = f", severity {span(some)} only" if some else ""
        row_figures = (figures.get((text, metric.name)) for metric in metrics)
        finite = (row if row and row.is_finite else None for row in row_figures)
        cells = (metric.cell(row) for metric, row in zip(metrics, finite, strict=True))
        frost = " (texture=own)" if "texture=own" in of else ""
        rows.append((f"{name}{only}{frost}", counted(figures[text, "mean_error"]), *cells))
    headings = ("mean over", "n", *(metric.column for metric in metrics))
    return Table("", headings, tuple(rows), checkpoint=checkpoint)


SEVERITY_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
_RETENTION = ("retention % [95 %]", "pixel acc. %", "mean acc. %", "NLL")

Values = tuple[float | None, ...]


def retention_tables(
    checkpoint: str, cells: Cells, metric: Metric, corrupted: str = "corrupted in memory"
) -> Iterator[Table]:
    """Yield a checkpoint's tables of a metric, by definition of the corruptions. corrupted: where images were."""
    for definition in dict.fromkeys(_definition(condition) for condition, _ in cells):
        if definition is not None:
            yield from _tables(checkpoint, definition, cells, metric, corrupted)


@lru_cache(maxsize=1024)
def _definition(condition: str) -> str | None:
    """Return the definition of a corruption or a mean over corruptions, `(preset=cifar)`; None for other conditions."""
    part = parse_corrupted(next(iter(shares_of(condition))))
    return None if part is None else part.definition


def _tables(checkpoint: str, definition: str, cells: Cells, metric: Metric, corrupted: str) -> Iterator[Table]:
    mine = {key: row for key, row in cells.items() if _definition(key[0]) == definition}
    parts = [parse_corrupted(next(iter(shares_of(condition)))) for condition, _ in mine]
    labels = {part.label: part.mean for part in parts if part is not None}
    ordered = sorted(labels.values(), key=lambda part: corruption_names().index(part.name))
    name = metric.name
    lines = [_by_severity(part, mine, name, finite_or_none(cells, "clean", name)) for part in ordered]
    rows = _with_categories([part.name for part in ordered], lines)
    source = "released files" if "source=released" in definition else corrupted
    title = f"{checkpoint}: {metric.word} in % by corruption and severity, {source} {definition}".rstrip()
    table = Table(title, SEVERITY_HEADINGS, tuple(rows), checkpoint=checkpoint, shaded=SEVERITY_HEADINGS[1:])
    yield table.without_empty()
    means = []
    for text in [condition for condition, each in mine if each == name and set_of(condition)]:
        shares = (scaled(finite_or_none(mine, text, f"{which}_accuracy")) for which in ("pixel", "mean"))
        whole = (figure_cell(mine.get((text, each))) for each in (name, "retention"))
        means.append((text, counted(mine[text, name]), *whole, *shares, loss_cell(mine.get((text, "nll")))))
    if means:
        title = f"{checkpoint}: means over sets of corruptions, {source}"
        headings = ("mean over", "n", metric.column, *_RETENTION)
        yield Table(title, headings, tuple(means), checkpoint=checkpoint).without_empty()


def _by_severity(part: Corrupted, cells: Cells, metric: str, clean: float | None) -> tuple[tuple[str, ...], Values]:
    """Return the row of a corruption, and the fractions behind its cells."""
    every, texts = part.text, [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    some = texts[0].replace("severity=1", "severity=1+2+3", 1)
    mean = every if (every, metric) in cells else some
    left = finite_or_none(cells, mean, "retention")
    fractions = [*(finite_or_none(cells, text, metric) for text in (*texts, mean)), left]
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
        headline = next((h for h in means[0].headings if h.startswith("top-1 %")), "") if means else ""
        grids += side_by_side(f"Means over sets of corruptions, {where}", means, headline=headline)
        title = f"Accuracy in % by corruption, {where}"
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
        error = error.shown
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
                most, over = _at(worst, headline, f"; lowest of all{so_far} under"), mean.condition
                mean_of = f"mean of {name_of(over, 'table', manifest)}, the worst set{so_far}"
                over = over if _set(over) == BENCHMARK else mean_of
                yield Clause(f"its accuracy under corruption is {share(mean.complement)} ({over}){most}", (mean,))
            elif worst is not None:
                yield Clause(f"its accuracy under corruption{_at(worst, headline, f' is{so_far} lowest under')}")
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
            title = f"{checkpoint}: accuracy in % by corruption and severity, {part.source}"
            rows = tuple((f"{kind}:", *row) for kind, row in zip(part.kinds, errors.rows, strict=True))
            table = Table(title, ("", *errors.headings), rows, spare=("ECE %", "NLL", "CE %"), places=places)
            yield table.under_heads([row[0] for row in rows])
            if part.means.rows:
                spare = ("ECE %", "NLL", "n", "relative mCE %")
                title = f"{checkpoint}: means over sets of corruptions"
                yield replace(part.means, title=title, spare=spare, places=places)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        lines = finding_lines(results, of_family(self.name))
        plots = level_figures(accuracy_levels(results), looks, "corruptions", "Accuracy under corruption", "accuracy")
        yield Section(
            "corruptions",
            "Corruptions",
            lambda: {
                "grids": with_flags(corruption_grids(corruption_tables(results)), lines),
                "left_out": left_out_lines(results.run),
            },
            tuple(plots),
        )


_TOGETHER = 8  # checkpoints in a figure


@dataclass(frozen=True)
class CorruptionLevels:
    """A checkpoint under one definition. clean: without corruption, if known. means: by corruption, with the severities
    of the mean, `""` for all five; only these have intervals."""

    checkpoint: str
    definition: str
    clean: Figure | None
    means: Mapping[str, tuple[Figure, str]]


def accuracy_levels(results: Sequence[Figure], metric: str = "top1") -> list[CorruptionLevels]:
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
    levels = []
    for key in single:
        points = {name: (_mean_of(some), span(some)) for name, some in single[key].items()}
        points |= {name: (point, "") for name, point in means.get(key, {}).items()}
        levels.append(CorruptionLevels(*key, clean.get(key[0]), points))
    return levels


def _mean_of(some: Mapping[int, Figure]) -> Figure:
    """Return the mean over severities that have no mean in the results."""
    if len(some) == 1:
        return next(iter(some.values()))
    value = sum(point.value for point in some.values()) / len(some)
    return Figure(value, min(point.n for point in some.values()))


def retention_levels(results: Sequence[Figure]) -> list[CorruptionLevels]:
    """Return the share of the clean mIoU that is left, averaged over all five severities or the first three."""
    by_key: dict[tuple[str, str], dict[str, tuple[Figure, str]]] = {}
    for row in results:
        some = "severity=1+2+3"
        part = parse_corrupted(row.condition.replace(some, "severity=3"))
        if row.metric != "retention" or part is None or set_of(row.condition) or not row.is_finite:
            continue
        points = by_key.setdefault((row.checkpoint, part.definition), {})
        if some not in row.condition or part.label not in points:
            points[part.label] = (row, "1–3" if some in row.condition else "")
    return [CorruptionLevels(*key, None, points) for key, points in by_key.items()]


def level_figures(
    groups: Sequence[CorruptionLevels], looks: Mapping[str, Style], section: str, title: str, what: str
) -> Iterator[Plot]:
    """Yield a figure for each definition: a row for each corruption, the hardest first, a dot for each checkpoint.
    what: the figure shown."""
    for definition in dict.fromkeys(levels.definition for levels in groups):
        alike = [levels for levels in groups if levels.definition == definition]
        if len({name for levels in alike for name in levels.means}) > 1:
            several = f" {definition}" if definition and len({levels.definition for levels in groups}) > 1 else ""
            yield _level_figure(alike[:_TOGETHER], looks, section, f"{title}{several}", what, len(alike))


def _level_figure(
    group: Sequence[CorruptionLevels], looks: Mapping[str, Style], section: str, title: str, what: str, count: int
) -> Plot:
    values, overs = dict[str, list[float]](), dict[str, set[str]]()
    for levels in group:
        for name, (point, over) in levels.means.items():
            values.setdefault(name, []).append(point.value)
            overs.setdefault(name, set()).add(over)
    rows = sorted(values, key=lambda name: (sum(values[name]) / len(values[name]), name))
    severities = set[str]().union(*overs.values())
    one = severities.pop() if len(severities) == 1 else None  # the severities of all rows
    texts = [_row_text(name, set() if one is not None else overs[name]) for name in rows]
    clean = any(levels.clean for levels in group)
    places = {name: place for place, name in enumerate(rows, start=clean)}
    names, height = brief_labels([levels.checkpoint for levels in group], 22), max(22, 6 * len(group) + 8)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1, columns=1)
        for place, levels in enumerate(group):
            points = {places[name]: point for name, (point, _) in levels.means.items()}
            points |= {0: levels.clean} if levels.clean else {}
            shift = -series_shift(place, len(group), 6, height - 6)
            dots(axes, [*points], [*points.values()], looks[levels.checkpoint], shift=shift, across=True)
        axes.set_yticks(range(len(rows) + clean), [*["clean"] * clean, *texts])
        axes.set(ylim=(len(rows) + clean - 0.4, -0.6), xlabel=f"{what} in %")
        largest = max(point.value for some in group for point, _ in some.means.values())
        axes.set_xlim(0, 100 if largest <= 1 else 105 * largest)
        axes.grid(visible=False, axis="y")
        legend(canvas, {names[levels.checkpoint]: looks[levels.checkpoint] for levels in group}, lines=False)

    over = "mean over severities" if one is None else f"severity {one}" if one else "mean over the five severities"
    more = f" The first {len(group)} of {count} checkpoints." if count > len(group) else ""
    sentences = [_words(levels, names[levels.checkpoint]) for levels in group]
    return Plot(
        section,
        title,
        60 + 18 * -(-len(group) // 2) + height * (len(rows) + clean),
        paint,
        alt=f"{what.capitalize()} by corruption. {list_some(sentences)}.",
        caption=f"{what.capitalize()}, {over}, with 95 % intervals; the hardest corruption first.{more}",
        name=" ".join(levels.checkpoint for levels in group),
        chief=True,
    )


def _row_text(label: str, overs: Iterable[str]) -> str:
    """Return the corruption, with the severities of its mean where rows differ in them."""
    over = {*overs} - {""}
    return label.replace("_", " ") + (f" ({min(over)})" if len(over) == 1 else " (some)" if over else "")


def _words(levels: CorruptionLevels, name: str) -> str:
    order = sorted((point.value, corruption) for corruption, (point, _) in levels.means.items())
    start = f"{name}: {percent(levels.clean.value)} clean, " if levels.clean else f"{name}: "
    lowest = ", ".join(f"{percent(value)} under {corruption}" for value, corruption in order[:3])
    best = f"; highest {percent(order[-1][0])} under {order[-1][1]}" if len(order) > 3 else ""
    return f"{start}lowest {lowest}{best}"
