"""Turn records of transfer into results: how right a checkpoint is on what was found for another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...common.intervals import wilson
from ...errors import RunError
from ...runs.binding import PROVENANCE
from ...runs.kept_images import DIGEST
from ..family import Summary
from ..right import Right, aligned
from ..rows import Reading, Row, readable
from .condition import Passed, passed_of
from .measures import ACCURACY, KEPT

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("sample_id", "error", "correct", "linf", "l2", "nll")


class TransferSummary(Summary):
    """The rows of each condition; of a checkpoint's own images also what rounding them to half precision changes."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Row]:
        passed = passed_of(condition)
        assert passed is not None
        shards = list(self.reading.shards(condition, COLUMNS))
        table, notes = self.reading.joined(shards)
        read = readable(table)
        if not len(read):
            return []
        flags = [*self.reading.flags(condition, table, passed.attack), *notes, *self._strangers(passed, shards)]
        here = Right.of(read)
        hits, n = int(here.right.sum()), len(read)
        rows: list[Row] = [(condition, ACCURACY.name, hits / n, n, *wilson(hits, n), flags)]
        if passed.source == self.reading.checkpoint and (own := right_under(self.reading, passed.attack)) is not None:
            before, after = aligned([own, here])
            alike, n = int((before == after).sum()), len(before)
            rows += [(condition, KEPT.name, alike / n, n, *wilson(alike, n), flags)] if n else []
        return rows

    def _strangers(self, passed: Passed, shards: Iterable[pa.Table]) -> list[str]:
        """Return a flag where images were scored that the records of their source are not about."""
        try:
            theirs = _digests(self.reading.run.shards(passed.source, passed.attack, ["sample_id"]))
        except RunError:
            return []  # none are there
        scored = _digests(shards)
        odd = [shard for shard, digest in scored.items() if theirs.get(shard, digest) != digest]
        if not odd:
            return []
        return [
            f"{len(odd)} of {len(scored)} shards were scored on other images than the records of {passed.source} are "
            "about; delete these records and run the same command again"
        ]


def right_under(reading: Reading, condition: str) -> Right | None:
    """Return which samples a checkpoint predicts right under a condition; None where there are no records."""
    try:
        return Right.of(readable(reading.run.table(reading.checkpoint, condition, ["sample_id", "error", "correct"])))
    except RunError:
        return None


def _digests(shards: Iterable[pa.Table]) -> dict[int, bytes]:
    """Return the digests of the adversarial images of records that state one, by shard."""
    stated = [shard.schema.metadata or {} for shard in shards]
    return {json.loads(each[PROVENANCE])["shard"]: each[DIGEST] for each in stated if DIGEST in each}
