"""Turn records of two phases into an estimate."""

from __future__ import annotations

import math

from ...common.double_sampling import two_phase_share
from ...common.intervals import wilson
from ..family import Summary
from ..rows import Reading, Row, column_of, readable
from .condition import phases_of
from .measures import ESTIMATE, KEPT

_COLUMNS = ("sample_id", "error", "correct", "drawn")


class TwoPhaseSummary(Summary):
    """The rows of each condition."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Row]:
        phases = phases_of(condition)
        assert phases is not None
        table, notes = self.reading.joined(self.reading.shards(condition, _COLUMNS))
        read = readable(table)
        if not len(read):
            return []
        flags = [*self.reading.flags(condition, table.drop_columns("correct")), *notes]  # losses are of those drawn
        second = read.filter(read["drawn"])
        n, drawn = len(read), len(second)
        fallen = n - read["correct"].null_count - drawn
        kept = int(column_of(second, "correct").sum()) if drawn else 0
        share, (low, high) = two_phase_share(n, n - fallen, drawn, kept)
        rows: list[Row] = [(condition, ESTIMATE.name, share, n, low, high, flags)]
        rows.append((condition, KEPT.name, kept / drawn if drawn else math.nan, drawn, *wilson(kept, drawn), flags))
        return rows
