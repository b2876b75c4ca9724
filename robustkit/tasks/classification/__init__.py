"""Classify images: one record row per image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...display.table import Section
from ...evaluations.presenting import left_out_lines
from ...evaluations.records import Pairings
from ..labelled import Labelled
from ..labelled.metrics import METRICS as METRICS

if TYPE_CHECKING:
    from ...evaluations.aggregate import Results
    from ...evaluations.family import Looks


class Classification(Labelled):
    """One class per image."""

    name = "classification"
    compared = Pairings(shown=("top1", "nll"), ended=("top1",), groups=("mean_error",), sets=("mean_error",))
    browsed = True
    command, card, hub = "audit", "standard", "image-classification"

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        sections = list(super().sections(results, looks))
        yield from sections
        if all(section.name != "corruptions" for section in sections):
            yield Section("corruptions", "Corruptions", lambda: {"grids": [], "left_out": left_out_lines(results.run)})


TASK = Classification()
