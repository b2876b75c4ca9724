"""Changed images in results: how often predictions flip, and what that does to maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...common.figure import Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import Floats, mean_of, share_of
from ...evaluations.aggregate import column_of
from ...evaluations.maps.tables import ListedAggregator, ListedPresenter
from ...evaluations.records import CheckpointRecords, Pairings
from . import BEFORE, CHANGE, FLIPPED, FOLLOWED, RIGHT, VOCABULARY

_MASSES = ("mass_before", "mass_after")


class CounterfactualsAggregator(ListedAggregator):
    """Flips and masses are of the images that are predicted right as they are."""

    words = VOCABULARY
    read = ("sample_id", "error", "correct", "nll", "linf", "l2", "clean_correct", "flipped", "followed", *_MASSES)

    def rows(
        self, condition: str, read: pa.Table, flags: list[Finding], groups: Groups | None = None
    ) -> Iterator[Figure]:
        if not len(read):
            return
        yield share_of(column_of(read, "correct"), groups).of(condition, RIGHT.name, flags)
        counted = read.filter(read["clean_correct"])
        groups = chosen_groups(groups, column_of(read, "clean_correct") > 0)
        if not len(counted):
            return
        for metric in (FLIPPED, FOLLOWED):
            values = column_of(counted, metric.name)
            if not np.isnan(values).any():
                yield share_of(values, groups).of(condition, metric.name, flags)
        if "mass_before" not in read.column_names:
            return
        before, after = (column_of(counted, name) for name in _MASSES)
        known = np.isfinite(before) & np.isfinite(after)
        if lost := int((~known).sum()):
            flags = [*flags, Finding.of("maps/constant-not-counted", count=lost, n=len(known))]
        for metric, values in ((BEFORE, before), (CHANGE, after - before)) if known.any() else ():
            yield mean_of(values[known], chosen_groups(groups, known)).of(condition, metric.name, flags)

    def of_samples(self, side: CheckpointRecords, condition: str, metric: str) -> tuple[pa.Array, Floats]:
        if metric == RIGHT.name:
            return super().of_samples(side, condition, "correct")
        of = [*_MASSES] if metric == CHANGE.name else [metric]
        read = side.samples(condition, ["clean_correct", *of])
        figures = read.columns[of[-1]]
        if metric == CHANGE.name:
            figures = figures - read.columns[BEFORE.name]
        return read.ids, np.where(read.columns["clean_correct"] > 0, figures, np.nan)

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        for text in common:
            given = dict(VOCABULARY.parse(text).parameters)
            some = [RIGHT, FLIPPED, *[FOLLOWED] * (given["change"] != "background"), *[CHANGE] * ("map" in given)]
            yield from ((text, metric.name) for metric in some)


class CounterfactualsPresenter(ListedPresenter):
    words, section_title, first, optional = VOCABULARY, "Changed images", "what is changed", (BEFORE, CHANGE)
    chief, counted = (FLIPPED,), FLIPPED
    note = (
        "One property of each image is changed. Top-1 is of the changed images, whose label follows the outline. "
        "Flips are of the n images classified correctly when clean: predictions that change, and those that become "
        "the class whose colour or outline was inserted. 95 % intervals in brackets."
    )
