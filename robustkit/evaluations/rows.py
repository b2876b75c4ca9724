"""Make rows of results from the columns of records."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.intervals import Floats, bootstrap, wilson
from ..data.layouts import FLAGGED
from ..display.text import amount
from ..protocol.condition import CLEAN, part_of
from ..runs.folder import SUMMARY_COLUMNS, RunFolder
from ..runs.manifest import CheckpointEntry, Manifest
from .setup_flags import guessing_flags, setup_flags

if TYPE_CHECKING:
    import pyarrow as pa


EXCEEDS = 1e-6
"""How far a perturbation may exceed its eps before the result is flagged: float32 rounding, in the units of records."""

Parts = tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]
"""Rows of single conditions, of means over corruptions, and of maps."""

Row = tuple[str, str, float, int, float, float, list[str]]

Number = tuple[str, float, int, float, float]
"""A metric, its value, n, and the ends of its interval."""

Rows = NDArray[np.int64]

STOPPED = (
    "what the samples show may have ended the run here, and intervals know nothing of that; read the gate's verdicts"
)
"""The flag of results of a sequential run that is not whole."""

FEWEST = 10  # fewer samples have no interval


def joined(shards: Iterable[pa.Table], unread: dict[str, str]) -> tuple[pa.Table, list[str]]:
    """Return the table of a condition, and how its attack deviated from its settings, each deviation once."""
    import pyarrow as pa

    tables, notes = [], dict[str, None]()
    for shard in shards:
        packed = (shard.schema.metadata or {}).get(b"notes", b"[]")
        notes |= dict.fromkeys(map(str, json.loads(packed)))
        if shard["error"].null_count < len(shard):
            lost = shard.filter(shard["error"].is_valid())
            unread |= zip(lost["sample_id"].to_pylist(), lost["error"].to_pylist(), strict=True)
        tables.append(shard.replace_schema_metadata())
    return pa.concat_tables(tables, promote_options="default"), list(notes)


def readable(table: pa.Table) -> pa.Table:
    """Return the rows of samples that could be read."""
    return table if table["error"].null_count == len(table) else table.filter(table["error"].is_null())


def result_row(checkpoint: str, manifest: Manifest, row: Row) -> dict[str, Any]:
    condition, metric, value, n, low, high, flags = row
    figures = (checkpoint, condition, metric, value, n, low, high, manifest.protocol.tag, flags)
    return dict(zip(SUMMARY_COLUMNS, figures, strict=True))


def record_flags(
    table: pa.Table, read: pa.Table, manifest: Manifest, checkpoint: str, condition: str, claimed: str = ""
) -> list[str]:
    """Return the flags of a condition's records. claimed: the attack whose claim they must keep, if not its own."""
    flags = []
    expected = min(manifest.data.n, part_of(condition) or manifest.data.n)
    if len(table) != expected:
        flags.append(f"incomplete: {len(table)} of {expected} samples; the same command continues")
        flags += [STOPPED] if manifest.is_sequential else []
    described = manifest.checkpoint(checkpoint)
    if described.weights.endswith("in part"):
        flags.append("weights were loaded in part; the rest is random")
    flags += (note for note in manifest.data.notes if note.startswith(FLAGGED))
    claim = manifest.claims.get(claimed or condition)
    changes = read.filter(read[claim.norm].is_valid()) if claim else read  # null where an attack took no part
    if claim and len(changes):
        largest = float(column_of(changes, claim.norm).max())
        space = manifest.protocol.space
        unit = "" if space == "sigma" else " in pixels"
        measured = f"largest {claim.norm} perturbation {amount(largest, claim.norm, space)}{unit}"
        if space == "normalised":
            flags.append(f"eps {claim.eps:.4g} is in normalised units: {measured}")
        # In normalised units a step of eps is eps * std in pixels, at most that of the widest channel.
        allowed = claim.eps * (max(described.preprocessing.std) if space == "normalised" else 1)
        if largest > allowed + EXCEEDS:
            flags.append(f"exceeds eps: {measured}, claimed {amount(allowed, claim.norm, space)}")
    if len(read) and "correct" in read.column_names and read["correct"].null_count == 0:  # else there is no loss
        broken = int((~np.isfinite(column_of(read, "nll"))).sum())
        if broken:
            flags.append(f"{broken} of {len(read)} samples have logits that are not finite; counted as wrong")
    if condition == CLEAN.text:
        flags += guessing_flags(read, competing_classes(manifest, described))
    unread = len(table) - len(read)
    if unread:
        flags.append(f"{unread} of {len(table)} {manifest.protocol.samples.many} could not be read; left out")
    return flags


