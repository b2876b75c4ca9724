"""Draw watched attention as curves over the layers: one column per checkpoint, one panel per figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.intervals import Floats
from ...display.format import number, percent
from ...display.svg import INK, Plot, Style, labels, legend, shorten_name, space_panels, style
from ...display.table import Section, Table, join_tables, with_flags
from ...evaluations.aggregate import Results
from ...evaluations.condition import SHORT, BriefRow, kind_of, name_of, words_of
from ...evaluations.family import Presenter
from ...evaluations.metrics import Metric
from ...evaluations.presenting import finding_lines, of_family
from ...runs.manifest import Manifest
from . import VOCABULARY, under_of
from .results import COLLAPSE, EXPLOSION, LAYERS, Heads, WatchedHeads, attention_tables, layer_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ...evaluations.family import Looks

PANELS = tuple(row for row in LAYERS if row[0] != "attention_entropies")  # as shares of log N they compare
COLUMNS = 2  # checkpoints in a figure
LINES = 6  # conditions in a panel: clean, and those under which entropy changes most
_WIDE_RANGE = 30  # the highest figure over the lowest, above which an axis is logarithmic; of shares it never is


Watched = Mapping[str, Mapping[str, Heads]]  # heads by checkpoint and condition, clean first


def watched_heads(results: Results) -> Watched:
    entries: dict[str, dict[str, Heads]] = {}
    for (checkpoint, condition), heads in results.gathered(WatchedHeads).by_unit.items():
        entries.setdefault(checkpoint, {})[under_of(condition) or ""] = heads
    return {name: dict(sorted(some.items(), key=lambda item: item[0] != "clean")) for name, some in entries.items()}


def attention_figures(entries: Watched) -> Iterator[Plot]:
    if not entries:
        return
    conditions = _drawn_conditions(entries)
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    drawn = [heads[condition] for heads in entries.values() for condition in conditions if condition in heads]
    limits = {name: _limits([heads.figures(name) for heads in drawn], factor) for name, _, factor, _ in PANELS}
    names, words = labels(entries, 30), _legend(conditions)
    lost = max(map(len, entries.values())) - len(conditions)
    for start in range(0, len(entries), COLUMNS):
        group = dict([*entries.items()][start : start + COLUMNS])

        def paint(canvas: Canvas, group: Watched = group) -> None:
            space_panels(canvas)
            grid = canvas.subplots(len(PANELS), len(group), squeeze=False, sharey="row", sharex="col")
            for column, (checkpoint, heads) in enumerate(group.items()):
                present = [condition for condition in conditions if condition in heads]
                for row, (name, title, factor, _) in enumerate(PANELS):
                    axes = grid[row, column]
                    for condition in present:
                        _curve(axes, heads[condition].by_layer(name), factor, looks[condition].colour)
                    for condition in present:
                        _line(axes, heads[condition].by_layer(name), factor, looks[condition])
                    _finish(axes, name, limits[name])
                    axes.set_xlim(-0.25, max(len(each.layers) for each in heads.values()) - 0.75)
                    axes.set_title(f"{names[checkpoint]}\n{title}" if row == 0 else title)
                grid[-1, column].set_xlabel("layer")
                grid[-1, column].xaxis.get_major_locator().set_params(integer=True)
            legend(canvas, {words[condition]: looks[condition] for condition in conditions}, columns=2)

        several = ", ".join(names[checkpoint] for checkpoint in group)
        yield Plot(
            "attention",
            f"Attention over the layers of {several}",
            50 + 17 * -(-len(conditions) // 2) + 118 * len(PANELS),
            paint,
            alt=" ".join(_description(heads, names[checkpoint]) for checkpoint, heads in group.items()),
            caption="Lines are means over the heads of a layer, bands reach from the lowest head to the highest. A "
            "head's logit is its largest over all samples, everything else is a mean over samples and tokens."
            + (" Dotted: where a head is flagged." if any(map(_bound, limits, limits.values())) else "")
            + (f" Under the other {lost} conditions the entropy changes less; see the tables." if lost > 0 else ""),
            name=several,
        )


def _legend(conditions: Sequence[str]) -> dict[str, str]:
    """Return conditions as a legend names them: `fog, severity 3`, in full where two would be alike."""
    short = {text: words_of(text).label(text) for text in conditions}
    often = Counter(short.values())
    names = {text: name if often[name] == 1 else text for text, name in short.items()}
    cut = labels(names.values(), 34)
    return {text: cut[name] for text, name in names.items()}


def _drawn_conditions(entries: Watched) -> list[str]:
    """Return clean, and the conditions with the largest change of entropy in any layer, in their order."""
    every = dict.fromkeys(condition for heads in entries.values() for condition in heads)
    moved = dict.fromkeys(every, 0.0)
    for by_condition in entries.values():
        clean = by_condition.get("clean")
        for condition, heads in by_condition.items():
            if clean is not None and clean.layers == heads.layers:
                change = np.abs(heads.shares - clean.shares)
                moved[condition] = max(moved[condition], float(np.nanmax(np.nan_to_num(change), initial=0.0)))
    ranked = sorted(every, key=lambda condition: (condition != "clean", -moved[condition]))[:LINES]
    return [condition for condition in every if condition in ranked]


def _limits(values: Sequence[Floats], factor: int) -> tuple[float, float, bool]:
    """Return the lowest and highest finite figure with a margin, and whether the axis is logarithmic."""
    every = factor * np.concatenate(values)
    finite = every[np.isfinite(every)]
    if not len(finite):
        return 0.0, 1.0, False
    low, high = float(finite.min()), float(finite.max())
    if factor == 1 and low > 0 and high / low > _WIDE_RANGE:
        return low / 1.3, high * 1.3, True
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - pad, high + pad, False


def _curve(axes: Axes, layers: Sequence[Floats], factor: int, colour: str) -> None:
    """Draw the band from the lowest head to the highest."""
    every = {place: factor * values[np.isfinite(values)] for place, values in enumerate(layers)}
    finite = {place: values for place, values in every.items() if len(values)}
    low, high = ([float(end(values)) for values in finite.values()] for end in (np.min, np.max))
    axes.fill_between(list(finite), low, high, color=colour, alpha=0.12, linewidth=0)


def _line(axes: Axes, layers: Sequence[Floats], factor: int, look: Style) -> None:
    finite = (values[np.isfinite(values)] for values in layers)
    means = [factor * float(values.mean()) if len(values) else math.nan for values in finite]
    axes.plot(means, color=look.colour, marker=look.marker, linestyle=look.line, markersize=4, linewidth=1.4)


def _finish(axes: Axes, name: str, limits: tuple[float, float, bool]) -> None:
    low, high, logarithmic = limits
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # no formulas: the page's text is plain
        axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_ylim(low, high)
    axes.tick_params(length=0, which="both")
    if bound := _bound(name, limits):
        axes.axhline(bound, color=INK, linestyle=":", linewidth=1.2)


def _bound(name: str, limits: tuple[float, float, bool]) -> float:
    """Return the value at which heads are flagged, if a panel shows it; else 0."""
    bound = {"largest_logits": EXPLOSION, "entropy_shares": 100 * COLLAPSE}.get(name, 0.0)
    return bound if limits[0] < bound < limits[1] else 0.0


def _description(by_condition: Mapping[str, Heads], name: str) -> str:
    clauses = []
    for condition, heads in list(by_condition.items())[:LINES]:
        logits, shares = heads.figures("largest_logits"), heads.shares
        parts = []
        if np.isfinite(logits).any():
            place = int(np.nanargmax(logits))
            parts.append(f"largest logit {number(logits[place], 1)} in {heads.name(place)}")
        if np.isfinite(shares).any():
            place = int(np.nanargmin(shares))
            lowest = f"{percent(shares[place])} in {heads.name(place)}"
            parts.append(f"mean entropy {percent(float(np.nanmean(shares)))} of log N, lowest {lowest}")
        clauses.append(f"{shorten_name(condition, 80)}: {', '.join(parts) or 'nothing finite'}")
    return f"{name}. {'; '.join(clauses)}."


class HeadsPresenter(Presenter):
    """What heads do: figures that say how a model computes, not how well."""

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        return (row for row in super().brief(keys, manifest, headline) if row.places == SHORT)

    def section_values(self, results: Results, by_layer: Iterable[Table]) -> dict[str, Any]:
        """Return what its section shows: tables with their flags, checkpoints together, then, folded, each layer's."""
        tables = with_flags(join_tables(self.tables(results)), finding_lines(results, of_family(self.name)))
        return {"grids": [*tables, *(replace(table, folded=True) for table in by_layer)]}


class AttentionPresenter(HeadsPresenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Sequence[Table]:
        return attention_tables(results, results.manifest)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        heads = watched_heads(results)
        first = [(name, *each) for name, some in heads.items() for each in list(some.items())[:1]]

        def values() -> dict[str, Any]:
            layers = (layer_table(some, f"{name}: {under}, layer by layer") for name, under, some in first)
            return self.section_values(results, layers)

        yield Section("attention", "Attention stability", values, tuple(attention_figures(heads)))

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            label = name_of(under_of(text, kind_of(text)) or text, "table", manifest)
            plain = [metric for metric in self.words.metrics if not metric.name.endswith("_change")]
            yield from (BriefRow(self.name, f"{label}: {metric.label}", text, metric) for metric in plain)
