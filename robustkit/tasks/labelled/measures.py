"""What the numbers of a classifier are.

The words about them speak of its samples by their name; what a size is measured in is for each task to say.
"""

from dataclasses import replace

from ...evaluations.metrics import Metric, Term, of_samples
from ...protocol.card import Samples

ACCURACY = ("acc", "top_1", "clean_accuracy", "robust_accuracy", "adversarial_accuracy")
LOSS = ("loss", "cross_entropy", "log_loss", "negative_log_likelihood")
METRICS = (
    replace(of_samples("top1", "top-1 %", True, ("accuracy", "top-1 accuracy")), noun="accuracy", also=ACCURACY),
    replace(of_samples("top5", "top-5 %", hub=("top5_accuracy", "top-5 accuracy")), bare=True),
    Metric("nll", "NLL", better=-1, paired=True, least=0, also=LOSS, bare=True),
    Metric("ece", "ECE %", 100, -1, least=0, most=1, also=("calibration_error", "calibration"), bare=True),
    Metric("linf_max", "largest linf |δ|", least=0),
    Metric("l2_max", "largest l2 |δ|", least=0),
    Metric("top1_after_", "top-1 % after a stage", 100, 1, binary=True, parametric=True),
)


def terms(samples: Samples) -> tuple[Term, ...]:
    """Return what the words about the numbers mean, except for sizes of changes."""
    return (
        Term("top-1", f"The share of {samples.many} whose most probable class is the right one.", ("Top-1",)),
        Term("top-5", f"The share of {samples.many} whose right class is among the five most probable."),
        Term(
            "NLL",
            "Negative log-likelihood: minus the natural logarithm of the probability that the model gives the right "
            f"class, as a mean over {samples.many}. 0 is perfect; guessing evenly among K classes gives ln K.",
        ),
        Term(
            "ECE",
            "Expected calibration error: the mean gap between confidence and accuracy over 15 bins of confidence of "
            "equal width, weighted by their samples (Guo et al. 2017). 0 % means that a confidence of 80 % is right "
            "80 % of the time.",
            ("calibration error",),
        ),
    )
