"""What the numbers of a classifier are."""

from dataclasses import replace

from ...evaluations.metric import Metric, of_samples

METRICS = (
    replace(of_samples("top1", "top-1 %", True, ("accuracy", "top-1 accuracy")), noun="accuracy"),
    of_samples("top5", "top-5 %", hub=("top5_accuracy", "top-5 accuracy")),
    Metric("nll", "NLL", better=-1, paired=True),
    Metric("ece", "ECE %", 100, -1),
    Metric("linf_max", "largest linf |δ|"),
    Metric("l2_max", "largest l2 |δ|"),
    Metric("top1_after_", "top-1 % after a stage", 100, 1, binary=True, parametric=True),
)
