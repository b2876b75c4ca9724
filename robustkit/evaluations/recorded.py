"""The records of a checkpoint for a comparison: each file is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.intervals import Floats
from ..errors import RunError, unknown

if TYPE_CHECKING:
    import pyarrow as pa

    from ..runs.folder import RunFolder
    from ..runs.manifest import CheckpointEntry, Manifest


@dataclass(frozen=True)
class Compared:
    """The metrics by which a task compares checkpoints.

    shown: under each condition of its table. ended: the same where samples left at their first wrong prediction.
    groups: means over the conditions of a group, such as all severities of a corruption. sets: means over groups.
    """

    shown: tuple[str, ...]
    ended: tuple[str, ...]
    groups: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Samples:
    """What was read from a record: (n,) ids in order, and (n,) figures by column; samples with errors are left out."""

    ids: pa.Array
    columns: Mapping[str, Floats]

    def of(self, name: str, ids: pa.Array) -> Floats:
        """Return a column for the samples with these ids, all of which are there."""
        return aligned(self.ids, self.columns[name], ids)


PerSample = tuple["pa.Array", Floats]
"""A figure for each sample that could be read: (n,) ids in order, and (n,) figures."""


@dataclass(frozen=True)
class Recorded:
    """A checkpoint of a run. What was read from its records is kept, so that each is read once.

    memo: what a task keeps besides.
    """

    run: RunFolder
    checkpoint: str
    memo: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _samples: dict[str, Samples] = field(default_factory=dict, init=False, repr=False, compare=False)
    _absent: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _order: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        """Its run's run.json."""
        return self.run.manifest

    @cached_property
    def described(self) -> CheckpointEntry:
        """The checkpoint as run.json has it."""
        return self.manifest.checkpoint(self.checkpoint)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that it has records of, in the order of the run."""
        return tuple(condition for name, condition in self.run.units() if name == self.checkpoint)

    def forget(self) -> None:
        """Drop what was read."""
        for kept in (self._samples, self._absent, self._order, self.memo):
            kept.clear()

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        """Return its rows under a condition. Raises RunError where there are none."""
        return self.run.table(self.checkpoint, condition, columns)

    def samples(self, condition: str, columns: Sequence[str]) -> Samples:
        """Return at least these columns under a condition.

        Raises:
            RunError: there are no records, or they lack a column.
        """
        kept, absent = self._samples.get(condition), self._absent.setdefault(condition, set())
        wanted = dict.fromkeys(columns)
        missing = [name for name in wanted if name not in absent and (kept is None or name not in kept.columns)]
        if missing or kept is None:
            table = self.table(condition, ["sample_id", *missing, "error"])
            absent.update(name for name in missing if name not in table.column_names)
            table = table.filter(table["error"].is_null())
            ids, order = self._sorted(table["sample_id"].combine_chunks())
            there = [name for name in missing if name not in absent]
            read = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)[order] for name in there}
            kept = self._samples[condition] = Samples(ids, read if kept is None else {**kept.columns, **read})
        if lacking := [name for name in wanted if name in absent]:
            raise RunError(
                f"{self.run.path}: the records of {self.checkpoint} under {condition} have no {', '.join(lacking)}; "
                "compare another figure, or run the audit again with it"
            )
        return kept

    def _sorted(self, ids: pa.Array) -> tuple[pa.Array, Any]:
        """Return the sorted ids and the places they had; conditions mostly share both."""
        import pyarrow.compute as pc

        if not (self._order and self._order[0].equals(ids)):
            order = pc.sort_indices(ids).to_numpy()
            self._order[:] = [ids, ids.take(order), order]
        return self._order[1], self._order[2]


def aligned(ids: pa.Array, values: Floats, wanted: pa.Array) -> Floats:
    """Return the values of the wanted samples, which are in the same order."""
    if ids.equals(wanted):
        return values
    import pyarrow.compute as pc

    chosen: Floats = values[pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False)]
    return chosen


def common_ids(ids: Sequence[pa.Array]) -> pa.Array:
    """Return the ids that are in all of these, in the order of the first."""
    import pyarrow.compute as pc

    return reduce(lambda kept, other: kept if kept.equals(other) else kept.filter(pc.is_in(kept, value_set=other)), ids)


def nothing_common(first: Recorded, second: Recorded, condition: str) -> RunError:
    """Return the error for two checkpoints whose records share no sample."""
    return RunError(
        f"{second.run.path}: {first.checkpoint} and {second.checkpoint} have no sample in common under {condition}; "
        "audit both again"
    )


def not_paired(condition: str, metric: str, paired: Sequence[str]) -> RunError:
    """Return the error for a number that is not a mean over samples under a condition. paired: those that are."""
    return RunError(unknown(f"figure of pairs under {condition}", metric, paired))
