"""Classification of time series as a task."""

from __future__ import annotations

from ..labelled.task import Labelled
from .measures import TERMS


class SeriesClassification(Labelled):
    """One class per series."""

    name, terms = "series", TERMS
    command, card, hub = "series", "series", "time-series-classification"


TASK = SeriesClassification()
