"""Read the columns of a checkpoint's records, for results and for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..common.groups import Groups
from ..common.intervals import Floats
from ..common.plugins import GROUPS, declared
from ..errors import PluginError, RunError, unknown
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..runs.metadata import SampleGroups, groups_of_run
from .condition import EVERY_FAMILY, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..runs.manifest import CheckpointEntry


@dataclass(frozen=True)
class Pairings:
    """The metrics by which a task compares checkpoints.

    shown: under each condition of its table. ended: the same where samples left at their first wrong prediction.
    groups: means over the conditions of a group, such as all severities of a corruption. sets: means over groups.
    """

    shown: tuple[str, ...]
    ended: tuple[str, ...]
    groups: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()


@dataclass(frozen=True)
class SampleColumns:
    """What was read from a record: (n,) ids in order, and (n,) figures by column; samples with errors are left out."""

    ids: pa.Array
    columns: Mapping[str, Floats]

    def of(self, name: str, ids: pa.Array) -> Floats:
        """Return a column for the samples with these ids, all of which are there."""
        return align(self.ids, self.columns[name], ids)


PerSample = tuple["pa.Array", Floats]  # of each sample that could be read: (n,) ids in order, and (n,) figures


@dataclass(frozen=True)
class CheckpointRecords:
    """A checkpoint of a run. What was read from its records is kept; memo: what a task keeps as well."""

    run: RunFolder
    checkpoint: str
    memo: dict[tuple[str, str], Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _samples: dict[str, SampleColumns] = field(default_factory=dict, init=False, repr=False, compare=False)
    _absent: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _order: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        return self.run.manifest

    @cached_property
    def described(self) -> CheckpointEntry:
        return self.manifest.checkpoint(self.checkpoint)

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """The conditions that it has records of, in the order of the run."""
        return tuple(condition for name, condition in self.run.units() if name == self.checkpoint)

    @cached_property
    def sample_groups(self) -> SampleGroups | None:
        """The groups of the run's samples; None where each stands for itself."""
        return groups_of_run(self.run)

    def forget(self) -> None:
        for store in (self._samples, self._absent, self._order, self.memo):
            store.clear()

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        """Return its rows under a condition. Raises RunError where there are none."""
        return self.run.table(self.checkpoint, condition, columns)

    def samples(self, condition: str, columns: Sequence[str]) -> SampleColumns:
        """Return at least these columns under a condition. Raises RunError where records or a column are missing."""
        held, absent = self._samples.get(condition), self._absent.setdefault(condition, set())
        names = dict.fromkeys(columns)
        missing = [name for name in names if name not in absent and (held is None or name not in held.columns)]
        if missing or held is None:
            table = self.table(condition, ["sample_id", *missing, "error"])
            absent.update(name for name in missing if name not in table.column_names)
            table = table.filter(table["error"].is_null())
            ids, order = self._sorted(table["sample_id"].combine_chunks())
            present = [name for name in missing if name not in absent]
            read = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64)[order] for name in present}
            held = self._samples[condition] = SampleColumns(ids, read if held is None else {**held.columns, **read})
        if lacking := [name for name in names if name in absent]:
            raise RunError(
                f"{self.run.path}: the records of {self.checkpoint} under {condition} have no {', '.join(lacking)}; "
                "compare another figure, or rerun the audit with it"
            )
        return held

    def keep(self, condition: str, read: pa.Table, columns: Sequence[str]) -> None:
        """Keep these columns of the readable rows of a condition, so that no record is opened for them again."""
        ids, order = self._sorted(read["sample_id"].combine_chunks())
        present = [name for name in columns if name in read.column_names]
        values = {name: read[name].to_numpy(zero_copy_only=False).astype(np.float64)[order] for name in present}
        self._samples[condition] = SampleColumns(ids, values)

    def _sorted(self, ids: pa.Array) -> tuple[pa.Array, Any]:
        """Return the sorted ids and the places they had; conditions mostly share both."""
        import pyarrow.compute as pc

        if not (self._order and self._order[0].equals(ids)):
            order = pc.sort_indices(ids).to_numpy()
            self._order[:] = [ids, ids.take(order), order]
        return self._order[1], self._order[2]


