"""Compute mean errors over corruptions from a checkpoint's results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..family import Overview
from ..rows import Reading, Row
from .condition import parse_corrupted
from .metrics import CorruptionSample, corruption_rows, doubts, why_no_mce
from .shares import conditions_of

if TYPE_CHECKING:
    import pyarrow as pa


class MeanErrors(Overview):
    """Mean errors of a classifier over severities and corruptions, and mCE."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.outcomes = reading, dict[str, CorruptionSample]()

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        if condition == "clean" or parse_corrupted(condition):
            like = next(iter(self.outcomes.values()), None)
            self.outcomes[condition] = CorruptionSample.of(read, flags, like=like)

    def rows(self) -> Iterator[Row]:
        manifest = self.reading.manifest
        described = manifest.checkpoint(self.reading.checkpoint)
        size, trees = described.preprocessing.input_size, manifest.corrupted.released
        rows = corruption_rows(self.outcomes, manifest.data.n, why_no_mce(manifest))
        for condition, metric, value, n, low, high, flags in rows:
            released = [trees[text] for text in conditions_of(condition) if text in trees]
            yield condition, metric, value, n, low, high, [*flags, *doubts(condition, size, released)]
