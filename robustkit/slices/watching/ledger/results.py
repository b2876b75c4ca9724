"""The logit decomposition in results: shares, tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....common.figure import Figure
from ....common.groups import chosen_groups
from ....common.intervals import Floats, mean_of, share_of
from ....display.format import MISSING, Cell, count, counted, figure_cell, number, percent
from ....display.svg import Plot, labels, legend, shorten_name, space_panels, style
from ....display.table import Section, Table
from ....evaluations.aggregate import Gatherer, RecordReader, Results, column_of, readable_rows
from ....evaluations.condition import name_of, words_of
from ....evaluations.family import Aggregator, Summary
from ....evaluations.metrics import by_checkpoint
from ....evaluations.records import CheckpointRecords, Pairings, PerSample, not_paired
from ....runs.manifest import Manifest
from .. import under_of
from ..results import Heads, HeadsPresenter, WatchedHeads, heads_of
from . import ANSWERS, BACK, CHANGE, LISTS, METRICS, SHARES, VOCABULARY

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ....evaluations.family import Looks


class LedgerSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Figure]:
        names = ("sample_id", "error", *(metric.name for metric in METRICS))
        table, notes = self.reading.joined(self.reading.shards(condition, names))
        flags = [*self.reading.findings(condition, table), *notes]
        if isinstance(kept := self.reading.gatherers.get(LedgerHeads), LedgerHeads):
            unit = self.reading.checkpoint, condition
            kept.put(*unit, heads_of(self.reading.run, *unit, LISTS))
        return [figure.of(condition, figure.metric, flags) for figure in numbers(readable_rows(table), self.reading)]


def numbers(read: pa.Table, reading: RecordReader) -> Iterator[Figure]:
    """Yield each figure, over the samples that have it."""
    groups = reading.groups(read["sample_id"])
    for metric in METRICS:
        values = column_of(read, metric.name)
        finite = np.isfinite(values)
        if finite.any():
            is_share = metric in BACK and np.isin(values[finite], (0, 1)).all()
            mean = share_of if is_share else mean_of
            yield mean(values[finite], chosen_groups(groups, finite)).named(metric.name)


class LedgerHeads(WatchedHeads):
    kind, lists = "ledger", LISTS


_MOST = 64  # layers in a table
_NOTE = (
    "Why attention scores change from the clean image: norms of queries, norms of keys, and directions of both. "
    "Changed: samples whose prediction changed. Back: the share of these whose prediction is restored when the norms "
    "or directions of the clean image are substituted in every layer. Means over samples, 95 % intervals."
)
_HEADINGS = tuple(metric.label for metric in METRICS[:4])


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]], manifest: Manifest) -> Table:
    rows = []
    for under, figures in conditions.items():
        changed = figures.get(METRICS[-1].name)
        cells = [figure_cell(figures.get(m.name), m.scale, m in (CHANGE, *BACK), digits=2) for m in METRICS]
        label = name_of(under, "table", manifest)
        rows.append((label, *cells[:4], counted(changed) if changed else count(0), *cells[4:]))
    headings = ("condition", *(m.label for m in METRICS[:4]), "changed", *(m.label for m in METRICS[4:]))
    n = max(row.n for figures in conditions.values() for row in figures.values())
    title, places = f"{checkpoint}: logit ledger, n = {n}", ("terminal", "page")
    return Table(title, headings, tuple(rows), (), _NOTE, checkpoint=checkpoint, places=places)


def layer_table(books: Heads, title: str) -> Table:
    """Return a row for each layer: means over its heads, and the highest with its number from 0 on."""
    rows = []
    for place, layer in enumerate(books.layers[:_MOST]):
        figures = [books.by_layer(name)[place] for name in LISTS]
        cells = (_mean_and_most(values, factor) for values, factor in zip(figures, (1, 100, 100, 100), strict=True))
        rows.append((layer.name, count(layer.heads), *cells))
    more = len(books.layers) - len(rows)
    note = "Mean over the heads of a layer, then the highest of them with its number from 0 on."
    note += f" {more} more layers are left out." if more else ""
    return Table(title, ("layer", "heads", *_HEADINGS), tuple(rows), (), note)


def _mean_and_most(values: Floats, factor: int) -> Cell:
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return MISSING
    most, decimals = int(finite[values[finite].argmax()]), 1 if factor == 100 else 2
    mean = float(values[finite].mean())
    return number(factor * mean, decimals).followed_by(f", {number(factor * float(values[most]), decimals)} ({most})")


_COLUMNS = 2  # checkpoints in a figure
_WORDS = tuple(metric.label.removeprefix("change by ").removesuffix(", %") for metric in SHARES)


def ledger_figures(first: Mapping[str, tuple[str, Heads]]) -> Iterator[Plot]:
    """Yield figures with a panel for each checkpoint. first: a condition of each, and its books."""
    names, entries = labels(first, 30), list(first.items())
    for start in range(0, len(entries), _COLUMNS):
        group = entries[start : start + _COLUMNS]

        def paint(canvas: Canvas, group: list[tuple[str, tuple[str, Heads]]] = group) -> None:
            space_panels(canvas)
            grid = canvas.subplots(1, len(group), squeeze=False, sharey=True)
            for axes, (checkpoint, (_, books)) in zip(grid[0], group, strict=True):
                for place, shares in enumerate(_by_layer(books)):
                    look = style(place)
                    axes.plot(shares, color=look.colour, marker=look.marker, linestyle=look.line, markersize=4)
                axes.set_title(names[checkpoint])
                axes.set_xlabel("layer")
                axes.xaxis.get_major_locator().set_params(integer=True)
            grid[0, 0].set_ylabel("share of the change, %")
            legend(canvas, {word: style(place) for place, word in enumerate(_WORDS)}, columns=3)

        condition = group[0][1][0]
        label = words_of(condition).label(condition)
        sentences = (f"{names[checkpoint]}: {_description(books)}" for checkpoint, (_, books) in group)
        yield Plot(
            "logits",
            f"What changes logits, layer by layer, under {label}",
            260,
            paint,
            alt=shorten_name("; ".join(sentences), 600) + ".",
            caption=f"Under {label}: how much of the change of the attention scores is due to norms of queries, norms "
            "of keys, and directions of both; means over the heads of a layer.",
            name=", ".join(names[checkpoint] for checkpoint, _ in group),
        )


def _by_layer(books: Heads) -> list[Floats]:
    """Return for each factor its share in each layer, in percent; nan where nothing changes."""
    lines = []
    for name in LISTS[1:]:
        layers = [values[np.isfinite(values)] for values in books.by_layer(name)]
        lines.append(np.array([100 * values.mean() if len(values) else np.nan for values in layers]))
    return lines


def _description(books: Heads) -> str:
    means = [float(np.nanmean(shares)) if np.isfinite(shares).any() else 0.0 for shares in _by_layer(books)]
    return ", ".join(f"{word} {percent(mean / 100, 0)}" for word, mean in zip(_WORDS, means, strict=True))


class LogitLedgerAggregator(Aggregator):
    words = VOCABULARY
    summary = LedgerSummary

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        yield from ((text, metric.name) for text in common for metric in ANSWERS)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        names = [number.name for number in METRICS if number.paired]
        if metric not in names:
            raise not_paired(condition, metric, names)
        read = side.samples(condition, [metric])
        there = np.isfinite(read.columns[metric])
        return read.ids.filter(pa.array(there)), read.columns[metric][there]

    def gatherers(self) -> Sequence[type[Gatherer]]:
        return (LedgerHeads,)


class LogitLedgerPresenter(HeadsPresenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Sequence[Table]:
        every = by_checkpoint(results, lambda text: under_of(text, "ledger"))
        return [_table(checkpoint, conditions, results.manifest) for checkpoint, conditions in every.items()]

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        first: dict[str, tuple[str, Any]] = {}
        for (checkpoint, condition), books in results.gathered(LedgerHeads).by_unit.items():
            first.setdefault(checkpoint, (condition, books))

        def by_layer() -> Iterator[Table]:
            for checkpoint, (condition, books) in first.items():
                yield layer_table(books, f"{checkpoint}: {self.words.label(condition)}, layer by layer")

        if self.tables(results):
            figures = tuple(ledger_figures(first))
            yield Section(
                "logits", "Causes of logit changes", lambda: self.section_values(results, by_layer()), figures
            )
