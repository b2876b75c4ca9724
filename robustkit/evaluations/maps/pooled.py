"""Compute scores of maps from counts pooled over samples: PxAP and MaxBoxAcc."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from cam.localisation import IOUS, THRESHOLDS, pxap

from ...common.intervals import Floats, resampled_sums
from ..rows import FEWEST, Rows

if TYPE_CHECKING:
    import pyarrow as pa

MAXIMA = ("max_box_acc",)


class Counted:
    """Hundreds of whole numbers per sample for n samples, of which only sums are needed and kept.

    places: (n,) rows among the numbers, -1 for a sample without any. read: returns the numbers, (k, K), or packed to
    bits; called again for sums over other samples, such as those that also have a control.
    """

    def __init__(self, metric: str, places: Rows, read: Callable[[], NDArray[Any]]) -> None:
        self.metric, self.places, self._read = metric, places, read
        self._last = self.present, self._summed(self.present)

    @property
    def present(self) -> Rows:
        """The samples that have numbers."""
        return np.flatnonzero(self.places >= 0)

    def figure(self, rows: Rows) -> Floats:
        """Return the metric on the samples, followed by its R bootstrap replicates if it has an interval: (1 + R,)."""
        if not np.array_equal(self._last[0], rows):
            self._last = rows, self._summed(rows)
        return _STATISTICS[self.metric](self._last[1], len(rows))

    def _summed(self, rows: Rows) -> Floats:
        values, places = self._read(), self.places[rows]

        def floats(some: slice) -> Floats:
            chosen = values[places[some]]
            packed = chosen.dtype == np.uint8
            return (np.unpackbits(chosen, axis=1, count=_BITS) if packed else chosen).astype(np.float64)

        return resampled_sums(floats, len(rows), has_interval(len(rows), self.metric))


class Pooled:
    """The columns of a map with hundreds of whole numbers per sample, taken shard by shard."""

    def __init__(self) -> None:
        self._present: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in POOLED}
        self._values: dict[str, list[NDArray[Any]]] = {name: [] for name in POOLED}

    def taken(self, shard: pa.Table) -> pa.Table:
        """Take the pooled columns from a shard; return the rest."""
        for name in POOLED:
            if name not in shard.column_names:
                self._present[name].append(np.zeros(len(shard), dtype=bool))
                continue
            column = shard[name].combine_chunks()
            self._present[name].append(column.is_valid().to_numpy(zero_copy_only=False))
            present = column.drop_null()
            if len(present):
                self._values[name].append(_few_bytes(present) if name == "pixel_counts" else _bits(present))
        return shard.drop_columns([name for name in POOLED if name in shard.column_names])

    def of(self, column: str, rows: Rows, again: Callable[[], Pooled]) -> Counted | None:
        """Return the numbers of some samples; None where no sample of the condition has any. again: takes all from the
        shards.
        """
        if not self._values[column]:
            return None
        present = np.concatenate(self._present[column])
        places = np.where(present, np.cumsum(present) - 1, -1)[rows]

        def read() -> NDArray[Any]:
            held = self._values.pop(column, None)  # the first time
            return np.concatenate(again()._values[column] if held is None else held)

        return Counted(POOLED[column], places, read)


POOLED = {"pixel_counts": "pxap", "box_hits": "max_box_acc"}
_BITS = len(THRESHOLDS) * len(IOUS)


def _few_bytes(lists: pa.ListArray) -> NDArray[Any]:
    values: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1)
    return values.astype(np.uint16 if values.max(initial=0) < 2**16 else np.int64)


def _bits(packed: pa.BinaryArray) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(packed.to_pylist()), np.uint8).reshape(len(packed), -1)


def has_interval(n: int, metric: str) -> bool:
    return n >= FEWEST and metric not in MAXIMA


def _pxap(sums: Floats, n: int) -> Floats:
    """Compute PxAP of counts outside and inside the object by level, (R, 2 * levels), pooled over samples."""
    return pxap(torch.from_numpy(sums).reshape(len(sums), 2, -1)).numpy()


def _max_box_acc(sums: Floats, n: int) -> Floats:
    """Compute MaxBoxAcc of hits by threshold and IoU, (R, thresholds * IOUS): the best threshold for each IoU,
    averaged.
    """
    figures: Floats = (sums.reshape(len(sums), -1, len(IOUS)) / n).max(axis=1).mean(axis=1)
    return figures


_STATISTICS: dict[str, Callable[[Floats, int], Floats]] = {"pxap": _pxap, "max_box_acc": _max_box_acc}
