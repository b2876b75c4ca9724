"""Drowned regions in results: the accuracy, and what is kept of it next to random regions of the same size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....common.differences import of_outcomes
from ....display.grid import with_flags
from ....display.table import Section
from ...aggregate import Reading, Result, column_of, mean_of, readable, share_of
from ...family import Aggregator, Presenter, Summary
from ...interface import ShortRow
from ...presenting import Figures, ListedConditions, flag_lines, of_family
from ...records import PerSample, Recorded, not_paired
from .condition import ACCURACY, AREA, KEPT, KEPT_RANDOM, KIND, LEAD, METRICS, VOCABULARY, given_of, which_count

if TYPE_CHECKING:
    from ....display.table import TextTable
    from ....runs.manifest import Manifest
    from ...aggregate import Results
    from ...family import Looks
    from ...metrics import Metric

_COLUMNS = {"sample_id", "error", "correct", "nll", "clean_correct", "random_correct", "region_area", "linf", "l2"}


class RegionSummary(Summary):
    """The rows of each region. Images that do not have it, or nothing else, are not counted, and how many is said."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Result]:
        table, notes = self.reading.joined(self.reading.shards(condition, _COLUMNS))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        area = column_of(read, AREA.name)
        counted = which_count(condition, area)
        if lacking := int((area == 0).sum()):
            flags.append(f"{lacking} of {len(read)} images {_without(condition)}; not counted")
        if filled := int((~counted & (area > 0)).sum()):
            flags.append(f"{filled} of {len(read)} images are filled by it, which leaves no other place; not counted")
        if not counted.any():
            return
        right, before = (column_of(read, name)[counted] > 0 for name in ("correct", "clean_correct"))
        yield Result(condition, ACCURACY.name, *share_of(right), flags)
        yield Result(condition, AREA.name, *mean_of(area[counted]), flags)
        if not (of := int(before.sum())):
            return
        kept = right[before]
        yield Result(condition, KEPT.name, *share_of(kept), flags)
        if "random_correct" not in read.column_names:  # of random regions
            return
        there = column_of(read, "random_correct")[counted][before] > 0
        yield Result(condition, KEPT_RANDOM.name, *share_of(there), flags)
        gained, lost = int((kept & ~there).sum()), int((there & ~kept).sum())
        yield Result(condition, LEAD.name, (gained - lost) / of, of, *of_outcomes(gained, lost, of), flags)


def _without(condition: str) -> str:
    """Say why an image may lack a region."""
    whys = {"object": "have no object that is known", "background": "have no background, or no object that is known"}
    return whys.get(given_of(condition)["region"], "have a map that is constant or not finite")


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the samples that are counted; what is kept, of those that are predicted right as they are.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    columns = ["correct", "clean_correct", AREA.name, *(["random_correct"] if metric == LEAD.name else [])]
    read = side.samples(condition, columns)
    figures, counted = read.columns["correct"], which_count(condition, read.columns[AREA.name])
    if metric == LEAD.name:
        figures = figures - read.columns["random_correct"]
    if metric != ACCURACY.name:
        counted &= read.columns["clean_correct"] > 0
    return read.ids.filter(pa.array(counted)), figures[counted]


TITLE = "Region noise"
_NOTE = (
    "Kept: of the images that are predicted right as they are, the share that still is with the region drowned in "
    "noise; random: with the same region drowned at a random place. Difference: kept minus random in points, paired by "
    "image. In brackets 95 % intervals."
)
_SHOWN = (AREA, ACCURACY, KEPT, KEPT_RANDOM, LEAD)
HEADINGS = ("region", "n", "area %", "top-1 %", "kept %", "random %", "difference")


def _cells(figures: Figures) -> list[str]:
    return [_cell(figures.get(metric.name), metric == LEAD) for metric in _SHOWN]


REGIONS = ListedConditions(KIND, TITLE, HEADINGS, 4, _NOTE, VOCABULARY.label, ACCURACY.name, _cells)


def _cell(row: Mapping[str, Any] | None, signed: bool) -> str:
    """Return `86.0 [84.5, 87.4]` of a fraction in percent."""
    if row is None or row["value"] is None:
        return "–"
    value, low, high = (
        None if row[key] is None else f"{round(100 * row[key], 1) + 0.0:{'+' * signed}.1f}"  # no -0.0
        for key in ("value", "ci_low", "ci_high")
    )
    return f"{value} [{low}, {high}]" if low and high else f"{value}"


class RegionsAggregator(Aggregator):
    """Records of regions into results."""

    words = VOCABULARY

    def summary(self, reading: Reading) -> Summary:
        return RegionSummary(reading)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        return per_sample(side, condition, metric)


AGGREGATOR = RegionsAggregator()


class RegionsPresenter(Presenter):
    """Results of regions for people."""

    words = VOCABULARY

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == KEPT.name)

    def tables(self, results: Results) -> Sequence[TextTable]:
        return REGIONS.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        for metric in (KEPT, LEAD):
            yield from (
                ShortRow(f"region noise: {metric.heading}", self.words.label(text), text, metric) for text in texts
            )

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(REGIONS.grids(tables), lines)}
            yield Section(self.name, REGIONS.title, lambda: values)


PRESENTER = RegionsPresenter()
