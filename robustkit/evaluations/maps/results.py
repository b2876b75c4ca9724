"""Records of maps into results. Scores at the threshold have two modes, `cam(agcam,mode=mask)` and
`cam(agcam,mode=box)`. Maps of wrong predictions are left out and counted, unless the run keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from cam.localisation import IOUS, THRESHOLDS, pxap
from cam.registry import CONTROLS

from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import Groups, count_units, effective_units
from ...common.intervals import Floats, intervals, mean_of, resampled_figures, resampled_sums, share_of
from ...errors import RunError
from ...protocol.condition import CLEAN, samples_named
from ...runs.metadata import SampleGroups
from ..aggregate import RecordReader, Rows, column_of, readable_rows
from ..estimation import supported_rows
from ..family import Aggregator, Summary
from ..records import CheckpointRecords, Pairings, PerSample, not_paired
from . import (
    FAITHFUL,
    METRICS,
    MODES,
    MOVED,
    OF_OBJECTS,
    PLAIN,
    SCORES,
    STABILITY,
    VOCABULARY,
    MapSpec,
    of_mode,
    parse_explained,
    parts_of,
)

GroupsAt = Callable[[Rows], Groups | None]


class Counted:
    """Hundreds of whole numbers per sample, of which only sums are needed. places: (n,) rows among the numbers, -1
    without any. read: returns the numbers, (k, K), or packed to bits; called again for sums over other samples.
    groups_at: of the samples in some rows."""

    def __init__(
        self,
        metric: str,
        places: Rows,
        read: Callable[[], NDArray[Any]],
        groups_at: GroupsAt = lambda rows: None,
    ) -> None:
        self.metric, self.places, self._read, self._groups_at = metric, places, read, groups_at
        self._last = self.present, self._summed(self.present)

    @property
    def present(self) -> Rows:
        return np.flatnonzero(self.places >= 0)

    def figure(self, rows: Rows) -> Floats:
        """Return the metric on the samples, followed by its R bootstrap replicates if it has an interval: (1 + R,)."""
        if not np.array_equal(self._last[0], rows):
            self._last = rows, self._summed(rows)
        sums = self._last[1]
        if self.metric == "pxap":  # of counts outside and inside the object by level, pooled over samples
            return pxap(torch.from_numpy(sums).reshape(len(sums), 2, -1)).numpy()
        # MaxBoxAcc of hits by threshold and IoU: the best threshold for each IoU, averaged.
        figures: Floats = (sums.reshape(len(sums), -1, len(IOUS)) / len(rows)).max(axis=1).mean(axis=1)
        return figures

    def _summed(self, rows: Rows) -> Floats:
        values, places = self._read(), self.places[rows]

        def floats(some: slice) -> Floats:
            chosen = values[places[some]]
            packed = chosen.dtype == np.uint8
            return (np.unpackbits(chosen, axis=1, count=_BITS) if packed else chosen).astype(np.float64)

        groups = self._groups_at(rows)
        return resampled_sums(floats, len(rows), has_interval(count_units(groups, len(rows)), self.metric), groups)


class PooledMaps:
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
            if len(present) and name == "box_hits":
                packed = np.frombuffer(b"".join(present.to_pylist()), np.uint8)
                self._values[name].append(packed.reshape(len(present), -1))
            elif len(present):
                counts = present.flatten().to_numpy(zero_copy_only=False).reshape(len(present), -1)
                self._values[name].append(counts.astype(np.uint16 if counts.max(initial=0) < 2**16 else np.int64))
        return shard.drop_columns([name for name in POOLED if name in shard.column_names])

    def of(
        self, column: str, rows: Rows, again: Callable[[], PooledMaps], groups_at: GroupsAt = lambda rows: None
    ) -> Counted | None:
        """Return the numbers of some samples; None without any. again: takes all from the shards. groups_at: of the
        samples in some of the rows."""
        if not self._values[column]:
            return None
        present = np.concatenate(self._present[column])
        places = np.where(present, np.cumsum(present) - 1, -1)[rows]

        def read() -> NDArray[Any]:
            held = self._values.pop(column, None)  # the first time
            return np.concatenate(again()._values[column] if held is None else held)

        return Counted(POOLED[column], places, read, groups_at)


POOLED = {"pixel_counts": "pxap", "box_hits": "max_box_acc"}
_BITS = len(THRESHOLDS) * len(IOUS)


def has_interval(n: int, metric: str) -> bool:
    return n >= FEWEST and metric != "max_box_acc"  # resampling biases a maximum upwards


_READ = {
    *("sample_id", "error", "correct", "nll", "degenerate", "clean_correct", "held", *MOVED),
    *(f"{mode}_{score}" for mode in MODES for score in SCORES),
    *(*PLAIN, "pixel_counts", "box_hits", "vanished_boxes"),
}
_LOWER_IS_BETTER = {metric.name for metric in METRICS if metric.better < 0}
_NEITHER_IS_BETTER = {metric.name for metric in METRICS if metric.better == 0}
_OF_MAPS = {*_NEITHER_IS_BETTER, "infidelity"}  # what a constant map has not
_HIT = "pointing_game"  # 0 or 1, but of a constant map, which hits by chance
UNMOVED = 0.9  # rank correlation above which maps after the head is redrawn do not depend on the class


@dataclass(frozen=True)
class Figures:
    """The records of one map for n samples: (n,) figures per metric, nan where a sample has none, or counts. constant:
    maps that are constant or not finite."""

    explained: MapSpec
    ids: Any
    values: dict[tuple[str, str], Floats | Counted]
    flags: tuple[Finding, ...] = ()
    constant: int = 0
    sample_groups: SampleGroups | None = None
    """The groups of the run's samples."""

    def groups_at(self, rows: Rows) -> Groups | None:
        """Return the groups of the samples in some rows."""
        return None if self.sample_groups is None else self.sample_groups.of(self.ids.take(rows))


