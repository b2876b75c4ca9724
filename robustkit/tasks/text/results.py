"""Perplexity, bits a byte, NLL and accuracy of tokens: from records into results and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.differences import Difference, of_resamples
from ...common.intervals import Floats, intervals, resampled_figures
from ...display.table import CardPart, Grid, Part, TextTable, side_by_side, with_flags
from ...display.text import Made, code
from ...evaluations.aggregate import FEWEST, Parts, RecordReader, Result, Results, column_of, readable_rows
from ...evaluations.condition import Clause, kind_of, name_of, words_of
from ...evaluations.family import Aggregator, AnyFamily, Family, Presenter, family_of
from ...evaluations.metrics import Cells, is_finite
from ...evaluations.presenting import flag_lines
from ...evaluations.records import CheckpointRecords, common_ids, nothing_common
from ...runs.description import shown_as
from ...runs.manifest import CheckpointEntry
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ...evaluations.metrics import Metric
    from ...runs.manifest import Manifest

SUMS = ("tokens", "words", "bytes", "nll", "right")  # the columns that every figure is made of
FIGURES = ("perplexity", "word_perplexity", "bits_per_byte", "nll", "token_accuracy")


def figures(sums: Floats) -> Floats:
    """Return the figures (..., 5), in the order of FIGURES, of sums (..., 5) in that of SUMS."""
    tokens, words, size, nll, right = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = np.exp(nll / tokens), np.exp(nll / words), nll / np.log(2) / size, nll / tokens, right / tokens
    return np.stack(parts, axis=-1)


def sums_of(table: pa.Table) -> Floats:
    """Return the sums of each document that could be read: (n, 5)."""
    return np.stack([column_of(table, name) for name in SUMS], axis=1)


def resampled(sums: Floats) -> Floats:
    return resampled_figures(lambda counts: figures(counts @ sums), len(sums))


def text_rows(reading: RecordReader, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint, of single conditions. Documents are resampled; few of them give no interval."""
    rows: list[dict[str, Any]] = []
    for condition in conditions:
        family = family_of(kind_of(condition))
        table, notes = reading.joined(reading.shards(condition, partial(_is_wanted, family)))
        read = readable_rows(table)
        if not len(read):
            continue
        flags = [*reading.flags(condition, table), *notes, *family.aggregator.doubts(reading, condition, read)]
        sums, n = sums_of(read), len(read)
        if broken := int(np.isnan(sums).any(axis=1).sum()):
            flags.append(f"{broken} of {n} documents have logits that are not finite")
        if lacking := column_of(read, "unknown").sum():
            share = 100 * lacking / sums[:, 0].sum()
            flags.append(f"{share:.1f} % of the tokens are of words that the vocabulary lacks, and count as one word")
        values = figures(sums.sum(axis=0))
        bounds = intervals(resampled(sums), n, values) if n >= FEWEST else [(np.nan, np.nan)] * len(values)
        pairs = zip(FIGURES, values.tolist(), bounds, strict=True)
        rows += reading.rows(Result(condition, name, value, n, *ends, flags) for name, value, ends in pairs)
    return rows, [], []


def _is_wanted(family: AnyFamily, column: str) -> bool:
    own = family.columns if isinstance(family, Family) else ()
    return column in (*SUMS, "unknown", "sample_id", "error", *own)


def recorded_difference(first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str) -> Difference:
    """Return the second's figure less the first's, over the same resampled documents. RunError without common ones."""
    read = [side.samples(condition, SUMS) for side in (first, second)]
    ids = common_ids([side.ids for side in read])
    if not len(ids):
        raise nothing_common(first, second, condition)
    place = FIGURES.index(metric)
    sums = [np.stack([side.of(name, ids) for name in SUMS], axis=1) for side in read]
    before, after = (float(figures(each.sum(axis=0))[place]) for each in sums)
    with np.errstate(invalid="ignore"):
        drawn = (resampled(sums[1]) - resampled(sums[0]))[:, place]
    return of_resamples(before, after, drawn, len(ids), FEWEST)


