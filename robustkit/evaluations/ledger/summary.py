"""Turn a checkpoint's records of the logit ledger into results: means over samples, and over the samples of a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import Floats
from ...errors import DamagedRecord
from ..family import Summary
from ..layers import Layer, decode_layers
from ..rows import Gatherer, Number, Reading, Row, column_of, mean_of, readable, share_of
from .condition import under_of
from .measures import BACK, LISTS, METRICS

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.folder import RunFolder
    from ...runs.manifest import Manifest


class LedgerSummary(Summary):
    """Why logits change under each condition, and what brings predictions back."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Row]:
        names = ("sample_id", "error", *(metric.name for metric in METRICS))
        table, notes = self.reading.joined(self.reading.shards(condition, names))
        flags = [*self.reading.flags(condition, table), *notes]
        if isinstance(kept := self.reading.gatherers.get(LedgerHeads), LedgerHeads):
            kept.keep(self.reading.run, self.reading.checkpoint, condition)
        return [(condition, *figures, flags) for figures in numbers(readable(table))]


def numbers(read: pa.Table) -> Iterator[Number]:
    """Yield metric, value, n and 95 % interval of each figure, over the samples that have it."""
    for metric in METRICS:
        values = column_of(read, metric.name)
        values = values[np.isfinite(values)]
        if len(values):
            is_share = metric in BACK and np.isin(values, (0, 1)).all()
            yield metric.name, *(share_of(values) if is_share else mean_of(values))


@dataclass(frozen=True)
class Books:
    """The figures of the T heads of all layers on n samples. values: by name of `LISTS` (T,), means over the samples
    where they are finite.
    """

    layers: tuple[Layer, ...]
    n: int
    values: Mapping[str, Floats]

    def by_layer(self, name: str) -> list[Floats]:
        """Return a figure split by layer, (heads,) each."""
        return np.split(self.values[name], np.cumsum([layer.heads for layer in self.layers])[:-1])


class LedgerHeads(Gatherer):
    """The books by checkpoint and condition."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.by_unit: dict[tuple[str, str], Books] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return False  # its own summary puts them here

    def read(self, run: RunFolder) -> None:
        for checkpoint, condition in run.units():
            if under_of(condition) is not None:
                self.keep(run, checkpoint, condition)

    def keep(self, run: RunFolder, checkpoint: str, condition: str) -> None:
        """Keep the books of a condition, unless no sample could be read."""
        if (books := books_of(run, checkpoint, condition)) is not None:
            self.by_unit[checkpoint, condition] = books


def books_of(run: RunFolder, checkpoint: str, condition: str) -> Books | None:
    """Return the books from the records; None where no sample could be read.

    Raises:
        DamagedRecord: a record does not say which layers it is of, or lacks a head.
    """
    where = run.shard_path(checkpoint, condition, 0).parent
    layers: tuple[Layer, ...] = ()
    parts: dict[str, list[Floats]] = {name: [] for name in LISTS}
    for shard in run.shards(checkpoint, condition, (*LISTS, "error", "sample_id")):
        read = readable(shard)
        if not len(read):
            continue
        found = decode_layers(shard.schema.metadata, where)
        if layers and found != layers:
            raise DamagedRecord(f"{where}: records of other layers than the rest; delete them and run again")
        layers = found
        for name in LISTS:
            parts[name].append(_matrix(read, name, sum(layer.heads for layer in layers), where))
    if not layers:
        return None
    with np.errstate(invalid="ignore"):
        values = {name: _mean(np.concatenate(rows)) for name, rows in parts.items()}
    return Books(layers, sum(map(len, parts[LISTS[0]])), values)


def _matrix(read: pa.Table, name: str, width: int, where: Path) -> Floats:
    if name not in read.column_names or any(row is None or len(row) != width for row in read[name].to_pylist()):
        raise DamagedRecord(f"{where}: a record without a figure for each head; delete it and run again")
    values: Floats = np.array(read[name].to_pylist(), dtype=np.float64)
    return values


def _mean(values: Floats) -> Floats:
    """Return the mean of each column over its finite values; nan where there is none."""
    finite = np.isfinite(values)
    mean: Floats = np.where(finite, values, 0).sum(axis=0) / finite.sum(axis=0)
    return mean
