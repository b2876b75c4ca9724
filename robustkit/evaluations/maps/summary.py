"""Turn the records of a checkpoint's maps into results."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ..family import Summary
from ..rows import Reading, Row
from .condition import parse_explained
from .metrics import Figures, is_wanted_of_maps, map_figures, map_rows, stability_rows
from .pooled import Pooled


class MapSummary(Summary):
    """Scores of maps, compared with those of controls, and how maps change with the images."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.figures: list[Figures] = []

    def add(self, condition: str) -> Iterable[Row]:
        reading, explained, pooled = self.reading, parse_explained(condition), Pooled()
        assert explained is not None
        shards = partial(reading.shards, condition, is_wanted_of_maps)
        table, notes = reading.joined(map(pooled.taken, shards()))
        flags = [*reading.flags(condition, table), *notes]
        keep = reading.manifest.keep_misclassified
        if explained.under:
            return stability_rows(table, explained, keep, flags)
        self.figures.append(map_figures(shards, table, pooled, explained, keep, flags))
        return ()

    def finish(self) -> Iterable[Row]:
        return map_rows(self.figures)
