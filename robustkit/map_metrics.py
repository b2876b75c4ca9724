"""Records of maps into results: scores with intervals, controls beside them, and how stable maps are.

Scores at the threshold exist in two modes, `cam(agcam,mode=mask)` and `cam(agcam,mode=box)`; those without a threshold
stand under `cam(agcam)`. Maps of wrong predictions are left out and counted, unless the run keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from cam.localisation import IOUS, THRESHOLDS, pxap

from .explaining import CONTROLS, MODES, SCORES, Explained, parse_explained
from .intervals import Floats, bootstrap

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[str, str, float, int, float, float, list[str]]
Rows = NDArray[np.int64]
Statistic = Callable[[Floats], Floats]

PLAIN = {
    "pointing_game": "pointing_game",
    "energy_inside": "energy_inside",
    "abpc": "abpc",
    "insertion": "insertion_auc",
    "deletion": "deletion_auc",
    "head_correlation": "head_correlation",
}
"""Columns whose mean is a metric, and its name."""
LOWER_IS_BETTER = ("deletion_auc",)
MAXIMA = ("max_box_acc",)
FEWEST = 10  # samples below which no interval is given
UNMOVED = 0.9
"""A rank correlation: maps that keep to it when the head is drawn anew do not tell of the class."""


@dataclass(frozen=True)
class Figures:
    """What the records of one map hold for n samples: a (n, ...) array a metric, nan where a sample has none."""

    explained: Explained
    ids: Sequence[str]
    values: dict[tuple[str, str], Floats]
    flags: tuple[str, ...] = ()

    def statistic(self, key: tuple[str, str], rows: Rows) -> Statistic:
        """Of those rows: how often each was drawn, (R, n), to (R,) figures."""
        return _STATISTICS.get(key[1], _mean)(self.values[key][rows])


def map_figures(table: pa.Table, explained: Explained, keep: bool, flags: Sequence[str]) -> Figures:
    """From the records of a condition. keep: count wrong predictions too."""
    read = table.filter(table["error"].is_null())
    labelled = read["correct"].null_count == 0
    chosen = read if keep or not labelled else read.filter(read["correct"])
    lines = list(flags)
    if len(chosen) < len(read):
        lines.append(f"{len(read) - len(chosen)} of {len(read)} samples are predicted wrong and left out")
    elif labelled and not all(read["correct"].to_pylist()):
        lines.append("maps of wrong predictions count, too")
    broken = sum(bool(value) for value in chosen["degenerate"].to_pylist())
    if broken:
        lines.append(f"{broken} of {len(chosen)} maps are constant or not finite; they count as all 0")
    values: dict[tuple[str, str], Floats] = {}
    base = replace(explained, under="").text
    names = set(chosen.column_names)
    for mode in MODES:
        for score in SCORES:
            if f"{mode}_{score}" in names:
                values[of_mode(explained, mode), f"cam_{score}"] = _column(chosen, f"{mode}_{score}")
    for column, metric in PLAIN.items():
        if column in names:
            values[base, metric] = _column(chosen, column)
    if "pixel_counts" in names and len(chosen):
        values[base, "pxap"] = _stacked(chosen["pixel_counts"].to_pylist())
        values[base, "max_box_acc"] = _unpacked(chosen["box_hits"].to_pylist())
    lost = sum(value or 0 for value in chosen["vanished_boxes"].to_pylist()) if "vanished_boxes" in names else 0
    if lost:
        lines.append(f"{lost} boxes lie outside the crop and are left out")
    return Figures(explained, chosen["sample_id"].to_pylist(), values, tuple(lines))


def of_mode(explained: Explained, mode: str) -> str:
    """The condition of scores at the threshold: `cam(agcam,mode=box)`."""
    return f"{explained.text[:-1]},mode={mode})"


def map_rows(found: Sequence[Figures]) -> Iterator[Row]:
    """Condition, metric, value, n, interval and flags of every score of one checkpoint's maps; and under
    `<metric>_over_control` how far each is ahead of the best control (negative: behind), paired by sample."""
    for figures in found:
        for key in figures.values:
            known = _known(figures.values[key])
            if not len(known):
                continue
            value, low, high = _estimate(figures.statistic(key, known), len(known), key[1])
            flags = list(figures.flags)
            if len(known) < len(figures.ids):
                why = "maps are constant" if key[1] == "head_correlation" else "samples have no object in the frame"
                flags.append(f"{len(figures.ids) - len(known)} of {len(figures.ids)} {why}")
            if key[1] == "head_correlation" and low >= UNMOVED:
                flags.append("maps stay when the head is drawn anew: they do not tell of the class")
            yield *key, value, len(known), low, high, flags
            if not figures.explained.is_control:
                yield from _over_control(figures, key, found)


def _over_control(figures: Figures, key: tuple[str, str], found: Sequence[Figures]) -> Iterator[Row]:
    """The lead over the best control; which one that is, is found anew in every resample."""
    sign = -1 if key[1] in LOWER_IS_BETTER else 1
    rivals: dict[str, Floats] = {}
    for other in found:
        own = (key[0].replace(f"({figures.explained.method}", f"({other.explained.method}", 1), key[1])
        same = replace(other.explained, method=figures.explained.method) == figures.explained
        if other.explained.method in CONTROLS and same and own in other.values and other.ids == figures.ids:
            rivals[other.explained.method] = other.values[own]
    if key[1] == "cam_pixel_accuracy" and "full" in rivals:
        rivals["nothing"] = 1 - rivals["full"]  # of a map that marks no pixel, which wins where objects are small
    known = _known(figures.values[key])
    for values in rivals.values():
        known = np.intersect1d(known, _known(values))
    if not rivals or not len(known):
        return
    kind = _STATISTICS.get(key[1], _mean)
    mine = kind(figures.values[key][known])
    theirs = {name: kind(values[known]) for name, values in rivals.items()}
    whole = np.ones((1, len(known)))
    best = max(theirs, key=lambda name: sign * float(theirs[name](whole)[0]))

    def lead(counts: Floats) -> Floats:
        ahead: Floats = sign * mine(counts) - np.max([sign * one(counts) for one in theirs.values()], axis=0)
        return ahead

    value, low, high = _estimate(lead, len(known), key[1])
    yield key[0], f"{key[1]}_over_control", value, len(known), low, high, [f"best control: {best}"]


def stability_rows(table: pa.Table, explained: Explained, keep: bool, flags: Sequence[str]) -> Iterator[Row]:
    """Mean rank correlation and IoU with the clean map: for predictions that held, for those that fell, and for all.

    keep: count samples that are predicted wrong without the condition, too.
    """
    whole = table.filter(table["error"].is_null())
    read = whole if keep else whole.filter(pc.fill_null(whole["clean_correct"], True))
    if len(read) < len(whole):
        flags = [*flags, f"{len(whole) - len(read)} of {len(whole)} samples are predicted wrong and left out"]
    held = np.array(read["held"].to_pylist(), dtype=bool)
    groups = {"": np.ones(len(held), bool), "_held": held, "_fell": ~held}
    broken = sum(bool(value) for value in read["degenerate"].to_pylist())
    lines = [
        *flags,
        *([f"{broken} of {len(read)} pairs have a map that is constant or not finite; left out"] if broken else []),
    ]
    for column in ("rank_correlation", "map_iou"):
        values = _column(read, column)
        for suffix, group in groups.items():
            chosen = values[group & np.isfinite(values)]
            if len(chosen):
                value, low, high = _estimate(_mean(chosen), len(chosen), column)
                yield explained.text, column + suffix, value, len(chosen), low, high, lines


def _estimate(statistic: Statistic, n: int, metric: str) -> tuple[float, float, float]:
    """The figure and its interval; none for a few samples, and for a maximum, which resampling biases upwards."""
    value = float(statistic(np.ones((1, n)))[0])
    if n < FEWEST or metric in MAXIMA:
        return value, math.nan, math.nan
    ((low, high),) = bootstrap(statistic, n)
    return value, low, high


def _known(values: Floats) -> Rows:
    """Rows of the samples that have a figure."""
    return np.flatnonzero(np.isfinite(values).all(axis=tuple(range(1, values.ndim))))


def _mean(values: Floats) -> Statistic:
    return lambda counts: counts @ values / counts.sum(axis=1)


def _pxap(values: Floats) -> Statistic:
    """Counts outside and inside the object by level, (n, 2 * levels), pooled over samples."""
    return lambda counts: pxap(torch.from_numpy(counts @ values).reshape(len(counts), 2, -1)).numpy()


def _max_box_acc(values: Floats) -> Statistic:
    """Hits by threshold and IoU, (n, thresholds * IOUS): the best threshold for each IoU, averaged."""

    def best(counts: Floats) -> Floats:
        shares = (counts @ values).reshape(len(counts), -1, len(IOUS)) / counts.sum(axis=1)[:, None, None]
        figures: Floats = shares.max(axis=1).mean(axis=1)
        return figures

    return best


_STATISTICS: dict[str, Callable[[Floats], Statistic]] = {"pxap": _pxap, "max_box_acc": _max_box_acc}


def _column(table: pa.Table, name: str) -> Floats:
    values: Floats = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _stacked(rows: Sequence[Sequence[int] | None]) -> Floats:
    width = max((len(row) for row in rows if row is not None), default=0)
    return np.array([[math.nan] * width if row is None else row for row in rows], dtype=np.float64)


def _unpacked(rows: Sequence[bytes | None]) -> Floats:
    width = len(THRESHOLDS) * len(IOUS)
    unknown = np.full(width, math.nan)
    return np.array(
        [unknown if row is None else np.unpackbits(np.frombuffer(row, np.uint8), count=width) for row in rows],
        dtype=np.float64,
    )


def parts_of(condition: str) -> tuple[Explained, str] | None:
    """A map's condition in results and its mode ('' without one); None for other conditions."""
    text, _, mode = condition.partition(",mode=")
    explained = parse_explained(text + ")" if mode else text)
    return None if explained is None else (explained, mode.rstrip(")"))
