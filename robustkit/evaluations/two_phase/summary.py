"""Turn records of two phases into an estimate."""

from __future__ import annotations

from ...common.double_sampling import two_phase_share
from ...common.intervals import wilson
from ..family import Summary, family_of
from ..kinds import kind_of
from ..rows import Reading, Row, column_of, readable
from .condition import phases_of
from .measures import ESTIMATE, KEPT

_COLUMNS = ("sample_id", "error", "correct", "drawn", "linf", "l2")


class TwoPhaseSummary(Summary):
    """The rows of each condition."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Row]:
        phases = phases_of(condition)
        assert phases is not None
        attack = family_of(kind_of(phases.attack))
        found = self.reading.shards(condition, lambda name: name in _COLUMNS or attack.wants(name))
        table, notes = self.reading.joined(found)
        read = readable(table)
        if not len(read):
            return []
        second = read.filter(read["drawn"])
        n, drawn = len(read), len(second)
        fallen = n - read["correct"].null_count - drawn
        if fallen < n and not drawn:
            return []  # the shards of those that were drawn are still to come
        known = table.drop_columns("correct")  # losses are of those drawn
        claimed, whole = phases.all_go_through, self.reading.flags(condition, known, phases.all_go_through)
        flags = [*whole, *notes, *attack.doubts(self.reading, claimed, second), *self._first(claimed)]
        flags = list(dict.fromkeys(flags))
        kept = int(column_of(second, "correct").sum()) if drawn else 0
        share, (low, high) = two_phase_share(n, n - fallen, drawn, kept)
        rows: list[Row] = [(condition, ESTIMATE.name, share, n, low, high, flags)]
        if drawn:
            rows.append((condition, KEPT.name, kept / drawn, drawn, *wilson(kept, drawn), flags))
        return rows

    def _first(self, condition: str) -> list[str]:
        """Return the flags of the phase that all samples go through."""
        table, notes = self.reading.joined(self.reading.shards(condition, ("sample_id", "error", "linf", "l2")))
        return [*self.reading.flags(condition, table), *notes]