def method_figures(
    shards: Callable[[], Iterator[pa.Table]],
    table: pa.Table,
    pooled: PooledMaps,
    explained: MapSpec,
    keep: bool,
    flags: Sequence[Finding],
    sample_groups: SampleGroups | None = None,
) -> Figures:
    """Return a condition's figures. shards: to take `pooled` from again. keep: count wrong predictions, too.
    sample_groups: of the run."""

    def again() -> PooledMaps:
        pooled = PooledMaps()
        for shard in shards():
            pooled.taken(shard)
        return pooled

    mask = table["error"].is_null().to_numpy()
    labelled = bool(table["correct"].is_valid().to_numpy()[mask].all())
    read, right = int(mask.sum()), pc.fill_null(table["correct"], False).to_numpy()
    if not keep and labelled:
        mask = mask & right
    rows = np.flatnonzero(mask)
    chosen = table.take(rows)
    lines = list(flags)
    if len(chosen) < read:
        lines.append(Finding.of("maps/misclassified-excluded", count=read - len(chosen), n=read))
    elif labelled and not right[rows].all():
        lines.append(Finding.of("maps/misclassified-included"))
    if broken := pc.sum(chosen["degenerate"]).as_py() or 0:
        lines.append(Finding.of("maps/degenerate", count=broken, n=len(chosen)))
    values: dict[tuple[str, str], Floats | Counted] = {}
    ids = chosen["sample_id"].combine_chunks()
    figures = Figures(explained, ids, values, (), broken, sample_groups)
    base = replace(explained, under="").text
    names = set(chosen.column_names)
    keys = {f"{mode}_{score}": (of_mode(explained, mode), f"cam_{score}") for mode in MODES for score in SCORES}
    keys |= {column: (base, metric) for column, metric in PLAIN.items()}
    values |= {key: column_of(chosen, column) for column, key in keys.items() if column in names}
    for column, metric in POOLED.items():
        if (counted := pooled.of(column, rows, again, figures.groups_at)) is not None:
            values[base, metric] = counted
    if "vanished_boxes" in names and (lost := pc.sum(chosen["vanished_boxes"]).as_py()):
        lines.append(Finding.of("maps/boxes-cropped", count=lost))
    return replace(figures, flags=tuple(lines))


def map_rows(maps: Sequence[Figures]) -> Iterator[Figure]:
    """Yield every score of a checkpoint's maps; `<metric>_over_control` is its paired lead over the best control."""
    for figures in maps:
        for key, values in figures.values.items():
            rows = _present(values)
            if not len(rows):
                continue
            groups = figures.groups_at(rows)
            if key[1] == _HIT and not isinstance(values, Counted) and np.isin(values[rows], (0, 1)).all():
                figure = share_of(values[rows], groups)
            elif groups is not None and not isinstance(values, Counted):
                figure = mean_of(values[rows], groups)
            else:
                figure = _estimate(_drawn(values, key[1], rows, groups), len(rows), key[1], groups)
            flags = list(figures.flags)
            lost, constant = len(figures.ids) - len(rows), figures.constant if key[1] in _OF_MAPS else 0
            usual = "maps/no-object" if key[1] in OF_OBJECTS else "maps/non-finite"
            for code, count in (("maps/constant-excluded", min(lost, constant)), (usual, lost - min(lost, constant))):
                flags += [Finding.of(code, count=count, n=len(figures.ids))] if count else []
            if key[1] == "head_correlation" and figure.low >= UNMOVED:
                flags.append(Finding.of("maps/independent-of-class"))
            yield figure.of(*key, flags)
            if not figures.explained.is_control and key[1] not in _NEITHER_IS_BETTER:
                yield from _over_control(figures, key, maps)


