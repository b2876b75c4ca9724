"""Maps of two objects in results: what lies in the asked object, and how far ahead of controls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...common.figure import Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import mean_of, share_of
from ...evaluations.aggregate import column_of
from ...evaluations.maps.tables import ListedAggregator, ListedPresenter
from . import ASKED, FOUND, LEADS, OTHER, SHARE, VOCABULARY


class TwoObjectsAggregator(ListedAggregator):
    """Images with an object outside the model's frame are not counted."""

    words = VOCABULARY
    read = (
        *("sample_id", "error", "correct", "nll", "linf", "l2", "degenerate"),
        *(SHARE.name, ASKED.name, FOUND.name, *LEADS),
    )

    def rows(
        self, condition: str, read: pa.Table, flags: list[Finding], groups: Groups | None = None
    ) -> Iterator[Figure]:
        whole = read.filter(read[SHARE.name].is_valid())
        if gone := len(read) - len(whole):
            flags.append(Finding.of("maps/object-outside", count=gone, n=len(read)))
        if not len(whole):
            return
        if broken := int(column_of(whole, "degenerate").sum()):
            flags.append(Finding.of("maps/scored-as-zero", count=broken, n=len(whole)))
        groups = chosen_groups(groups, np.isfinite(column_of(read, SHARE.name)))
        for metric in (SHARE, ASKED, OTHER):
            yield mean_of(column_of(whole, metric.name), groups).of(condition, metric.name, flags)
        asked = column_of(whole, ASKED.name)
        for control, lead in LEADS.items():
            yield mean_of(asked - column_of(whole, control), groups).of(condition, lead.name, flags)
        yield share_of(column_of(whole, FOUND.name), groups).of(condition, FOUND.name, flags)


class TwoObjectsPresenter(ListedPresenter):
    words, section_title, first, chief, counted = VOCABULARY, "Two objects", "map", (SHARE,), SHARE
    note = (
        "A map is made for the class of each of two objects in turn. Share: of its mass in both objects, the part in "
        "the requested one; 50 % for a map that is the same for all classes. Then the lead of its mass in the "
        "requested object, in points, over the map of the other class, a centred Gaussian, and a random map. Both "
        "found: the two most probable classes are those of the objects."
        " 95 % intervals in brackets."
    )
