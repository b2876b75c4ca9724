"""Changed images in results: how often predictions flip, and what that does to maps."""

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
from .condition import BEFORE, CHANGE, FLIPPED, FOLLOWED, KIND, METRICS, RIGHT, VOCABULARY

if TYPE_CHECKING:
    from ....display.table import TextTable
    from ....runs.manifest import Manifest
    from ...aggregate import Results
    from ...family import Looks
    from ...metrics import Metric
    from ...records import Compared

_COLUMNS = {"sample_id", "error", "correct", "nll", "linf", "l2", "clean_correct", "flipped", "followed"}
_MASSES = ("mass_before", "mass_after")


class CounterfactualSummary(Summary):
    """The rows of each change. Flips and masses are of the images that are predicted right as they are."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Result]:
        table, notes = self.reading.joined(self.reading.shards(condition, {*_COLUMNS, *_MASSES}))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        if not len(read):
            return
        yield Result(condition, RIGHT.name, *share_of(column_of(read, "correct")), flags)
        counted = read.filter(read["clean_correct"])
        if not len(counted):
            return
        for metric in (FLIPPED, FOLLOWED):
            values = column_of(counted, metric.name)
            if not np.isnan(values).any():
                yield Result(condition, metric.name, *share_of(values), flags)
        if "mass_before" not in read.column_names:
            return
        before, after = (column_of(counted, name) for name in _MASSES)
        told = np.isfinite(before) & np.isfinite(after)
        if not told.any():
            return
        if lost := int((~told).sum()):
            flags = [*flags, f"{lost} of {len(told)} images have a map that is constant or not finite; left out"]
        for metric, values in ((BEFORE, before), (CHANGE, after - before)):
            yield Result(condition, metric.name, *mean_of(values[told]), flags)


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


class CounterfactualsAggregator(Aggregator):
    """Records of counterfactuals into results."""

    words = VOCABULARY

    def summary(self, reading: Reading) -> Summary:
        return CounterfactualSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        for text in common:
            given = dict(VOCABULARY.parse(text).parameters)
            some = [RIGHT, FLIPPED, *([FOLLOWED] if given["change"] != "background" else [])]
            yield from ((text, metric.name) for metric in (*some, *([CHANGE] if "map" in given else [])))

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        return per_sample(side, condition, metric)


AGGREGATOR = CounterfactualsAggregator()


class CounterfactualsPresenter(Presenter):
    """Results of counterfactuals for people."""

    words = VOCABULARY

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == FLIPPED.name)

    def tables(self, results: Results) -> Sequence[TextTable]:
        return CHANGED.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        yield from (ShortRow(f"changed images: {FLIPPED.label}", self.words.label(t), t, FLIPPED) for t in texts)

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(CHANGED.grids(tables), lines)}
            yield Section("counterfactuals", CHANGED.title, lambda: values, template="plain")


PRESENTER = CounterfactualsPresenter()
