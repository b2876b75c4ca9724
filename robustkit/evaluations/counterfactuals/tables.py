"""Show changed images as tables: how often predictions flip, and what that does to maps."""

from __future__ import annotations

from ..cells import interval_cell
from ..listed import Figures, ListedConditions
from .measures import BEFORE, CHANGE, FLIPPED, FOLLOWED, RIGHT
from .vocabulary import KIND, VOCABULARY

TITLE = "Changed images"
HEADINGS = (
    *("what is changed", "n", "top-1 %", "flips %", "flips to what was put in %"),
    *("mass on the object before %", "change, points"),
)
"""The last two where there are maps."""
_NOTE = (
    "One thing of each image is changed. Top-1 is of the changed images, whose label the outline decides. Flips are of "
    "the n images that are predicted right as they are: predictions that change, and those that become the class whose "
    "colour or outline was put in. In brackets 95 % intervals."
)


def _cells(figures: Figures) -> list[str]:
    shown = (RIGHT, FLIPPED, FOLLOWED, *([BEFORE, CHANGE] if CHANGE.name in figures else []))
    return [interval_cell(figures.get(metric.name)) for metric in shown]


CHANGED = ListedConditions(KIND, TITLE, HEADINGS, 3, _NOTE, VOCABULARY.label, FLIPPED.name, _cells)
