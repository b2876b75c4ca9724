"""Choose the samples that go through the second phase, from the records of the first."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...common.randomness import hashed
from ...protocol.condition import Condition
from ...runs.folder import RunFolder
from ..rows import readable

_COLUMNS = ("sample_id", "error", "correct", "broken_by")


@dataclass(frozen=True)
class Choice:
    """What the first phase says of samples, by id.

    fallen: those that it broke, with the stage. drawn: those that go through the second phase.
    """

    fallen: dict[str, str]
    drawn: frozenset[str]


def choose(run: RunFolder, checkpoint: str, condition: Condition, m: int) -> Choice:
    """Return the choice for a checkpoint: of those that stand, the m with the smallest hash of seed and id, so that a
    smaller m takes a part of a larger one's.

    Raises:
        RunError: the first phase has no records.
    """
    assert condition.after is not None
    read = readable(run.table(checkpoint, condition.after.text, _COLUMNS))
    fallen = read.filter(pa.compute.invert(read["correct"]))
    names = zip(fallen["sample_id"].to_pylist(), fallen["broken_by"].to_pylist(), strict=True)
    standing = read.filter(read["correct"])["sample_id"].to_pylist()
    seed = run.manifest.seed
    order = sorted(standing, key=lambda sample: (hashed(seed, "second phase", sample), sample))
    return Choice(dict(names), frozenset(order[:m]))
