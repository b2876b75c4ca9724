"""Compare two checkpoints on the same samples: differences with intervals that take the pairing into account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..common.differences import Difference
from ..errors import RunError
from ..evaluations.cells import Row
from ..evaluations.kinds import words_of
from ..evaluations.recorded import Recorded
from ..runs.manifest import CheckpointEntry
from ..tasks.task import task_of
from .summary import survey

_IDENTITY = ("sha256", "arch", "code_sha256", "attention", "preprocessing", "weights", "windows", "heads")


@dataclass(frozen=True)
class Side(Recorded):
    """A checkpoint of a run, with its results."""

    @cached_property
    def results(self) -> list[Row]:
        """Its rows of summary.json; computed from the records where that file is missing or was altered."""
        try:
            rows: Sequence[Row] = self.run.summary()
        except RunError:
            rows = survey(self.run)
        return [row for row in rows if row["checkpoint"] == self.checkpoint]


def paired_difference(first: Side, second: Side, condition: str, metric: str = "top1") -> Difference:
    """Return how `second` differs from `first` under a condition that both runs name alike.

    Whether the two runs may be compared (same protocol, seed, labels) is for the caller to say.

    metric: of the task, such as top1 or miou, or of the condition's family: mean_error under a mean over corruptions
    such as `in-c(preset=cifar)`; a score of maps that is a mean over samples, over those whose clean images both
    predict right. Infinite losses (from logits that are not finite) make the difference of losses nan.

    One checkpoint differs from itself by 0, of which the interval is 0, too.

    Raises:
        RunError: the records of one of them are missing, they have no sample in common, or there is no such metric.
    """
    difference = task_of(first.manifest).difference(first, second, condition, metric)
    if difference.value == 0 and is_same_model(first, second):
        return replace(difference, ci_low=0.0, ci_high=0.0)
    return difference


def lacking(side: Side, condition: str, metric: str = "") -> str:
    """Return in words which records a side lacks for a figure under a condition; empty where it lacks none."""
    n = side.manifest.data.n
    for text in words_of(condition).needs(condition, metric, side.manifest.conditions):
        if gone := side.run.lacking(side.checkpoint, text):
            return f"incomplete: {n - gone} of {n} samples under {text}; the same command continues"
    return ""


def is_same_model(first: Side, second: Side) -> bool:
    """Whether both sides are one checkpoint, whose differences are 0 on any samples."""
    return same_identity(first.described, second.described)


def same_identity(first: CheckpointEntry, second: CheckpointEntry) -> bool:
    """Whether two descriptions are of one checkpoint, shown images in one way."""
    before, after = first.to_plain(), second.to_plain()
    return all(before.get(key) == after.get(key) for key in _IDENTITY)
