"""Read the columns of a checkpoint's records: for results, for comparisons, and divided into parts.

A unit is (checkpoint, condition, shard). Parts have a share of each condition's shards that differs by one shard at
most. With four shards or more for each part, all conditions of a shard are of one part, which decodes it once;
otherwise conditions are divided, too. What takes the images that another condition made (watched attention, what is
passed on) is of the same part. What is measured before an attack's units, or before all, goes with one of these units,
so that it is there when that unit is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import betainc

from ..common.intervals import Floats
from ..common.plugins import GROUPS, declared
from ..errors import DamagedRecord, PluginError, ProtocolError, RunError, unknown
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from .condition import EVERY_FAMILY, kind_of, pattern_of, takes_images

if TYPE_CHECKING:
    import pyarrow as pa

    from ..runs.manifest import CheckpointEntry


@dataclass(frozen=True)
class Layer:
    """One attention layer. keys: the number of keys among which a query divides its attention."""

    name: str
    heads: int
    keys: int


def head_name(layers: Sequence[Layer], place: int) -> str:
    """Return `blocks.3.attn head 0` of the head at a place among those of all layers; both are counted from 0."""
    for layer in layers:
        if place < layer.heads:
            return f"{layer.name} head {place}"
        place -= layer.heads
    raise IndexError(place)


def encode_layers(layers: Sequence[Layer]) -> bytes:
    return json.dumps([[layer.name, layer.heads, layer.keys] for layer in layers]).encode()


def decode_layers(metadata: Mapping[bytes, bytes] | None, where: Path) -> tuple[Layer, ...]:
    try:
        layers = tuple(Layer(*entry) for entry in json.loads((metadata or {})[b"attention"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        layers = ()
    fine = 0 < len(layers) <= 4096 and all(map(_is_layer, layers))
    if not fine or sum(layer.heads for layer in layers) > 1 << 16:
        raise DamagedRecord(f"{where}: a record does not record its layers; delete it and run again")
    return layers


def _is_layer(layer: Layer) -> bool:
    counts = all(type(count) is int and 0 < count < 1 << 31 for count in (layer.heads, layer.keys))
    return counts and isinstance(layer.name, str) and len(layer.name) <= 200 and layer.name.isprintable()


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


def nothing_common(first: CheckpointRecords, second: CheckpointRecords, condition: str) -> RunError:
    return RunError(
        f"{second.run.path}: {first.checkpoint} and {second.checkpoint} have no common sample under {condition}; "
        "audit both again"
    )


def not_paired(condition: str, metric: str, paired: Sequence[str]) -> RunError:
    """Return the error for a number that is not a mean over samples under a condition. paired: those that are."""
    return RunError(unknown(f"figure of pairs under {condition}", metric, paired))


Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Outcomes:
    """Whether samples, by their ids, were predicted right under some condition."""

    ids: pa.ChunkedArray
    right: Bools

    @classmethod
    def of(cls, table: pa.Table) -> Outcomes:
        """Return the answers of a condition's readable rows."""
        return cls(table["sample_id"], table["correct"].fill_null(False).to_numpy().astype(bool))


def aligned_outcomes(rights: Sequence[Outcomes]) -> list[Bools]:
    """Return one array for each condition, of the samples that all of them have."""
    places = common_places([each.ids for each in rights])
    return [each.right[place] for each, place in zip(rights, places, strict=True)]


def sign_test(more: int, fewer: int) -> float:
    """Return the chance of at least `more` heads in `more + fewer` throws of a fair coin: McNemar's exact."""
    return float(betainc(more, fewer + 1, 0.5)) if more else 1.0  # the tail of the binomial distribution


ENOUGH = 4  # shards for each process from which the conditions of a shard stay together


@dataclass(frozen=True)
class RunPart:
    """One of `count` parts of a run; `number` counts from 1."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> RunPart:
        """Return the part that `3/64` means. Raises ProtocolError where it means none."""
        number, _, count = text.strip().partition("/")
        if all(each.isascii() and each.isdecimal() and len(each) < 10 for each in (number, count)):
            part = cls(int(number), int(count))
            if 1 <= part.number <= part.count:
                return part
            if part.count:
                raise ProtocolError(f"--part {text}: expected 1/{part.count} to {part.count}/{part.count}")
        raise ProtocolError(f"--part {text}: expected one part of several, such as 3/64")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, checkpoint: str, condition: str, shard: int, shards: int) -> bool:
        """Whether a unit is of this part. shards: of the run."""
        return unit_part(checkpoint, condition, shard, shards, self.count) == self.number

    def measures(self, checkpoint: str, condition: str, shards: int) -> bool:
        """Whether what is measured besides the units of a condition is of this part."""
        return self.holds(checkpoint, condition, _number(checkpoint, condition) % max(shards, 1), shards)


def unit_part(checkpoint: str, condition: str, shard: int, shards: int, parts: int) -> int:
    """Return the number of the part, from 1 on, that a unit is of. shards: of the run."""
    if takes_images(condition):  # which the same process makes
        parameters = pattern_of(condition).given
        checkpoint, condition = parameters.get("from", checkpoint), parameters.get("under", condition)
    together = shards >= ENOUGH * parts
    return (_number(checkpoint, "" if together else condition) + shard) % parts + 1


def missing_by_part(run: RunFolder, parts: int) -> dict[int, list[str]]:
    """Return the units of a run that have no record, in words, by the part that they are of."""
    missing: dict[int, list[str]] = {}
    for checkpoint, condition in run.manifest.pairs:
        for shard in run.missing_shards(checkpoint, condition):
            number = unit_part(checkpoint, condition, shard, run.shard_count, parts)
            missing.setdefault(number, []).append(f"{checkpoint} under {condition}, shard {shard}")
    return dict(sorted(missing.items()))


def _number(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()[:8], "big")


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