def align(ids: pa.Array, values: Floats, chosen_ids: pa.Array) -> Floats:
    """Return the values of the wanted samples, which are in the same order."""
    if ids.equals(chosen_ids):
        return values
    import pyarrow.compute as pc

    chosen: Floats = values[pc.is_in(ids, value_set=chosen_ids).to_numpy(zero_copy_only=False)]
    return chosen


def common_ids(ids: Sequence[pa.Array]) -> pa.Array:
    """Return the ids that are in all of these, in the order of the first."""
    import pyarrow.compute as pc

    return reduce(lambda kept, other: kept if kept.equals(other) else kept.filter(pc.is_in(kept, value_set=other)), ids)


def common_places(ids: Sequence[pa.Array | pa.ChunkedArray]) -> list[npt.NDArray[np.int64]]:
    """Return for each of several records the places of the samples that all have, in the order of the first."""
    import pyarrow.compute as pc

    places = [pc.fill_null(pc.index_in(ids[0], value_set=each), -1).to_numpy().astype(np.int64) for each in ids]
    every = np.stack(places)
    return list(every[:, (every >= 0).all(axis=0)])


def common_groups(first: CheckpointRecords, second: CheckpointRecords, ids: pa.Array) -> Groups | None:
    """Return the groups of samples of two checkpoints, known of one or of both; None where each stands for itself.
    Raises RunError where the two are grouped in other ways."""
    groups = [side.sample_groups.of(ids) for side in (first, second) if side.sample_groups is not None]
    if len(groups) == 2 and not _same_groups(*groups):
        columns = " and ".join(
            f"{side.sample_groups.column} of {side.run.path}" for side in (first, second) if side.sample_groups
        )
        raise RunError(f"{columns} group the common samples in other ways; give --groups or --groups-from")
    return groups[0] if groups else None


def _same_groups(one: Groups | None, other: Groups | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = len(np.unique(np.stack([one.codes, other.codes]), axis=1).T)
    return pairs == one.count == other.count


def nothing_common(first: CheckpointRecords, second: CheckpointRecords, condition: str) -> RunError:
    return RunError(
        f"{second.run.path}: {first.checkpoint} and {second.checkpoint} have no common sample under {condition}; "
        "audit both again"
    )


def not_paired(condition: str, metric: str, paired: Sequence[str]) -> RunError:
    """Return the error for a number that is not a mean over samples under a condition. paired: those that are."""
    return RunError(unknown(f"figure of pairs under {condition}", metric, paired))


Bools = npt.NDArray[np.bool_]


def check_plugins(manifest: Manifest) -> None:
    """Raise PluginError where a plug-in that reads the records of a run is missing, has other code, or took no part."""
    for entry in manifest.used_plugins:
        here = [plugin for plugin in declared(entry.group) if plugin.name == entry.name]
        if entry.group not in ("families", "corruptions", "explainers", "tasks"):
            continue  # not needed to read the texts of conditions
        what = f"{entry.name} ({GROUPS[entry.group]}, {f'{entry.distribution} {entry.version}'.rstrip()})"
        if not here:
            why = "which is not installed: install it, or give its file with --plugin"
            raise PluginError(f"the run needs plug-in {what}, {why}")
        if all(plugin.source != entry.source for plugin in here):
            raise PluginError(
                f"the run was made with plug-in {what} of source {entry.source[:12]}…, here it is of source "
                f"{here[0].source[:12]}…: install that one, or make the run again"
            )
    families = {entry.name for entry in manifest.used_plugins if entry.group == "families"}
    for text in manifest.conditions:
        plugin = EVERY_FAMILY.plugin(kind_of(text))
        if plugin is not None and plugin.name not in families:
            raise PluginError(f"{text} of the run is not of {plugin.words}, which has taken its name: leave that out")
