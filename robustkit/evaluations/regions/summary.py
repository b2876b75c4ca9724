"""Turn the records of drowned regions into results: accuracy, and what is kept of it next to random regions."""

from __future__ import annotations

from collections.abc import Iterator

from ...common.differences import of_outcomes
from ..family import Summary
from ..rows import Reading, Row, column_of, mean_of, readable, share_of
from .measures import ACCURACY, AREA, KEPT, LEAD, RANDOM
from .vocabulary import given_of, which_count

_COLUMNS = {"sample_id", "error", "correct", "nll", "clean_correct", "random_correct", "region_area", "linf", "l2"}


class RegionSummary(Summary):
    """The rows of each region. Images that do not have it, or nothing else, are not counted, and how many is said."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> Iterator[Row]:
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
        yield condition, ACCURACY.name, *share_of(right), flags
        yield condition, AREA.name, *mean_of(area[counted]), flags
        if not (of := int(before.sum())):
            return
        kept = right[before]
        yield condition, KEPT.name, *share_of(kept), flags
        if "random_correct" not in read.column_names:  # of random regions
            return
        there = column_of(read, "random_correct")[counted][before] > 0
        yield condition, RANDOM.name, *share_of(there), flags
        gained, lost = int((kept & ~there).sum()), int((there & ~kept).sum())
        yield condition, LEAD.name, (gained - lost) / of, of, *of_outcomes(gained, lost, of), flags


def _without(condition: str) -> str:
    """Say why an image may lack a region."""
    whys = {"object": "have no object that is known", "background": "have no background, or no object that is known"}
    return whys.get(given_of(condition)["region"], "have a map that is constant or not finite")
