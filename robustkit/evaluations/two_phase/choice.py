"""Choose the samples that go through the second phase, from the records of the first."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...common.randomness import drawn
from ...errors import RunError
from ...protocol.condition import Condition
from ...runs.folder import RunFolder
from ..rows import readable

_COLUMNS = ("sample_id", "error", "correct", "broken_by")


@dataclass(frozen=True)
class Choice:
    """What the first phase says about samples, by id.

    fallen: those that it broke, with the stage. drawn: those that go through the second phase.
    """

    fallen: dict[str, str]
    drawn: frozenset[str]


def choose(run: RunFolder, checkpoint: str, condition: Condition, m: int) -> Choice:
    """Return the choice for a checkpoint: of those that stand m at random, a smaller m part of a larger one.

    Raises:
        RunError: records of the first phase are missing: who is drawn follows from all of them.
    """
    assert condition.after is not None
    if missing := run.missing_units(checkpoint, condition.after.text):
        raise RunError(
            f"{run.path}: {missing} of {run.shard_count} shards of {checkpoint} under {condition.after.text} are "
            "missing, from which the second phase draws; compute them first"
        )
    read = readable(run.table(checkpoint, condition.after.text, _COLUMNS))
    fallen = read.filter(pa.compute.invert(read["correct"]))
    names = zip(fallen["sample_id"].to_pylist(), fallen["broken_by"].to_pylist(), strict=True)
    standing = read.filter(read["correct"])["sample_id"].to_pylist()
    return Choice(dict(names), drawn(standing, m, seed=run.manifest.seed, purpose="second phase"))
