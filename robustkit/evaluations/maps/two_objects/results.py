"""Maps of two objects in results: what lies in the asked object, and how far ahead of controls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ....display.grid import with_flags
from ....display.table import Section
from ...aggregate import Reading, Result, column_of, mean_of, readable, share_of
from ...family import Aggregator, Presenter, Summary
from ...interface import ShortRow
from ...metrics import interval_cell
from ...presenting import Figures, ListedConditions, flag_lines, of_family
from ...records import PerSample, Recorded, not_paired
from .condition import ASKED, FOUND, KIND, LEADS, METRICS, OTHER, SHARE, VOCABULARY

if TYPE_CHECKING:
    from ....display.table import TextTable
    from ....runs.manifest import Manifest
    from ...aggregate import Results
    from ...family import Looks
    from ...metrics import Metric

_COLUMNS = {"sample_id", "error", "correct", "nll", "linf", "l2", "degenerate"}
_MEANS = (SHARE.name, ASKED.name, OTHER.name, "centre_mass", "random_mass")


class TwoObjectSummary(Summary):
    """The rows of each method's maps. Images with an object outside the model's frame are not counted."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Result]:
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
            yield Result(condition, metric.name, *mean_of(figures[metric.name]), flags)
        for control, lead in LEADS.items():
            yield Result(condition, lead.name, *mean_of(figures[ASKED.name] - figures[control]), flags)
        yield Result(condition, FOUND.name, *share_of(column_of(whole, FOUND.name)), flags)


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


class TwoObjectsAggregator(Aggregator):
    """Records of two objects into results."""

    words = VOCABULARY

    def summary(self, reading: Reading) -> Summary:
        return TwoObjectSummary(reading)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        return per_sample(side, condition, metric)


AGGREGATOR = TwoObjectsAggregator()


class TwoObjectsPresenter(Presenter):
    """Results of two objects for people."""

    words = VOCABULARY

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == SHARE.name)

    def tables(self, results: Results) -> Sequence[TextTable]:
        return TWO_OBJECTS.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        yield from (ShortRow(f"two objects: {SHARE.heading}", self.words.label(text), text, SHARE) for text in texts)

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(TWO_OBJECTS.grids(tables), lines)}
            yield Section("two-objects", TWO_OBJECTS.title, lambda: values, template="plain")


PRESENTER = TwoObjectsPresenter()
