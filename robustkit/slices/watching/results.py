"""Records of watched attention into results and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.intervals import Floats, bootstrap
from ...display.format import MISSING, NOT_FINITE, Cell, count, wide_number
from ...display.table import Table
from ...errors import DamagedRecord
from ...evaluations.aggregate import Gatherer, RecordReader, column_of, readable_rows
from ...evaluations.condition import name_of
from ...evaluations.family import Aggregator, Summary
from ...evaluations.layers import Layer, decode_layers, head_name
from ...evaluations.metrics import by_checkpoint
from ...evaluations.records import CheckpointRecords, Pairings, PerSample, common_places, not_paired
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from . import COLUMN_NAMES, LISTS, MEANS, VOCABULARY, under_of

if TYPE_CHECKING:
    import pyarrow as pa

EXPLOSION = 100.0
"""A |logit| above which a head is flagged: tau of QK-Clip (Moonshot 2025). From 64 on bfloat16 has steps of 0.5, which
change weights by up to 28 %. ViT-Tiny on ImageNet reaches 29, the shipped checkpoints at most 37."""
COLLAPSE = 0.01
"""Mean entropy as a share of log N below which a head is flagged (Zhai et al. 2023): of 197 keys 1.05 are attended to.
Sharp heads are natural: ViT-Tiny has one at 0.19 clean, 0.017 under gaussian noise of severity 5."""


@dataclass(frozen=True)
class Heads:
    """values: by column (T,), over the finite of n samples: the largest of logits, means of the others, nan where there
    is none. broken: (T,) samples whose figure is not finite. lost: samples with one in any head."""

    layers: tuple[Layer, ...]
    n: int
    values: Mapping[str, Floats]
    broken: Floats
    lost: int

    @cached_property
    def shares(self) -> Floats:
        """Mean entropies as shares of log N; nan with a single key, where they say nothing."""
        keys = np.array([layer.keys for layer in self.layers for _ in range(layer.heads)], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares: Floats = self.values["attention_entropies"] / np.log(keys)
        return shares

    def figures(self, name: str) -> Floats:
        """Return one of `LISTS`, or `entropy_shares`, (T,)."""
        return self.shares if name == "entropy_shares" else self.values[name]

    def by_layer(self, name: str) -> list[Floats]:
        return np.split(self.figures(name), np.cumsum([layer.heads for layer in self.layers])[:-1])

    def name(self, place: int) -> str:
        return head_name(self.layers, place)

    @property
    def findings(self) -> list[Finding]:
        """Doubts, each with the head that gives the strongest reason for it."""
        raised = []
        if self.lost:
            first = int(np.flatnonzero(self.broken)[0])
            raised.append(Finding.of("attention/not-finite", count=self.lost, n=self.n, head=self.name(first)))
        logits = self.values["largest_logits"]
        high = np.flatnonzero(logits > EXPLOSION)
        if len(high):
            worst = int(high[logits[high].argmax()])
            where = {"head": self.name(worst), "more": _more(high)}
            raised.append(Finding.of("attention/logit-explosion", largest=logits[worst], limit=EXPLOSION, **where))
        low = np.flatnonzero(self.shares < COLLAPSE)
        if len(low):
            worst = int(low[self.shares[low].argmin()])
            where = {"head": self.name(worst), "more": _more(low)}
            share, limit = 100 * self.shares[worst], 100 * COLLAPSE
            raised.append(Finding.of("attention/entropy-collapse", share=share, limit=limit, **where))
        return raised


def _more(places: Any) -> str:
    others = len(places) - 1
    return "" if not others else f" and {others} more {'head' if others == 1 else 'heads'}"


class HeadSums:
    """Sums over samples, shard by shard. where: the place of the records, for messages. lists: the columns with a
    figure for each head; those of watched attention may all be missing."""

    def __init__(self, where: Path, lists: Sequence[str] = LISTS) -> None:
        self.where, self.lists = where, lists
        self.layers: tuple[Layer, ...] = ()
        self.n = self.lost = 0
        self._largest = np.array([name == "largest_logits" for name in lists])  # a head's largest, all else a mean

    def taken(self, shard: pa.Table) -> pa.Table:
        """Take the columns per head from a shard; return the rest."""
        here = [name for name in self.lists if name in shard.column_names]
        read = readable_rows(shard)
        if len(read) and (here or self.lists is not LISTS):
            layers = decode_layers(shard.schema.metadata, self.where)
            if lacking := [name for name in self.lists if name not in here]:
                raise DamagedRecord(f"{self.where}: a record without {lacking[0]}; delete it and run again")
            width = sum(layer.heads for layer in layers)
            self.add(layers, {name: self._matrix(read[name], width) for name in self.lists})
        return shard.drop_columns(here)

    def add(self, layers: tuple[Layer, ...], figures: Mapping[str, Floats]) -> None:
        """Add more samples: (n, T) by name of `lists`."""
        if not self.layers:
            width = sum(layer.heads for layer in layers)
            self.layers, self._broken = layers, np.zeros(width)
            self._counts, self._sums = np.zeros((2, len(self.lists), width))
            self._sums[self._largest] = -math.inf
        if layers != self.layers:
            raise DamagedRecord(f"{self.where}: records with different layers than the rest; delete them and run again")
        values = np.stack([figures[name] for name in self.lists])
        finite = np.isfinite(values)
        infinite_heads, counted = np.logical_not(finite.all(axis=0)), np.where(finite, values, 0)
        self.n += values.shape[1]
        self.lost += int(infinite_heads.any(axis=1).sum())
        self._broken += infinite_heads.sum(axis=0)
        self._counts += finite.sum(axis=1)
        highest = np.where(finite, values, -math.inf).max(axis=1)
        self._sums = np.where(self._largest[:, None], np.maximum(self._sums, highest), self._sums + counted.sum(axis=1))

    def _matrix(self, column: pa.ChunkedArray, width: int) -> Floats:
        import pyarrow.compute as pc

        lists = column.combine_chunks()
        if lists.null_count or not pc.all(pc.equal(pc.list_value_length(lists), width)).as_py():
            raise DamagedRecord(f"{self.where}: a record without a figure for each head; delete it and run again")
        values: Floats = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        return values.reshape(len(lists), width)

    def heads(self) -> Heads | None:
        if not self.n:
            return None
        with np.errstate(invalid="ignore"):
            figures = self._sums / np.where(self._largest[:, None], self._counts > 0, self._counts)
        return Heads(self.layers, self.n, dict(zip(self.lists, figures, strict=True)), self._broken, self.lost)


class WatchedHeads(Gatherer):
    """The heads by checkpoint and condition, for each condition whose records have them. kind: of these conditions."""

    kind: ClassVar[str] = "attention"
    lists: ClassVar[Sequence[str]] = LISTS

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.by_unit: dict[tuple[str, str], Heads] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return False  # its own summary puts them here

    def put(self, checkpoint: str, condition: str, heads: Heads | None) -> None:
        if heads is not None:
            self.by_unit[checkpoint, condition] = heads

    def read(self, run: RunFolder) -> None:
        for checkpoint, condition in run.units():
            if under_of(condition, self.kind) is not None:
                self.put(checkpoint, condition, heads_of(run, checkpoint, condition, self.lists))


def heads_of(run: RunFolder, checkpoint: str, condition: str, lists: Sequence[str] = LISTS) -> Heads | None:
    """Return the heads; None where no sample could be read. Raises RunError without records, or of damaged ones."""
    sums = HeadSums(run.shard_path(checkpoint, condition, 0).parent, lists)
    for shard in run.shards(checkpoint, condition, (*lists, "error", "sample_id")):
        sums.taken(shard)
    return sums.heads()


@dataclass(frozen=True)
class Sampled:
    """(n, M) figures of `METRICS` by sample, nan for what a record lacks, and the (n,) ids."""

    ids: pa.Array
    values: Floats

    @classmethod
    def of(cls, read: pa.Table) -> Sampled:
        empty = np.full(len(read), math.nan)
        names = set(read.column_names)
        columns = [column_of(read, name) if name in names else empty for name in COLUMN_NAMES]
        return cls(read["sample_id"].combine_chunks(), np.stack(columns, axis=1))

    def minus(self, other: Sampled) -> Floats:
        """Return the differences (m, M) of the m samples that both have."""
        mine, theirs = common_places([self.ids, other.ids])
        with np.errstate(invalid="ignore"):
            difference: Floats = self.values[mine] - other.values[theirs]
        return difference


def attention_rows(
    condition: str, sampled: Sampled, clean: Sampled | None, heads: Heads | None, flags: Sequence[Finding]
) -> Iterator[Figure]:
    """Yield the means; `<metric>_change` is the difference from the clean images, paired by sample."""
    lines = [*flags, *(heads.findings if heads else ())]
    parts = [("", sampled.values), *([] if clean is None else [("_change", sampled.minus(clean))])]
    for suffix, values in parts:
        for place, (value, low, high) in enumerate(_means(values)):
            yield Figure(value, len(values), low, high, BOOTSTRAP).of(condition, COLUMN_NAMES[place] + suffix, lines)


def _means(values: Floats) -> list[tuple[float, float, float]]:
    """Return the mean of each column of (n, M) with its interval, nan for a few samples and for what is not finite."""
    n = len(values)
    if not n:
        return []
    with np.errstate(invalid="ignore"):
        means = values.mean(axis=0)
    finite = np.isfinite(means)
    bounds = np.full((len(means), 2), math.nan)
    if n >= FEWEST and finite.any():
        columns = values[:, finite]
        bounds[finite] = bootstrap(lambda counts: counts @ columns / n, n, means[finite])
    return [(float(mean), float(low), float(high)) for mean, (low, high) in zip(means, bounds, strict=True)]


class AttentionSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading
        self.clean: Sampled | None = None

    def add(self, condition: str) -> list[Figure]:
        reading = self.reading
        sums = HeadSums(reading.run.shard_path(reading.checkpoint, condition, 0).parent)
        shards = reading.shards(condition, (*COLUMN_NAMES, *LISTS, "sample_id", "error"))
        table, _ = reading.joined(map(sums.taken, shards))
        sampled = Sampled.of(readable_rows(table))
        heads, flags = sums.heads(), reading.findings(condition, table)
        if isinstance(gatherer := reading.gatherers.get(WatchedHeads), WatchedHeads):
            gatherer.put(reading.checkpoint, condition, heads)
        rows = list(attention_rows(condition, sampled, self.clean, heads, flags))
        if under_of(condition) == "clean":
            self.clean = sampled
        return rows


_FORMS = {
    "largest_logit": ("largest |logit|", 1, 1),
    "entropy_share": ("entropy, % of log N", 100, 1),
    "strongest_key": ("strongest key, %", 100, 1),
    "softmax_slope": ("softmax slope", 1, 3),
}
HEADINGS = {m.name: _FORMS.get(m.name, (m.label, 1, 2)) for m in MEANS if m.name != "attention_entropy"}
LAYERS = (
    ("largest_logits", "largest |logit|", 1, 1),
    ("query_norms", "query norm", 1, 1),
    ("key_norms", "key norm", 1, 1),
    ("attention_entropies", "entropy, nats", 1, -1),
    ("entropy_shares", "entropy, % of log N", 100, -1),
    ("strongest_keys", "strongest key, %", 100, 1),
    ("softmax_slopes", "softmax slope", 1, -1),
)  # figure of a head, name, factor; 1: the highest is the worst, -1: the lowest
_MOST = 64  # layers in a table
_NOTE = (
    "Means over samples; per sample the largest |logit| of all heads and means over the heads of all layers. With a "
    "sign: the change against clean, paired by sample, of percentages in points."
)
_OF_LAYERS = (
    "Mean over the heads of a layer, then the worst of them with its number from 0 on; a head's logit is the largest "
    "over all samples, everything else is a mean over samples and tokens."
)

Rows = Sequence[Figure]


def attention_tables(results: Rows, manifest: Manifest) -> list[Table]:
    return [_table(checkpoint, some, manifest) for checkpoint, some in by_checkpoint(results, under_of).items()]


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]], manifest: Manifest) -> Table:
    rows = []
    counts = {under: next(iter(figures.values())).n for under, figures in conditions.items()}
    several = len(set(counts.values())) > 1
    for under, figures in conditions.items():
        pairs = [(figures.get(f"{name}_change") if under != "clean" else None, figures.get(name)) for name in HEADINGS]
        cells = (_cell(*pair, *HEADINGS[name][1:]) for name, pair in zip(HEADINGS, pairs, strict=True))
        label = name_of(under, "table", manifest)
        rows.append((label, *([count(counts[under])] if several else []), *cells))
    headings = ("condition", *(["n"] if several else []), *(name for name, _, _ in HEADINGS.values()))
    title = f"{checkpoint}: attention" + ("" if several else f", n = {counts[next(iter(counts))]}")
    return Table(title, headings, tuple(rows), (), _NOTE, checkpoint=checkpoint, places=("terminal", "page"))


def _cell(change: Figure | None, value: Figure | None, factor: int, decimals: int) -> Cell:
    """Return `12.30 [12.10, 12.50]`, or of a change `+0.31 [+0.20, +0.42]`."""
    row, sign = (change, "+") if change is not None else (value, "")
    decimals = max(decimals, 2) if sign and factor == 1 else decimals
    if row is None:
        return MISSING
    text, low, high = (wide_number(factor * end, decimals, sign) for end in (row.value, row.low, row.high))
    return Cell(f"{text} [{low}, {high}]" if row.has_interval else text, row.value, row)


def layer_table(heads: Heads, title: str) -> Table:
    headings = ("layer", "heads", "N", *(name for _, name, _, _ in LAYERS))
    parts = [(heads.by_layer(name), factor, worst) for name, _, factor, worst in LAYERS]
    rows = [
        (
            *(layer.name, count(layer.heads), count(layer.keys)),
            *(_mean_and_worst(factor * values[place], worst, percent=factor == 100) for values, factor, worst in parts),
        )
        for place, layer in enumerate(heads.layers[:_MOST])
    ]
    more = len(heads.layers) - len(rows)
    note = _OF_LAYERS + (f" {more} more layers are left out." if more else "")
    return Table(title, headings, tuple(rows), tuple(map(str, heads.findings)), note)


def _mean_and_worst(values: Floats, sign: int, percent: bool) -> Cell:
    """Return `8.25, 10.12 (2)`: the mean, the worst and its head; `nan` where nothing is finite."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return NOT_FINITE
    worst = int(finite[(sign * values[finite]).argmax()])
    digits = 1 if percent or float(np.abs(values[finite]).max()) >= 10 else 2
    mean, most = (wide_number(float(value), digits) for value in (values[finite].mean(), values[worst]))
    return mean.followed_by(f", {most} ({worst})")


class AttentionAggregator(Aggregator):
    words = VOCABULARY
    summary = AttentionSummary

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # its figures are so closely related that they would only weaken a correction

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        if (figures := super().per_sample(side, condition, metric)) is None:
            raise not_paired(condition, metric, [number.name for number in self.words.metrics if number.paired])
        return figures

    def gatherers(self) -> Sequence[type[Gatherer]]:
        return (WatchedHeads,)
