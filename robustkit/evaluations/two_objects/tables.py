"""Show maps of two objects as tables: what lies in the object that was asked for, and how far ahead of controls."""

from __future__ import annotations

from ..cells import interval_cell
from ..listed import Figures, ListedConditions
from .measures import ASKED, FOUND, LEADS, OTHER, SHARE
from .vocabulary import KIND, VOCABULARY

TITLE = "Two objects"
HEADINGS = (
    *("map", "n", "share of the asked %", "mass in the asked %", "in the other %"),
    *("over the other class's map", "over centre", "over random", "both found %"),
)
_NOTE = (
    "A map is asked for the class of each of two objects in turn. Share: of what it has in both objects, the part in "
    "the one that was asked for; 50 % for a map that is the same for all classes. Then how far its mass in the asked "
    "object is ahead, in points, of the map of the other class, a centred Gaussian, and a random map. Both found: the "
    "two most probable classes are those of the objects. In brackets 95 % intervals."
)


def _cells(figures: Figures) -> list[str]:
    shown = (SHARE, ASKED, OTHER, *LEADS.values(), FOUND)
    return [interval_cell(figures.get(metric.name)) for metric in shown]


TWO_OBJECTS = ListedConditions(KIND, TITLE, HEADINGS, 2, _NOTE, VOCABULARY.label, SHARE.name, _cells)
