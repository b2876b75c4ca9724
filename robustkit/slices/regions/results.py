"""Drowned regions in results: the accuracy, and what is kept of it next to random regions of the same size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...common.differences import of_outcomes
from ...common.figure import PAIRED_SCORE, Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import Floats, mean_of, share_of
from ...evaluations.aggregate import column_of
from ...evaluations.maps.tables import ListedAggregator, ListedPresenter
from ...evaluations.records import CheckpointRecords
from . import ACCURACY, AREA, KEPT, KEPT_RANDOM, LEAD, VOCABULARY, given_of, which_count

_WHY = {"object": "have no known object", "background": "have no background, or no known object"}


class RegionsAggregator(ListedAggregator):
    """Images that do not have a region, or nothing else, are not counted, and how many is said."""

    words = VOCABULARY
    read = ("sample_id", "error", "correct", "nll", "clean_correct", "random_correct", "region_area", "linf", "l2")

    def rows(
        self, condition: str, read: pa.Table, flags: list[Finding], groups: Groups | None = None
    ) -> Iterator[Figure]:
        area = column_of(read, AREA.name)
        counted = which_count(condition, area)
        if lacking := int((area == 0).sum()):
            why = _WHY.get(given_of(condition)["region"], "have a map that is constant or not finite")
            flags.append(Finding.of("regions/lacking", count=lacking, n=len(read), why=why))
        if filled := int((~counted & (area > 0)).sum()):
            flags.append(Finding.of("regions/filled", count=filled, n=len(read)))
        if not counted.any():
            return
        right, before = (column_of(read, name)[counted] > 0 for name in ("correct", "clean_correct"))
        groups = chosen_groups(groups, counted)
        yield share_of(right, groups).of(condition, ACCURACY.name, flags)
        yield mean_of(area[counted], groups).of(condition, AREA.name, flags)
        if not (of := int(before.sum())):
            return
        kept, groups = right[before], chosen_groups(groups, before)
        yield share_of(kept, groups).of(condition, KEPT.name, flags)
        if "random_correct" not in read.column_names:  # of random regions
            return
        there = column_of(read, "random_correct")[counted][before] > 0
        yield share_of(there, groups).of(condition, KEPT_RANDOM.name, flags)
        gained, lost = int((kept & ~there).sum()), int((there & ~kept).sum())
        lead = Figure((gained - lost) / of, of, *of_outcomes(gained, lost, of), PAIRED_SCORE)
        if groups is not None:
            lead = mean_of(kept - there.astype(np.float64), groups)
        yield lead.of(condition, LEAD.name, flags)

    def of_samples(self, side: CheckpointRecords, condition: str, metric: str) -> tuple[pa.Array, Floats]:
        names = ["correct", "clean_correct", AREA.name, *["random_correct"] * (metric == LEAD.name)]
        read = side.samples(condition, names)
        figures, counted = read.columns["correct"], which_count(condition, read.columns[AREA.name])
        if metric == LEAD.name:
            figures = figures - read.columns["random_correct"]
        if metric != ACCURACY.name:
            counted &= read.columns["clean_correct"] > 0
        return read.ids, np.where(counted, figures, np.nan)


class RegionsPresenter(ListedPresenter):
    words = VOCABULARY
    section_title, first, template = "Region noise", "region", "regions"
    chief, counted, signed = (KEPT, LEAD), ACCURACY, (LEAD,)
    note = (
        "Kept: of the images classified correctly when clean, the share that still is with noise over the region; "
        "random: with noise over the same region at a random place."
        " Difference: kept minus random in points, "
        "paired by image. 95 % intervals in brackets."
    )
