"""Language modelling as a task, and what its numbers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...common.differences import Difference, of_resamples
from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import count_units, effective_units
from ...common.intervals import intervals
from ...display.format import number
from ...display.table import CardPart, Section, Table
from ...display.text import Made, code
from ...evaluations.aggregate import Parts, RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import kind_of
from ...evaluations.family import family_of
from ...evaluations.metrics import Metric, mean_share
from ...evaluations.records import CheckpointRecords, Pairings, common_groups, common_ids, nothing_common
from ...protocol.card import SampleWords
from ...tasks.task import Task
from .results import FIGURES, HEADINGS, SUMS, figures, is_wanted, read_as, resampled, result_grids, result_rows, sums_of

if TYPE_CHECKING:
    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder

METRICS = (
    Metric(
        "perplexity",
        "perplexity",
        better=-1,
        drafted=True,
        hub=("perplexity", "perplexity of a token"),
        least=1,
        also=("ppl",),
    ),
    Metric("word_perplexity", "word perplexity", better=-1, hub=("word_perplexity", "perplexity of a word"), least=1),
    Metric("bits_per_byte", "bits per byte", better=-1, hub=("bits_per_byte", "bits per byte"), least=0),
    Metric("nll", "NLL", better=-1, paired=True, least=0),
    mean_share("token_accuracy", "top-1 % of tokens", hub=("accuracy", "top-1 accuracy of tokens")),
)


_COMPARED = ("perplexity", "token_accuracy")


class Text(Task):
    """The next token of a text."""

    name, headline, metrics = "text", "perplexity", METRICS
    compared = Pairings(shown=_COMPARED, ended=_COMPARED, groups=(), sets=())
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "text", "text", "text-generation"
    samples = SampleWords("document", "documents")
    truth, differs = ("tokens",), "{} has {:.0f} and {:.0f} tokens to predict"

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        rows = list[Figure]()
        for condition in conditions:
            family = family_of(kind_of(condition))
            table, notes = reading.joined(reading.shards(condition, partial(is_wanted, family)))
            read = readable_rows(table)
            if not len(read):
                continue
            _, findings = family.aggregator.extras(reading, condition, read)
            flags = [*reading.findings(condition, table), *notes, *findings]
            sums, n = sums_of(read), len(read)
            if broken := int(np.isnan(sums).any(axis=1).sum()):
                flags.append(Finding.of("text/non-finite-logits", count=broken, n=n))
            if lacking := column_of(read, "unknown").sum():
                flags.append(Finding.of("text/unknown-words", share=100 * lacking / sums[:, 0].sum()))
            values = figures(sums.sum(axis=0))
            groups = reading.groups(read["sample_id"])  # Documents, or groups of them, are resampled; few: no interval
            units = count_units(groups, n)
            enough, none = units >= FEWEST, [(np.nan, np.nan)] * len(values)
            bounds = intervals(resampled(sums, groups), effective_units(groups, n), values) if enough else none
            pairs = zip(FIGURES, values.tolist(), bounds, strict=True)
            rows += reading.figures(
                Figure(value, n, *ends, BOOTSTRAP, groups=groups.count if groups else 0).of(condition, name, flags)
                for name, value, ends in pairs
            )
        return rows, [], []

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        read = readable_rows(run.table(checkpoint, condition, [*SUMS, "error"]))
        return float(figures(sums_of(read).sum(axis=0))[0]) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        if metric not in FIGURES:
            return super().difference(first, second, condition, metric)
        read = [side.samples(condition, SUMS) for side in (first, second)]
        ids = common_ids([side.ids for side in read])
        if not len(ids):
            raise nothing_common(first, second, condition)
        groups, place = common_groups(first, second, ids), FIGURES.index(metric)
        sums = [np.stack([side.of(name, ids) for name in SUMS], axis=1) for side in read]
        before, after = (float(figures(each.sum(axis=0))[place]) for each in sums)
        with np.errstate(invalid="ignore"):  # over the same resampled documents
            drawn = (resampled(sums[1], groups) - resampled(sums[0], groups))[:, place]
        return of_resamples(before, after, drawn, len(ids), FEWEST, groups)

    def clean_clause(self, row: Figure) -> str:
        return f"perplexity {number(row.value, 1)} on {row.n} clean documents"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        if rows := result_rows(results.cells[checkpoint]):
            parts = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
            read = read_as(results.manifest.checkpoint(checkpoint))
            note = f"95 % intervals in brackets; n is the number of documents; {read}."
            yield CardPart("Clean and with changed words", note, [Table("", HEADINGS[:-1], tuple(parts))])

    def terminal(self, results: Results) -> Iterable[Table]:
        protocol, rows, heads = results.manifest.protocol, list[tuple[str, ...]](), list[str]()
        for entry in results.manifest.checkpoints:
            entries = result_rows(results.cells[entry.name])
            rows += [(entry.name, *row) for row in entries]
            heads += [f"{entry.name}, {entry.attention_words}, {read_as(entry)}"] * len(entries)
        if rows:
            title = f"protocol {protocol.tag}: {protocol.summary}"
            spare = (HEADINGS[5], HEADINGS[3], HEADINGS[4], "n")
            table = Table(title, ("checkpoint", *HEADINGS), tuple(rows), spare=spare)
            yield table.said_once("n").under_heads(heads)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        yield Section("results", "Results", lambda: {"grids": result_grids(results)}, template="texts")


TASK = Text()
