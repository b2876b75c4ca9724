"""What the numbers of corruptions are."""

from dataclasses import replace

from ..metric import Metric, mean_share

BENCHMARK = "in-c"
"""The set of corruptions that a rule means where it names none."""
METRICS = (
    replace(
        mean_share("mean_error", "mean error %", -1, True, ("mean_error", "mean error")), under=BENCHMARK, noun="error"
    ),
    Metric("mce", "mCE %", 100, -1, under=BENCHMARK, drafted=True, hub=("mce", "mCE")),
    Metric("relative_mce", "relative mCE %", 100, -1, under=BENCHMARK, hub=("relative_mce", "relative mCE")),
    Metric("ce", "CE %", 100, -1),
)