_COLUMNS = (
    ("perplexity", "perplexity [95 %]", 1, ".2f"),
    ("word_perplexity", "word perplexity [95 %]", 1, ".2f"),
    ("bits_per_byte", "bits a byte [95 %]", 1, ".4f"),
    ("nll", "NLL [95 %]", 1, ".4f"),
    ("token_accuracy", "top-1 % of tokens [95 %]", 100, ".2f"),
)
HEADINGS = ("condition", "n", *(heading for _, heading, _, _ in _COLUMNS), "flag")
_HEADLINE = HEADINGS[2]


def _rows(cells: Cells) -> list[tuple[str, ...]]:
    rows = []
    for text in dict.fromkeys(text for text, _ in cells if words_of(text).in_results):
        first = cells[text, _COLUMNS[0][0]]
        shown = (_cell(cells.get((text, name)), scale, form) for name, _, scale, form in _COLUMNS)
        rows.append((text, str(first["n"]), *shown, "⚑" if first["flags"] else ""))
    return rows


def _cell(row: Any, scale: float, form: str) -> str:
    """Return `434.70 [410.12, 460.03]`; a dash where there is no row."""
    if row is None or not is_finite(row["value"]):
        return "–" if row is None else "nan"
    value = format(scale * row["value"], form)
    if not is_finite(row["ci_low"]) or not is_finite(row["ci_high"]):
        return value
    return f"{value} [{scale * row['ci_low']:{form}}, {scale * row['ci_high']:{form}}]"


def _read_as(entry: CheckpointEntry) -> str:
    return ", ".join(shown_as(entry).values())


def terminal_table(results: Results) -> TextTable:
    protocol, rows, heads = results.manifest.protocol, list[tuple[str, ...]](), list[str]()
    for entry in results.manifest.checkpoints:
        own = _rows(results.cells[entry.name])
        rows += [(entry.name, *row) for row in own]
        heads += [f"{entry.name}, {entry.attention} attention, {_read_as(entry)}"] * len(own)
    title = f"protocol {protocol.tag}: {protocol.summary}"
    spare = (HEADINGS[5], HEADINGS[3], HEADINGS[4], "n")
    table = TextTable(title, ("checkpoint", *HEADINGS), tuple(rows), spare=spare)
    return table.said_once("n").under_heads(heads)


def result_grids(results: Results) -> list[Grid]:
    """Return the perplexities of all checkpoints side by side, then every figure."""
    parts = [
        Part(entry.name, HEADINGS[:-1], tuple(row[:-1] for row in _rows(results.cells[entry.name])))
        for entry in results.manifest.checkpoints
    ]
    said = dict.fromkeys(f"{entry.name}: {_read_as(entry)}." for entry in results.manifest.checkpoints)
    grids = side_by_side("Clean and with changed words", parts, headline=_HEADLINE, note=" ".join(said))
    return with_flags(grids, flag_lines(results, lambda text: words_of(text).in_results))


def card_parts(checkpoint: str, results: Results) -> Iterator[CardPart]:
    if rows := _rows(results.cells[checkpoint]):
        shown = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
        entry = results.manifest.checkpoint(checkpoint)
        note = f"In brackets 95 % intervals, n is the number of documents; {_read_as(entry)}."
        yield CardPart("Clean and with changed words", note, [("", HEADINGS[:-1], shown)])


_CHANGED = (
    "the words to predict are changed, too (card {card}): corruption can look like an improvement; card text keeps them"
)


class PerturbationsAggregator(Aggregator):
    """Records of perturbations into results."""

    words = VOCABULARY

    def doubts(self, reading: RecordReader, condition: str, read: pa.Table) -> list[str]:
        card = reading.manifest.protocol
        changes = card.parameters.get("scoring", {}).get("targets") == "changed"
        return [_CHANGED.format(card=card.name)] if changes else []


class PerturbationsPresenter(Presenter):
    """Results of perturbations for people."""

    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        rows = [row for (text, name), row in cells.items() if name == headline.name and words_of(text) is self.words]
        if rows:
            row = max(rows, key=lambda row: -headline.better * float(row["value"]))
            yield Clause(
                f"{headline.word} {row['value']:.1f} {name_of(row['condition'], 'sentence', manifest)}", (row,)
            )
