"""Compare two checkpoints by scores of maps, sample by sample."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from ...errors import RunError
from ..recorded import PerSample, Recorded, not_paired
from .condition import PLAIN, SCORES, MapSpec, of_mode, parse_explained, parts_of
from .measures import STABILITY

_LOCALISED = ("cam_pixel_accuracy", "cam_iou", "cam_dice")  # precision and recall follow them too closely
_COLUMN_OF = {metric: column for column, metric in PLAIN.items()}


def compared(first: Recorded, second: Recorded, common: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield condition and metric of the scores that some sample of either side has, for all maps except controls.

    A score that was not requested is null throughout a record.
    """
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


def _keys(explained: MapSpec) -> list[tuple[str, str]]:
    if explained.under:
        return [(explained.text, metric.name) for metric in STABILITY]
    localised = [(of_mode(explained, mode), name) for mode in ("box", "mask") for name in _LOCALISED]
    return [*localised, *((explained.text, name) for name in PLAIN.values())]


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a score for each sample whose clean image is predicted right and that has one.

    Raises:
        RunError: it is not a mean over samples, or there are no records.
    """
    text, column, right = _columns(condition, metric)
    read = side.samples(text, [column, right])
    figures = read.columns[column]
    kept = np.flatnonzero((read.columns[right] != 0) & ~np.isnan(figures))  # nan: without a label
    return read.ids.take(kept), figures[kept]


def _columns(condition: str, metric: str) -> tuple[str, str, str]:
    """Return the condition of a score's records, its column, and the column of what was predicted right."""
    parts = parts_of(condition)
    assert parts is not None
    explained, mode = parts
    if explained.under:
        names = [score.name for score in STABILITY]
    else:
        names = [f"cam_{name}" for name in SCORES] if mode else list(PLAIN.values())
    if metric not in names:
        raise not_paired(condition, metric, names)
    column = f"{mode}_{metric.removeprefix('cam_')}" if mode else _COLUMN_OF.get(metric, metric)
    return explained.text, column, "clean_correct" if explained.under else "correct"
