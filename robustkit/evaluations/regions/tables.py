"""Show drowned regions as tables: what is kept of the accuracy, next to random regions of the same size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..listed import Figures, ListedConditions
from .measures import ACCURACY, AREA, KEPT, LEAD, RANDOM
from .vocabulary import KIND, VOCABULARY

TITLE = "Region noise"
_NOTE = (
    "Kept: of the images that are predicted right as they are, the share that still is with the region drowned in "
    "noise; random: with the same region drowned at a random place. Difference: kept minus random in points, paired by "
    "image. In brackets 95 % intervals."
)
_SHOWN = (AREA, ACCURACY, KEPT, RANDOM, LEAD)
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
