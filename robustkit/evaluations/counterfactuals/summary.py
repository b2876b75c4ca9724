"""Turn the records of changed images into results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..family import Summary
from ..rows import Reading, Row, column_of, mean_of, readable, share_of
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
        yield condition, RIGHT.name, *share_of(column_of(read, "correct")), flags
        counted = read.filter(read["clean_correct"])
        if not len(counted):
            return
        for metric in (FLIPPED, FOLLOWED):
            values = column_of(counted, metric.name)
            if not np.isnan(values).any():
                yield condition, metric.name, *share_of(values), flags
        if "mass_before" not in read.column_names:
            return
        before, after = (column_of(counted, name) for name in _MASSES)
        told = np.isfinite(before) & np.isfinite(after)
        if not told.any():
            return
        if lost := int((~told).sum()):
            flags = [*flags, f"{lost} of {len(told)} images have a map that is constant or not finite; left out"]
        for metric, values in ((BEFORE, before), (CHANGE, after - before)):
            yield condition, metric.name, *mean_of(values[told]), flags