def _over_control(figures: Figures, key: tuple[str, str], maps: Sequence[Figures]) -> Iterator[Figure]:
    """Yield the lead over the best control, which is chosen again in every resample."""
    sign, rows = -1 if key[1] in _LOWER_IS_BETTER else 1, _present(figures.values[key])
    rivals: dict[str, Floats | Counted] = {}
    for other in maps:
        other_key = (key[0].replace(figures.explained.text[:-1], other.explained.text[:-1], 1), key[1])
        same = figures.explained.control(other.explained.method) == other.explained
        if other.explained.method in CONTROLS and same and other_key in other.values and other.ids == figures.ids:
            rivals[other.explained.method] = other.values[other_key]
    if key[1] == "cam_pixel_accuracy" and "full" in rivals:
        # The score of a map that marks no pixel, which wins where objects are small.
        rivals["nothing"] = 1 - np.asarray(rivals["full"])
    for values in rivals.values():
        rows = np.intersect1d(rows, _present(values))
    if not rivals or not len(rows):
        return
    groups = figures.groups_at(rows)
    mine = _drawn(figures.values[key], key[1], rows, groups)
    theirs = {name: _drawn(values, key[1], rows, groups) for name, values in rivals.items()}
    best = max(theirs, key=lambda name: sign * float(theirs[name][0]))
    ahead: Floats = sign * mine - np.max([sign * control for control in theirs.values()], axis=0)
    yield _estimate(ahead, len(rows), key[1], groups).of(
        key[0], f"{key[1]}_over_control", [Finding.of("maps/best-control", control=best)]
    )


def stability_rows(
    table: pa.Table, explained: MapSpec, keep: bool, flags: Sequence[Finding], sample_groups: SampleGroups | None = None
) -> Iterator[Figure]:
    """Yield the means of all predictions, those that held, and those that fell. keep: count those wrong clean.
    sample_groups: of the run."""
    whole = table.filter(table["error"].is_null())
    read = whole if keep else whole.filter(pc.fill_null(whole["clean_correct"], True))
    if len(read) < len(whole):
        left = len(whole) - len(read)
        flags = [*flags, Finding.of("maps/misclassified-excluded", count=left, n=len(whole))]
    held = pc.fill_null(read["held"], False).to_numpy()
    kinds = {"": np.ones(len(held), bool), "_held": held, "_fell": ~held}
    lines = [*flags]
    if broken := pc.sum(read["degenerate"]).as_py():
        lines.append(Finding.of("maps/pairs-degenerate", count=broken, n=len(read)))
    for column in MOVED:
        values = column_of(read, column)
        for suffix, kind in kinds.items():
            rows = np.flatnonzero(kind & np.isfinite(values))
            groups = None if sample_groups is None else sample_groups.of(read["sample_id"].take(rows))
            if len(rows) and groups is not None:
                yield mean_of(values[rows], groups).of(explained.text, column + suffix, lines)
            elif len(rows):
                figures = _drawn(values, column, rows)
                yield _estimate(figures, len(rows), column).of(explained.text, column + suffix, lines)


def _estimate(drawn: Floats, n: int, metric: str, groups: Groups | None = None) -> Figure:
    """Return the metric of n samples; a few, or few groups, have no interval, nor has a maximum."""
    figure, units = Figure(float(drawn[0]), n, groups=groups.count if groups else 0), count_units(groups, n)
    if not has_interval(units, metric):
        return figure
    low, high = intervals(drawn[1:, None], effective_units(groups, n), drawn[:1])[0]
    return replace(figure, low=low, high=high, interval=BOOTSTRAP)


def _present(values: Floats | Counted) -> Rows:
    return values.present if isinstance(values, Counted) else np.flatnonzero(np.isfinite(values))


