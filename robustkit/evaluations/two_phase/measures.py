"""What the numbers of attacks in two phases are."""

from __future__ import annotations

from ..metric import Metric
from ..term import Term

_MORE = "a larger second phase (second), or more samples for both"
ESTIMATE = Metric(
    *("estimated_top1", "robust accuracy, estimated %", 100, 1),
    share=True,
    noun="estimated robust accuracy",
    narrowed_by=_MORE,
)
KEPT = Metric("kept_in_second", "of those drawn, still standing %", 100, 1, binary=True, share=True, narrowed_by=_MORE)
METRICS = (ESTIMATE, KEPT)
TERMS = (
    Term(
        "two-phase",
        "All samples go through the first stages of an attack, and m of those that they leave standing, drawn at "
        "random, through the rest. The share that stands after the first phase, times the share of those drawn that "
        "still stands, estimates what the whole attack would leave of all samples. The interval holds what both phases "
        "leave to chance; where all that stand are drawn, figure and interval are those of the whole attack.",
        ("robust accuracy, estimated", "two phases"),
    ),
    Term(
        "drawn",
        "Samples that stand after the first phase and were picked, by a hash of seed and id, to go through the second.",
        ("of those drawn, still standing",),
    ),
)
