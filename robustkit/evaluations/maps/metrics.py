"""Turn records of maps into results: scores with intervals, controls next to them, and how stable maps are.

Scores at the threshold exist in two modes, `cam(agcam,mode=mask)` and `cam(agcam,mode=box)`; those without a threshold
are under `cam(agcam)`. Maps of wrong predictions are left out and counted, unless the run keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from ...common.intervals import Floats, intervals, resampled_figures, wilson
from ..map_methods import CONTROLS
from ..rows import Row, Rows, column_of
from .condition import MODES, PLAIN, SCORES, MapSpec, of_mode
from .measures import METRICS
from .pooled import POOLED, Counted, Pooled, has_interval

if TYPE_CHECKING:
    import pyarrow as pa


_WANTED = {
    *("sample_id", "error", "correct", "nll", "degenerate", "clean_correct", "held", "rank_correlation", "map_iou"),
    *(f"{mode}_{score}" for mode in MODES for score in SCORES),
    *(*PLAIN, "pixel_counts", "box_hits", "vanished_boxes"),
}
_LOWER_IS_BETTER = {metric.name for metric in METRICS if metric.better < 0}
_NEITHER_IS_BETTER = {metric.name for metric in METRICS if metric.better == 0}
_OF_MAPS = {*_NEITHER_IS_BETTER, "infidelity"}  # what a constant map has not
_HIT = "pointing_game"  # 0 or 1, but of a constant map, which hits by chance
UNMOVED = 0.9
"""A rank correlation: maps above it after the head is redrawn do not depend on the class."""


@dataclass(frozen=True)
class Figures:
    """The records of one map for n samples: (n,) figures per metric, nan where a sample has none, or counts."""

    explained: MapSpec
    ids: Any
    values: dict[tuple[str, str], Floats | Counted]
    flags: tuple[str, ...] = ()


def is_wanted_of_maps(column: str) -> bool:
    """Whether results of a map need a column."""
    return column in _WANTED


def map_figures(
    shards: Callable[[], Iterator[pa.Table]],
    table: pa.Table,
    pooled: Pooled,
    explained: MapSpec,
    keep: bool,
    flags: Sequence[str],
) -> Figures:
    """Return the figures of a condition from its records, in one table. pooled: what was taken from them. shards: the
    shards to take it from again. keep: count wrong predictions too.
    """

    def again() -> Pooled:
        pooled = Pooled()
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
        lines.append(f"{read - len(chosen)} of {read} samples are predicted wrong and left out of the scores of maps")
    elif labelled and not right[rows].all():
        lines.append("maps of wrong predictions count, too")
    if broken := pc.sum(chosen["degenerate"]).as_py() or 0:
        lines.append(f"{broken} of {len(chosen)} maps are constant or not finite; they count as all 0")
    values: dict[tuple[str, str], Floats | Counted] = {}
    base = replace(explained, under="").text
    names = set(chosen.column_names)
    for mode in MODES:
        for score in SCORES:
            if f"{mode}_{score}" in names:
                values[of_mode(explained, mode), f"cam_{score}"] = column_of(chosen, f"{mode}_{score}")
    for column, metric in PLAIN.items():
        if column in names:
            values[base, metric] = column_of(chosen, column)
    for column, metric in POOLED.items():
        if (counted := pooled.of(column, rows, again)) is not None:
            values[base, metric] = counted
    lost = (pc.sum(chosen["vanished_boxes"]).as_py() or 0) if "vanished_boxes" in names else 0
    if lost:
        lines.append(f"{lost} boxes lie outside the crop and are left out")
    return Figures(explained, chosen["sample_id"].combine_chunks(), values, tuple(lines))


def map_rows(maps: Sequence[Figures]) -> Iterator[Row]:
    """Yield condition, metric, value, n, interval and flags of every score of one checkpoint's maps; and as
    `<metric>_over_control` how far each is ahead of the best control (negative: behind), paired by sample.
    """
    for figures in maps:
        for key in figures.values:
            rows = _present(figures.values[key])
            if not len(rows):
                continue
            value, low, high = _of_samples(figures.values[key], key[1], rows)
            flags = list(figures.flags)
            if len(rows) < len(figures.ids):
                why = "maps are constant" if key[1] in _OF_MAPS else "samples have no object in the frame"
                flags.append(f"{len(figures.ids) - len(rows)} of {len(figures.ids)} {why}")
            if key[1] == "head_correlation" and low >= UNMOVED:
                flags.append("maps stay when the head is replaced by a random one: they do not depend on the class")
            yield *key, value, len(rows), low, high, flags
            if not figures.explained.is_control and key[1] not in _NEITHER_IS_BETTER:
                yield from _over_control(figures, key, maps)


def _over_control(figures: Figures, key: tuple[str, str], maps: Sequence[Figures]) -> Iterator[Row]:
    """Yield the lead over the best control, which is chosen again in every resample."""
    sign = -1 if key[1] in _LOWER_IS_BETTER else 1
    rivals: dict[str, Floats | Counted] = {}
    for other in maps:
        other_key = (key[0].replace(figures.explained.text[:-1], other.explained.text[:-1], 1), key[1])
        same = figures.explained.control(other.explained.method) == other.explained
        if other.explained.method in CONTROLS and same and other_key in other.values and other.ids == figures.ids:
            rivals[other.explained.method] = other.values[other_key]
    if key[1] == "cam_pixel_accuracy" and "full" in rivals:
        # The score of a map that marks no pixel, which wins where objects are small.
        rivals["nothing"] = 1 - np.asarray(rivals["full"])
    rows = _present(figures.values[key])
    for values in rivals.values():
        rows = np.intersect1d(rows, _present(values))
    if not rivals or not len(rows):
        return
    mine = _drawn(figures.values[key], key[1], rows)
    theirs = {name: _drawn(values, key[1], rows) for name, values in rivals.items()}
    best = max(theirs, key=lambda name: sign * float(theirs[name][0]))
    ahead: Floats = sign * mine - np.max([sign * control for control in theirs.values()], axis=0)
    value, low, high = _estimate(ahead, len(rows), key[1])
    yield key[0], f"{key[1]}_over_control", value, len(rows), low, high, [f"best control: {best}"]


def stability_rows(table: pa.Table, explained: MapSpec, keep: bool, flags: Sequence[str]) -> Iterator[Row]:
    """Yield the mean rank correlation and IoU with the clean map, for predictions that held, for those that fell, and
    for all.

    keep: count samples that are predicted wrong without the condition, too.
    """
    whole = table.filter(table["error"].is_null())
    read = whole if keep else whole.filter(pc.fill_null(whole["clean_correct"], True))
    if len(read) < len(whole):
        left = f"{len(whole) - len(read)} of {len(whole)} samples"
        flags = [*flags, f"{left} are predicted wrong and left out of the scores of maps"]
    held = pc.fill_null(read["held"], False).to_numpy()
    groups = {"": np.ones(len(held), bool), "_held": held, "_fell": ~held}
    broken = pc.sum(read["degenerate"]).as_py() or 0
    lines = [
        *flags,
        *([f"{broken} of {len(read)} pairs have a map that is constant or not finite; left out"] if broken else []),
    ]
    for column in ("rank_correlation", "map_iou"):
        values = column_of(read, column)
        for suffix, group in groups.items():
            chosen = values[group & np.isfinite(values)]
            if len(chosen):
                drawn = _drawn(chosen, column, np.arange(len(chosen)))
                value, low, high = _estimate(drawn, len(chosen), column)
                yield explained.text, column + suffix, value, len(chosen), low, high, lines


def _of_samples(values: Floats | Counted, metric: str, rows: Rows) -> tuple[float, float, float]:
    """Return the metric on the samples and its interval, Wilson's of hits and misses."""
    value, low, high = _estimate(_drawn(values, metric, rows), len(rows), metric)
    if metric == _HIT and not isinstance(values, Counted) and np.isin(values[rows], (0, 1)).all():
        low, high = wilson(int(values[rows].sum()), len(rows))
    return value, low, high


def _estimate(drawn: Floats, n: int, metric: str) -> tuple[float, float, float]:
    """Return the metric and its interval; nan for a few samples, and for a maximum, which resampling biases upwards."""
    if not has_interval(n, metric):
        return float(drawn[0]), math.nan, math.nan
    ((low, high),) = intervals(drawn[1:, None], n, drawn[:1])
    return float(drawn[0]), low, high


def _present(values: Floats | Counted) -> Rows:
    """Return the rows of the samples that have a figure."""
    return values.present if isinstance(values, Counted) else np.flatnonzero(np.isfinite(values))


def _drawn(values: Floats | Counted, metric: str, rows: Rows) -> Floats:
    """Return the metric on the samples, followed by its R bootstrap replicates if it has an interval: (1 + R,)."""
    if isinstance(values, Counted):
        return values.figure(rows)
    n = len(rows)
    chosen = values[rows]

    def mean(counts: Floats) -> Floats:
        return counts @ chosen / n

    parts = [mean(np.ones((1, n))), *([resampled_figures(mean, n)[:, 0]] if has_interval(n, metric) else [])]
    return np.concatenate(parts)
