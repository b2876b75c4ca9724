"""Turn the records of a checkpoint's maps into results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from ...protocol.condition import CLEAN, part_of
from ..family import Summary
from ..rows import Reading, Row, readable
from ..support import supported_rows
from .condition import ASSUMED_BOXES, parse_explained
from .measures import FAITHFUL
from .metrics import Figures, is_wanted_of_maps, map_figures, map_rows, stability_rows
from .pooled import Counted, Pooled


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
        if "degenerate" not in table.column_names:  # no sample could be read
            return ()
        flags = [*reading.flags(condition, table), *notes]
        flags += [note for note in reading.manifest.data.notes if note.startswith(ASSUMED_BOXES)]
        keep = reading.manifest.keep_misclassified
        if explained.under:
            return stability_rows(table, explained, keep, flags)
        self.figures.append(map_figures(shards, table, pooled, explained, keep, flags))
        return ()

    def finish(self) -> Iterator[Row]:
        yield from map_rows(self.figures)
        for figures in self.figures:
            if part_of(figures.explained.text) and not figures.explained.is_control:
                yield from self._supported(figures)

    def _supported(self, figures: Figures) -> Iterator[Row]:
        """Yield scores of faithfulness, supported by the confidence of the model on all clean images: of the same kind
        of sample, predicted right unless the run keeps maps of wrong predictions.
        """
        reading, names = self.reading, ["sample_id", "error", "correct", "confidence"]
        if (reading.checkpoint, CLEAN.text) not in reading.run.units():
            return
        clean = readable(reading.run.table(reading.checkpoint, CLEAN.text, names))
        if not reading.manifest.keep_misclassified:
            clean = clean.filter(clean["correct"].fill_null(True))
        for metric in FAITHFUL:
            values = figures.values.get((figures.explained.text, metric.name))
            if values is None or isinstance(values, Counted):
                continue
            table = pa.table({"sample_id": figures.ids, metric.name: values})
            others = clean.select(["sample_id", "confidence"])
            yield from supported_rows(figures.explained.text, metric, table, CLEAN.text, others, figures.flags)
