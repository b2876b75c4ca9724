"""Turn the records of maps of two objects into results."""

from __future__ import annotations

from collections.abc import Iterator

from ..family import Summary
from ..rows import Reading, Row, column_of, mean_of, readable, share_of
from .measures import ASKED, FOUND, LEADS, OTHER, SHARE

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