def _drawn(values: Floats | Counted, metric: str, rows: Rows, groups: Groups | None = None) -> Floats:
    """Return the metric on the samples, followed by its R bootstrap replicates if it has an interval: (1 + R,)."""
    if isinstance(values, Counted):
        return values.figure(rows)
    n, chosen = len(rows), values[rows]

    def mean(counts: Floats) -> Floats:
        return counts @ chosen / n

    parts = [mean(np.ones((1, n)))]
    if has_interval(count_units(groups, n), metric):
        parts.append(resampled_figures(mean, n, groups)[:, 0])
    return np.concatenate(parts)


class MapSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.figures = reading, list[Figures]()

    def add(self, condition: str) -> Iterable[Figure]:
        reading, explained, pooled = self.reading, parse_explained(condition), PooledMaps()
        assert explained is not None
        shards = partial(reading.shards, condition, _READ)
        table, notes = reading.joined(map(pooled.taken, shards()))
        if "degenerate" not in table.column_names:  # no sample could be read
            return ()
        flags = [*reading.findings(condition, table), *notes]
        flags += reading.manifest.data.findings("maps")
        keep = reading.manifest.keep_misclassified
        if explained.under:
            return stability_rows(table, explained, keep, flags, reading.sample_groups)
        self.figures.append(method_figures(shards, table, pooled, explained, keep, flags, reading.sample_groups))
        return ()

    def finish(self) -> Iterator[Figure]:
        yield from map_rows(self.figures)
        for figures in self.figures:
            if samples_named(figures.explained.text) and not figures.explained.is_control:
                yield from self._supported(figures)

    def _supported(self, figures: Figures) -> Iterator[Figure]:
        """Yield scores of faithfulness, supported by the confidence on clean images of the same kind."""
        reading, names = self.reading, ["sample_id", "error", "correct", "confidence"]
        if (reading.checkpoint, CLEAN.text) not in reading.run.units():
            return
        clean = readable_rows(reading.run.table(reading.checkpoint, CLEAN.text, names))
        if not reading.manifest.keep_misclassified:
            clean = clean.filter(clean["correct"].fill_null(True))
        for metric in FAITHFUL:
            values = figures.values.get((figures.explained.text, metric.name))
            if isinstance(values, np.ndarray):
                table = pa.table({"sample_id": figures.ids, metric.name: values})
                others = clean.select(["sample_id", "confidence"])
                yield from supported_rows(figures.explained.text, metric, table, CLEAN.text, others, figures.flags)


_LOCALISED = ("cam_pixel_accuracy", "cam_iou", "cam_dice")  # precision and recall follow them too closely


def _keys(explained: MapSpec) -> list[tuple[str, str]]:
    if explained.under:
        return [(explained.text, metric.name) for metric in STABILITY]
    localised = [(of_mode(explained, mode), name) for mode in ("box", "mask") for name in _LOCALISED]
    return [*localised, *((explained.text, name) for name in PLAIN.values())]


def _columns(condition: str, metric: str) -> tuple[str, str, str]:
    """Return the condition of a score's records, its column, and the column of what was predicted right."""
    parts = parts_of(condition)
    assert parts is not None
    explained, mode = parts
    scored = [f"cam_{name}" for name in SCORES] if mode else list(PLAIN.values())
    names = [score.name for score in STABILITY] if explained.under else scored
    if metric not in names:
        raise not_paired(condition, metric, names)
    plain = {name: column for column, name in PLAIN.items()}.get(metric, metric)
    column = f"{mode}_{metric.removeprefix('cam_')}" if mode else plain
    return explained.text, column, "clean_correct" if explained.under else "correct"


class MapsAggregator(Aggregator):
    words = VOCABULARY
    summary = MapSummary

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        """Yield the scores, not of controls, that some sample has; one not requested is null throughout."""
        for explained in filter(None, map(parse_explained, common)):
            if explained.is_control:
                continue
            columns = {key: _columns(*key)[1:] for key in _keys(explained)}
            read = [name for names in columns.values() for name in names]
            for side in (first, second):  # so that no file is opened twice; what a record lacks is reported later
                with contextlib.suppress(RunError):
                    side.samples(explained.text, read)
            for key, (column, right) in columns.items():
                with contextlib.suppress(RunError):
                    sides = [side.samples(explained.text, [column, right]).columns[column] for side in (first, second)]
                    if not all(np.isnan(figures).all() for figures in sides):
                        yield key

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        text, column, right = _columns(condition, metric)
        read = side.samples(text, [column, right])
        figures = read.columns[column]
        places = np.flatnonzero((read.columns[right] != 0) & ~np.isnan(figures))  # nan: without a label
        return read.ids.take(places), figures[places]
