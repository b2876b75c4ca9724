"""Compute top-1, top-5, NLL and calibration from records of classifiers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.intervals import Floats, bootstrap, calibration_error, calibration_interval, wilson
from ...errors import PluginError
from ...evaluations.family import Family, Summary, families_of, family_of
from ...evaluations.kinds import kind_of, plugged
from ...evaluations.metric import named
from ...evaluations.rows import Gatherer, Number, Parts, Reading, column_of, readable
from .measures import METRICS

if TYPE_CHECKING:
    import pyarrow as pa

_READ = {"sample_id", "error", "correct", "top5", "nll", "confidence", "linf", "l2"}


def classification_rows(reading: Reading, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint: of single conditions, of means over corruptions, and of several maps."""
    rows: list[dict[str, Any]] = []
    summaries: dict[Family, Summary | None] = {}
    overviews = [
        overview for family in families_of(reading.manifest) if (overview := family.overview(reading)) is not None
    ]
    for condition in conditions:
        family = family_of(kind_of(condition))
        if family not in summaries:
            summaries[family] = family.summary(reading)
        if (summary := summaries[family]) is not None:
            rows += reading.rows(summary.add(condition))
            continue
        takers = [gatherer for gatherer in reading.gatherers.values() if gatherer.wants(reading.checkpoint, condition)]
        table, notes = reading.joined(reading.shards(condition, partial(_is_wanted, family, takers)))
        read = readable(table)
        for taker in takers:
            taker.take(reading.checkpoint, condition, read)
        flags = [*reading.flags(condition, table), *notes, *family.doubts(reading, condition, read)]
        early = reading.manifest.stops_early(condition)
        numbers = [*_classification(read, early), *(checked_numbers(family, condition, read) if len(read) else ())]
        rows += reading.rows((condition, *number, flags) for number in numbers)
        for overview in overviews if numbers else ():
            overview.take(condition, read, flags)
    means = [row for overview in overviews for row in reading.rows(overview.rows())]
    for overview in overviews:
        odd = overview.flags()
        rows, means = (
            [row | {"flags": [*row["flags"], *odd.get(row["condition"], [])]} for row in some] for some in (rows, means)
        )
    return rows, means, [row for summary in summaries.values() if summary for row in reading.rows(summary.finish())]


def checked_numbers(family: Family, condition: str, read: pa.Table) -> Iterator[Number]:
    """Yield the numbers of a family. Raise PluginError for one that is not its own."""
    for number in family.numbers(read):
        if plugged(kind_of(condition)) is not None and (
            named(family.words.metrics, number[0]) is None or named(METRICS, number[0]) is not None
        ):
            raise PluginError(
                f"the family of {condition} gives {number[0]!r}; expected one of the metrics of its words, with a name "
                "that no task has"
            )
        yield number


def _is_wanted(family: Family, takers: Sequence[Gatherer], column: str) -> bool:
    """Whether results of a condition whose images the task scores, or a gatherer of its records, need a column."""
    return column in _READ or family.wants(column) or any(taker.needs(column) for taker in takers)


def _classification(read: pa.Table, early: bool) -> list[Number]:
    """Return metric, value, n and interval. early: samples left at their first wrong prediction: only top-1 counts."""
    n = len(read)
    if n == 0:
        return []
    correct = column_of(read, "correct")
    rows = []
    for name, column in (("top1", correct), ("top5", column_of(read, "top5"))):
        hits = int(column.sum())
        rows.append((name, hits / n, n, *wilson(hits, n)))
    rows = rows[:1] if early else [*rows, *_losses(read, correct)]
    for norm in ("linf", "l2"):
        largest = float(column_of(read, norm).max())
        if largest > 0:
            rows.append((f"{norm}_max", largest, n, math.nan, math.nan))
    return rows


def _losses(read: pa.Table, correct: Floats) -> list[Number]:
    """Return NLL and calibration error."""
    n, confidence, nll = len(read), column_of(read, "confidence"), column_of(read, "nll")
    finite = np.isfinite(confidence)
    sure, right = confidence[finite], correct[finite]
    loss = float(nll.mean())

    def resampled(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 times an infinite loss is not a number
            return counts @ nll / n

    return [
        ("nll", loss, n, *bootstrap(resampled, n, [loss])[0]),
        ("ece", calibration_error(sure, right), n, *calibration_interval(sure, right)),
    ]
