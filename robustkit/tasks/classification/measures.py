"""What the numbers of a classifier are."""

from dataclasses import replace

from ...evaluations.metric import Metric, of_samples
from ...evaluations.term import Term

METRICS = (
    replace(of_samples("top1", "top-1 %", True, ("accuracy", "top-1 accuracy")), noun="accuracy"),
    of_samples("top5", "top-5 %", hub=("top5_accuracy", "top-5 accuracy")),
    Metric("nll", "NLL", better=-1, paired=True),
    Metric("ece", "ECE %", 100, -1),
    Metric("linf_max", "largest linf |δ|"),
    Metric("l2_max", "largest l2 |δ|"),
    Metric("top1_after_", "top-1 % after a stage", 100, 1, binary=True, parametric=True),
)
TERMS = (
    Term("top-1", "The share of images whose most probable class is the right one.", ("Top-1",)),
    Term("top-5", "The share of images whose right class is among the five most probable."),
    Term(
        "NLL",
        "Negative log-likelihood: minus the natural logarithm of the probability that the model gives the right class, "
        "as a mean over images. 0 is perfect; guessing evenly among K classes gives ln K.",
    ),
    Term(
        "ECE",
        "Expected calibration error: the mean gap between confidence and accuracy over 15 bins of confidence of equal "
        "width, weighted by their samples (Guo et al. 2017). 0 % means that a confidence of 80 % is right 80 % of the "
        "time.",
        ("calibration error",),
    ),
    Term(
        "largest |δ|",
        "The largest change of any image that was measured, in pixel units: of a pixel value under L∞, of the length "
        "of the whole change under L2. It should not exceed the radius ε that the condition names.",
        ("largest linf |δ|", "largest l2 |δ|", "|δ|"),
    ),
)
