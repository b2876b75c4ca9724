"""Turn the records of changed images into results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...aggregate import Reading, Row, column_of, mean_of, readable, share_of
from ...family import Summary
from ...metrics import interval_cell
from ...presenting import Figures, ListedConditions
from ...records import PerSample, Recorded, not_paired
from .condition import BEFORE, CHANGE, FLIPPED, FOLLOWED, KIND, METRICS, RIGHT, VOCABULARY

_COLUMNS = {"sample_id", "error", "correct", "nll", "linf", "l2", "clean_correct", "flipped", "followed"}
_MASSES = ("mass_before", "mass_after")


class CounterfactualSummary(Summary):
    """The rows of each change. Flips and masses are of the images that are predicted right as they are."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Row]:
        table, notes = self.reading.joined(self.reading.shards(condition, {*_COLUMNS, *_MASSES}))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        if not len(read):
            return
        yield condition, RIGHT.name, *share_of(column_of(read, "correct")), flags
        counted = read.filter(read["clean_correct"])
        if not len(counted):
            return
        for metric in (FLIPPED, FOLLOWED):
            values = column_of(counted, metric.name)
            if not np.isnan(values).any():
                yield condition, metric.name, *share_of(values), flags
        if "mass_before" not in read.column_names:
            return
        before, after = (column_of(counted, name) for name in _MASSES)
        told = np.isfinite(before) & np.isfinite(after)
        if not told.any():
            return
        if lost := int((~told).sum()):
            flags = [*flags, f"{lost} of {len(told)} images have a map that is constant or not finite; left out"]
        for metric, values in ((BEFORE, before), (CHANGE, after - before)):
            yield condition, metric.name, *mean_of(values[told]), flags


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the samples that are predicted right as they are; of all where it is whether the changed image
    is predicted right.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    if metric == RIGHT.name:
        read = side.samples(condition, ["correct"])
        return read.ids, read.columns["correct"]
    columns = ["mass_before", "mass_after"] if metric == CHANGE.name else [metric]
    read = side.samples(condition, ["clean_correct", *columns])
    figures = read.columns[columns[-1]]
    if metric == CHANGE.name:
        figures = figures - read.columns["mass_before"]
    counted = (read.columns["clean_correct"] > 0) & ~np.isnan(figures)
    return read.ids.filter(pa.array(counted)), figures[counted]


TITLE = "Changed images"
HEADINGS = (
    *("what is changed", "n", "top-1 %", "flips %", "flips to what was put in %"),
    *("mass on the object before %", "change, points"),
)
"""The last two where there are maps."""
_NOTE = (
    "One thing of each image is changed. Top-1 is of the changed images, whose label the outline decides. Flips are of "
    "the n images that are predicted right as they are: predictions that change, and those that become the class whose "
    "colour or outline was put in. In brackets 95 % intervals."
)


def _cells(figures: Figures) -> list[str]:
    shown = (RIGHT, FLIPPED, FOLLOWED, *([BEFORE, CHANGE] if CHANGE.name in figures else []))
    return [interval_cell(figures.get(metric.name)) for metric in shown]


CHANGED = ListedConditions(KIND, TITLE, HEADINGS, 3, _NOTE, VOCABULARY.label, FLIPPED.name, _cells)
