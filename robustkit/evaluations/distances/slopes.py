"""Whether a sample's nearest wrong point is further where attention can change less: correlations of ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.intervals import Floats, bootstrap
from ...errors import DamagedRecord, RunError
from ..layers import Layer, decode_layers, head_name
from ..rows import FEWEST, Number, Reading, column_of, readable
from .beside import shared
from .measures import BY_CHANCE, CORRELATION, OF_HEAD
from .vocabulary import WATCHED

_COLUMNS = ("sample_id", "error", "softmax_slope", "softmax_slopes")
_SHUFFLES = 1000
_AT_ONCE = 1_000_000  # figures of shuffles that are held together


@dataclass(frozen=True)
class Slopes:
    """The softmax slopes of n samples on clean images: (n,) over all heads, and of each of the T heads (n, T)."""

    ids: Sequence[str]
    means: Floats
    heads: Floats
    layers: Sequence[Layer]


def slopes_of(reading: Reading) -> Slopes | None:
    """Return the slopes that the records of `attention(clean)` have; None where there are none.

    Raises:
        DamagedRecord: a record does not say which layers it is of, or lacks a head.
    """
    where = reading.run.shard_path(reading.checkpoint, WATCHED, 0).parent
    ids, means, heads = list[str](), list[Floats](), list[Floats]()
    layers: tuple[Layer, ...] = ()
    try:
        shards = [(readable(shard), shard.schema.metadata) for shard in reading.shards(WATCHED, _COLUMNS)]
    except DamagedRecord:
        raise
    except RunError:
        return None  # not asked for, or not evaluated yet
    for read, metadata in shards:
        if not len(read):
            continue
        found = decode_layers(metadata, where)
        if layers and found != layers:
            raise DamagedRecord(f"{where}: records of other layers than the rest; delete them and run again")
        layers = found
        width = sum(layer.heads for layer in layers)
        values = np.empty(0)
        if {"softmax_slope", "softmax_slopes"} <= {*read.column_names}:
            values = read["softmax_slopes"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if len(values) != len(read) * width:
            raise DamagedRecord(f"{where}: a record without a figure for each head; delete it and run again")
        ids += read["sample_id"].to_pylist()
        means.append(column_of(read, "softmax_slope"))
        heads.append(values.reshape(-1, width))
    return Slopes(ids, np.concatenate(means), np.concatenate(heads), layers) if ids else None


def correlations(ids: Sequence[str], distances: Floats, slopes: Slopes) -> Iterator[Number]:
    """Yield Spearman's correlation of slopes with distances (n,), over the samples that are right as they are, with its
    interval; from 10 samples on also that of the head with the largest, and what the largest of so many heads reaches
    by chance.

    A sample without a wrong point, whose distance is infinite, ranks last; ties share their rank. A sample with a slope
    that is not finite has no rank, and is left out. Nothing is yielded where all samples tie.
    """
    mine, theirs = shared(ids, slopes.ids)
    finite = np.isfinite(slopes.means) & np.isfinite(slopes.heads).all(axis=1)
    kept = (distances[mine] > 0) & finite[theirs]
    far, theirs = distances[mine][kept], theirs[kept]
    n, means = len(far), slopes.means[theirs]
    value = float(spearman(means, far, np.ones((1, n)))[0]) if n else math.nan
    if math.isnan(value):
        return
    if n < FEWEST:
        yield CORRELATION.name, value, n, math.nan, math.nan
        return
    ((low, high),) = bootstrap(lambda counts: spearman(means, far, counts), n, [value])
    yield CORRELATION.name, value, n, low, high
    standard = np.stack([_standard(column) for column in slopes.heads[theirs].T], axis=1)
    ranks = _standard(far)
    of_heads = ranks @ standard
    best = int(np.abs(of_heads).argmax())
    if of_heads[best]:
        yield f"{OF_HEAD.name}{head_name(slopes.layers, best)})", float(of_heads[best]), n, math.nan, math.nan
        yield BY_CHANCE.name, by_chance(ranks, standard), n, math.nan, math.nan


def spearman(x: Floats, y: Floats, counts: Floats) -> Floats:
    """Return Spearman's correlation (R,) of x and y (n,), where sample i is there counts[r, i] times, (R, n); nan where
    all that is there ties. The ranks are those among all copies; ties share the mean of theirs.
    """
    middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
    first, second = (_ranks(values, counts) - middle for values in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        both = (counts * first * second).sum(axis=1)
        correlation: Floats = both / np.sqrt((counts * first**2).sum(axis=1) * (counts * second**2).sum(axis=1))
    return correlation


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Return the rank, from 1 on, of each of n values among their copies, (R, n)."""
    order = np.argsort(values, kind="stable")
    found, group = np.unique(values, return_inverse=True)
    starts = np.searchsorted(values[order], found)
    copies = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Floats = (copies.cumsum(axis=1) - (copies - 1) / 2)[:, group]
    return ranks


def _standard(values: Floats) -> Floats:
    """Return the ranks (n,) of values, with mean 0 and a sum of squares of 1; 0 where all tie."""
    (ranks,) = _ranks(values, np.ones((1, len(values)))) - (len(values) + 1) / 2
    standard: Floats = ranks / (math.sqrt(float(ranks @ ranks)) or 1.0)
    return standard


def by_chance(ranks: Floats, standard: Floats) -> float:
    """Return what the largest |correlation| of ranks (n,) with any of T columns (n, T) stays below in 95 % of shuffles
    of the ranks, which one fixed stream draws.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    largest, n = list[Floats](), len(ranks)
    while sum(map(len, largest)) < _SHUFFLES:
        rows = min(max(1, _AT_ONCE // n), _SHUFFLES - sum(map(len, largest)))
        drawn = generator.permuted(np.broadcast_to(ranks, (rows, n)), axis=1)
        largest.append(np.abs(drawn @ standard).max(axis=1))
    return float(np.quantile(np.concatenate(largest), 0.95))
