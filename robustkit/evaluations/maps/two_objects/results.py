"""Turn the records of maps of two objects into results."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...aggregate import Reading, Row, column_of, mean_of, readable, share_of
from ...family import Summary
from ...metrics import interval_cell
from ...presenting import Figures, ListedConditions
from ...records import PerSample, Recorded, not_paired
from .condition import ASKED, FOUND, KIND, LEADS, METRICS, OTHER, SHARE, VOCABULARY

_COLUMNS = {"sample_id", "error", "correct", "nll", "linf", "l2", "degenerate"}
_MEANS = (SHARE.name, ASKED.name, OTHER.name, "centre_mass", "random_mass")


class TwoObjectSummary(Summary):
    """The rows of each method's maps. Images with an object outside the model's frame are not counted."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Row]:
        table, notes = self.reading.joined(self.reading.shards(condition, {*_COLUMNS, *_MEANS, FOUND.name}))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        whole = read.filter(read[SHARE.name].is_valid())
        if len(whole) < len(read):
            flags.append(
                f"{len(read) - len(whole)} of {len(read)} images have an object outside the frame; not counted"
            )
        if not len(whole):
            return
        if broken := int(column_of(whole, "degenerate").sum()):
            flags.append(f"{broken} of {len(whole)} images have a map that is constant or not finite; it counts as 0")
        figures = {name: column_of(whole, name) for name in _MEANS}
        for metric in (SHARE, ASKED, OTHER):
            yield condition, metric.name, *mean_of(figures[metric.name]), flags
        for control, lead in LEADS.items():
            yield condition, lead.name, *mean_of(figures[ASKED.name] - figures[control]), flags
        yield condition, FOUND.name, *share_of(column_of(whole, FOUND.name)), flags


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the images whose objects are both in the frame.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    read = side.samples(condition, [metric])
    figures = read.columns[metric]
    counted = np.isfinite(figures)
    return read.ids.filter(pa.array(counted)), figures[counted]


TITLE = "Two objects"
HEADINGS = (
    *("map", "n", "share of the asked %", "mass in the asked %", "in the other %"),
    *("over the other class's map", "over centre", "over random", "both found %"),
)
_NOTE = (
    "A map is asked for the class of each of two objects in turn. Share: of what it has in both objects, the part in "
    "the one that was asked for; 50 % for a map that is the same for all classes. Then how far its mass in the asked "
    "object is ahead, in points, of the map of the other class, a centred Gaussian, and a random map. Both found: the "
    "two most probable classes are those of the objects. In brackets 95 % intervals."
)


def _cells(figures: Figures) -> list[str]:
    shown = (SHARE, ASKED, OTHER, *LEADS.values(), FOUND)
    return [interval_cell(figures.get(metric.name)) for metric in shown]


TWO_OBJECTS = ListedConditions(KIND, TITLE, HEADINGS, 2, _NOTE, VOCABULARY.label, SHARE.name, _cells)
