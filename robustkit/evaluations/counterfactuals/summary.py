"""Turn the records of changed images into results."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...common.intervals import bootstrap, wilson
from ..family import Summary
from ..rows import FEWEST, Reading, Row, column_of, readable
from .measures import BEFORE, CHANGE, FLIPPED, FOLLOWED, RIGHT

_COLUMNS = {"sample_id", "error", "correct", "nll", "linf", "l2", "clean_correct", "flipped", "followed"}
_MASSES = ("mass_before", "mass_after")


class CounterfactualSummary(Summary):
    """The rows of each change. Flips and masses are of the images that are predicted right as they are."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Row]:
        table, notes = self.reading.joined(self.reading.shards(condition, {*_COLUMNS, *_MASSES}))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        if not len(read):
            return
        right = int(column_of(read, "correct").sum())
        yield condition, RIGHT.name, right / len(read), len(read), *wilson(right, len(read)), flags
        counted = read.filter(read["clean_correct"])
        if not (n := len(counted)):
            return
        for metric in (FLIPPED, FOLLOWED):
            values = column_of(counted, metric.name)
            if not np.isnan(values).any():
                yield condition, metric.name, values.mean().item(), n, *wilson(int(values.sum()), n), flags
        if "mass_before" not in read.column_names:
            return
        before, after = (column_of(counted, name) for name in _MASSES)
        for metric, values in ((BEFORE, before), (CHANGE, after - before)):
            mean = float(values.mean())
            ends = math.nan, math.nan
            if n >= FEWEST:
                ends = bootstrap(lambda counts, values=values: counts @ values / n, n, [mean])[0]  # type: ignore[misc]
            yield condition, metric.name, mean, n, *ends, flags
