"""Classification of time series as a task, and what its numbers are."""

from __future__ import annotations

from ...evaluations.metrics import Term
from ...protocol.card import Samples
from ..labelled.metrics import terms
from ..labelled.task import Labelled

SAMPLES = Samples("series", "series")
TERMS = (
    *terms(SAMPLES),
    Term(
        "σ",
        "The standard deviation of a channel over all steps of all training series, which the checkpoint carries. "
        "Sizes of changes are in its units, so that channels of different scales count alike.",
        ("sigma",),
    ),
    Term(
        "ε",
        "The radius of an attack: how far it may change a series. Under L∞, 0.1 σ lets each value change by a tenth of "
        "the standard deviation of its channel; under L2, it bounds the length of the whole change in these units. "
        "Values have no other bounds.",
        ("eps",),
    ),
    Term(
        "largest |δ|",
        "The largest change of any series that was measured, in units of each channel's standard deviation: of a value "
        "under L∞, of the length of the whole change under L2. Under an attack it should not exceed the radius ε.",
        ("largest linf |δ|", "largest l2 |δ|", "|δ|"),
    ),
)


class SeriesClassification(Labelled):
    """One class per series."""

    name, terms = "series", TERMS
    command, card, hub = "series", "series", "time-series-classification"
    samples = SAMPLES


TASK = SeriesClassification()
