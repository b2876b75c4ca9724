"""Draw corruptions: accuracy by severity; as bars accuracy, or retention of mIoU, by corruption and category."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...common.figure import Figure
from ...display.format import percent
from ...display.svg import Plot, Style, dots, labels, legend, list_some, panels, series_shift
from . import categories, parse_corrupted, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

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
        points = {name: (_mean(some), span(some)) for name, some in single[key].items()}
        points |= {name: (point, "") for name, point in means.get(key, {}).items()}
        bars.append(CorruptionBars(*key, clean.get(key[0]), points, single[key]))
    return bars


def _mean(some: Mapping[int, Figure]) -> Figure:
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
        means = [_mean({k: bars.single[name][level] for k, name in enumerate(members)}) for level in severities]
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
