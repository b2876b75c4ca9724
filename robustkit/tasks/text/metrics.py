"""Perplexity, bits a byte, NLL and accuracy of tokens, from the sums of records."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.differences import Difference, of_resamples
from ...common.intervals import Floats, intervals, resampled_figures
from ...evaluations.family import family_of
from ...evaluations.kinds import kind_of
from ...evaluations.recorded import Recorded, common_ids, nothing_common
from ...evaluations.rows import FEWEST, Parts, Reading, column_of, readable
from .columns import SUMS

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Return the figures of resampled documents, (R, 5)."""
    return resampled_figures(lambda counts: figures(counts @ sums), len(sums))


def text_rows(reading: Reading, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint, of single conditions. Documents are resampled; few of them give no interval."""
    rows: list[dict[str, Any]] = []
    for condition in conditions:
        family = family_of(kind_of(condition))
        table, notes = reading.joined(reading.shards(condition, partial(_is_wanted, family.wants)))
        read = readable(table)
        if not len(read):
            continue
        flags = [*reading.flags(condition, table), *notes, *family.doubts(reading, condition, read)]
        sums, n = sums_of(read), len(read)
        if broken := int(np.isnan(sums).any(axis=1).sum()):
            flags.append(f"{broken} of {n} documents have logits that are not finite")
        if lacking := column_of(read, "unknown").sum():
            share = 100 * lacking / sums[:, 0].sum()
            flags.append(f"{share:.1f} % of the tokens are of words that the vocabulary lacks, and count as one word")
        values = figures(sums.sum(axis=0))
        bounds = intervals(resampled(sums), n, values) if n >= FEWEST else [(np.nan, np.nan)] * len(values)
        pairs = zip(FIGURES, values.tolist(), bounds, strict=True)
        rows += reading.rows((condition, name, value, n, *ends, flags) for name, value, ends in pairs)
    return rows, [], []


def _is_wanted(wants: Any, column: str) -> bool:
    return column in (*SUMS, "unknown", "sample_id", "error") or wants(column)


def recorded_difference(first: Recorded, second: Recorded, condition: str, metric: str) -> Difference:
    """Return how the second's figure differs from the first's under a condition, over the same resampled documents.

    Raises:
        RunError: there are no records, or no document is in common.
    """
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


def other_text(first: Recorded, second: Recorded, condition: str) -> tuple[int, str]:
    """Return how many documents both have, and which of them has other tokens in the second run; empty if none."""
    sides = [side.samples(condition, ["tokens"]) for side in (first, second)]
    ids = common_ids([side.ids for side in sides])
    before, after = (side.of("tokens", ids) for side in sides)
    places = np.flatnonzero(before != after)[:1]
    said = (f"{ids[p].as_py()} has {before[p]:.0f} and {after[p]:.0f} tokens to predict" for p in places)
    return len(ids), "".join(said)
