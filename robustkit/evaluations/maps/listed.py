"""Results of the families whose conditions stand in one table, which is listed from their metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from ...common.figure import Figure
from ...common.finding import Finding
from ...display.format import count, figure_cell
from ...display.table import Section, Table, side_by_side, with_flags
from ..aggregate import RecordReader, Results, readable_rows
from ..condition import FIRST, SHORT, BriefRow
from ..family import Aggregator, Presenter, Summary
from ..metrics import Metric, by_checkpoint
from ..presenting import finding_lines, of_family
from ..records import CheckpointRecords, PerSample, not_paired

if TYPE_CHECKING:
    from ...common.intervals import Floats
    from ...runs.manifest import Manifest
    from ..family import Looks


class ListedAggregator(Aggregator):
    """A family with records of its own. read: the columns that its rows are made of."""

    read: ClassVar[Collection[str]]

    def rows(self, condition: str, read: pa.Table, flags: list[Finding]) -> Iterator[Figure]:
        """Yield the rows of a condition. read: of the samples that could be read."""
        raise NotImplementedError

    def of_samples(self, side: CheckpointRecords, condition: str, metric: str) -> tuple[pa.Array, Floats]:
        """Return ids and a figure (n,), nan for samples that do not count. Raises RunError without records."""
        read = side.samples(condition, [metric])
        return read.ids, read.columns[metric]

    def summary(self, reading: RecordReader) -> Summary:
        return _ListedSummary(self, reading)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        if metric not in (names := [number.name for number in self.words.metrics if number.paired]):
            raise not_paired(condition, metric, names)
        ids, figures = self.of_samples(side, condition, metric)
        counted = np.isfinite(figures)
        return ids.filter(pa.array(counted)), figures[counted]


class _ListedSummary(Summary):
    def __init__(self, family: ListedAggregator, reading: RecordReader) -> None:
        self.family, self.reading = family, reading

    def add(self, condition: str) -> Iterator[Figure]:
        table, notes = self.reading.joined(self.reading.shards(condition, self.family.read))
        flags = [*self.reading.findings(condition, table), *notes]
        return self.family.rows(condition, readable_rows(table), flags)


class ListedPresenter(Presenter):
    """section_title: in sentence case. first: the heading of conditions. chief: metrics of the short table; the first
    is on the first page. counted: whose n stands for a row. signed: changes. optional: columns left out where empty."""

    section_title: ClassVar[str]
    first: ClassVar[str]
    chief: ClassVar[tuple[Metric, ...]]
    counted: ClassVar[Metric]
    signed: ClassVar[tuple[Metric, ...]] = ()
    optional: ClassVar[tuple[Metric, ...]] = ()
    note: ClassVar[str]
    template: ClassVar[str] = "plain"

    def tables(self, results: Sequence[Figure]) -> Sequence[Table]:
        ours = of_family(self.name)
        texts = {text for text in dict.fromkeys(row.condition for row in results) if ours(text)}
        every = by_checkpoint(results, lambda text: text if text in texts else None)
        return [self._table(checkpoint, conditions) for checkpoint, conditions in every.items()]

    def _table(self, checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]]) -> Table:
        names = {name for figures in conditions.values() for name in figures}
        columns = [metric for metric in self.words.metrics if metric.name in names or metric not in self.optional]
        rows = []
        for text, figures in conditions.items():
            n = figures[self.counted.name].n if self.counted.name in figures else 0
            cells = (figure_cell(figures.get(m.name), m.scale, sign="+" * (m in self.signed)) for m in columns)
            rows.append((self.words.label(text), count(n), *cells))
        headings = (self.first, "n", *(metric.short or metric.label for metric in columns))
        title = f"{checkpoint}: {self.section_title[0].lower()}{self.section_title[1:]}"
        return Table(title, headings, tuple(rows), (), self.note, checkpoint=checkpoint).said_once("n")

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterator[BriefRow]:
        texts = dict.fromkeys(text for text, _ in keys)
        for place, metric in enumerate(self.chief):
            heading, places = f"{self.section_title.lower()}: {metric.heading}", SHORT if place else (*SHORT, *FIRST)
            labels = {text: self.words.label(text, "table", manifest) for text in texts}
            yield from (BriefRow(heading, label, text, metric, places) for text, label in labels.items())

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            headline = self.chief[0].short or self.chief[0].label
            grids = side_by_side(self.section_title, tables, headline=headline, note=self.note)
            values = {"grids": with_flags(grids, finding_lines(results, of_family(self.name)))}
            yield Section(self.name.replace(" ", "-"), self.section_title, lambda: values, template=self.template)
