"""Turn the records of a checkpoint's watched attention into results."""

from __future__ import annotations

from ..family import Summary
from ..rows import Reading, Row, readable
from .condition import under_of
from .metrics import HeadSums, Sampled, WatchedHeads, attention_rows, is_wanted_of_attention


class AttentionSummary(Summary):
    """What heads do under each condition, and how much more than on the clean images."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.clean: Sampled | None = None

    def add(self, condition: str) -> list[Row]:
        reading = self.reading
        sums = HeadSums(reading.run.shard_path(reading.checkpoint, condition, 0).parent)
        table, _ = reading.joined(map(sums.taken, reading.shards(condition, is_wanted_of_attention)))
        sampled = Sampled.of(readable(table))
        heads, flags = sums.heads(), reading.flags(condition, table)
        if isinstance(kept := reading.gatherers.get(WatchedHeads), WatchedHeads):
            kept.put(reading.checkpoint, condition, heads)
        rows = list(attention_rows(condition, sampled, self.clean, heads, flags))
        if under_of(condition) == "clean":
            self.clean = sampled
        return rows
