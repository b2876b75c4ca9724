"""What the numbers of corruptions are."""

from ..metric import Metric

METRICS = (
    Metric("mean_error", "mean error %", 100, -1, paired=True, share=True, of_sets=True),
    Metric("mce", "mCE %", 100, -1, of_sets=True),
    Metric("relative_mce", "relative mCE %", 100, -1, of_sets=True),
    Metric("ce", "CE %", 100, -1),
)
