"""Classification of time series as a task, and what its numbers are."""

from __future__ import annotations

from ...protocol.card import SampleWords
from ...tasks.labelled import Labelled

SAMPLES = SampleWords("series", "series")


class SeriesClassification(Labelled):
    """One class per series."""

    name = "series"
    command, card, hub = "series", "series", "time-series-classification"
    samples = SAMPLES


TASK = SeriesClassification()