def competing_classes(manifest: Manifest, checkpoint: CheckpointEntry) -> int:
    """Return among how many classes a checkpoint chooses: all that it has, except on data where only some
    compete.
    """
    return manifest.data.classes if manifest.data.layout in ("imagenet-a", "imagenet-r") else checkpoint.num_classes


def column_of(table: pa.Table, name: str) -> Floats:
    values: Floats = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def mean_of(values: Floats) -> tuple[float, int, float, float]:
    """Return the mean of (n,) figures, n, and its 95 % interval, which few figures have not."""
    n, mean = len(values), float(values.mean())
    if n < FEWEST:
        return mean, n, math.nan, math.nan
    return mean, n, *bootstrap(lambda counts: counts @ values / n, n, [mean])[0]


def share_of(hits: Floats | NDArray[np.bool_]) -> tuple[float, int, float, float]:
    """Return the share of (n,) samples that are hits, n, and Wilson's interval of it."""
    count, n = int(hits.sum()), len(hits)
    return count / n, n, *wilson(count, n)


class Gatherer:
    """What a section of the page gathers from records that the task scores, while the summary reads them.

    It keeps figures, not records: those of all samples would not fit into memory.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def wants(self, checkpoint: str, condition: str) -> bool:
        """Whether it takes the records of a checkpoint under a condition, which come in the order of the run."""
        raise NotImplementedError

    def needs(self, column: str) -> bool:
        """Whether it needs a column of them."""
        raise NotImplementedError

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        """Take the rows of samples that could be read, with at least the columns that it needs."""
        raise NotImplementedError

    def read(self, run: RunFolder) -> None:
        """Take everything it wants from the records, where no summary has read them for it."""
        for checkpoint, condition in run.units():
            if self.wants(checkpoint, condition):
                self.take(checkpoint, condition, readable(run.table(checkpoint, condition, self.needs)))


@dataclass
class Reading:
    """The records of one checkpoint, as families and tasks read them.

    unread: why a sample could not be read, by its id; filled while records are read. gatherers: what else takes them.
    """

    run: RunFolder
    manifest: Manifest
    checkpoint: str
    unread: dict[str, str]
    gatherers: Mapping[type[Gatherer], Gatherer] = field(default_factory=dict)

    def shards(self, condition: str, columns: Collection[str] | Callable[[str], bool]) -> Iterator[pa.Table]:
        """Yield the records of a condition, a table per shard."""
        return self.run.shards(self.checkpoint, condition, columns)

    def joined(self, shards: Iterable[pa.Table]) -> tuple[pa.Table, list[str]]:
        """Return the table of a condition, and how its attack deviated from its settings, each deviation once."""
        return joined(shards, self.unread)

    def flags(self, condition: str, table: pa.Table, claimed: str = "") -> list[str]:
        """Return the flags of a condition's records, `table`, that do not depend on the family. claimed: as of
        `record_flags`.
        """
        flags = record_flags(table, readable(table), self.manifest, self.checkpoint, condition, claimed)
        return [*flags, *self._of_setup]

    @cached_property
    def _of_setup(self) -> list[str]:
        return setup_flags(self.manifest, self.checkpoint, self.run.evidence(self.checkpoint, CLEAN.text))

    def rows(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return rows as summary.json has them."""
        return [result_row(self.checkpoint, self.manifest, row) for row in rows]
