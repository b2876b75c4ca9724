"""What the numbers of transfer are."""

from __future__ import annotations

from ..metric import Metric
from ..term import Term

ACCURACY = Metric("transfer_accuracy", "transfer accuracy %", 100, 1, binary=True, share=True)
KEPT = Metric("verdicts_kept", "verdicts kept %", 100, 1, binary=True, share=True)
METRICS = (ACCURACY, KEPT)
TERMS = (
    Term(
        "transfer accuracy",
        "The share of samples that a checkpoint predicts right on adversarial images which an attack found with the "
        "gradients of another checkpoint. They are rounded to 16 bits and drawn back into the ball of the attack.",
        ("found for",),
    ),
    Term(
        "verdicts kept",
        "The share of samples on which a checkpoint is as right or wrong on its own adversarial images, once these are "
        "rounded to 16 bits, as the attack's record says: what rounding costs the other figures of transfer.",
    ),
)
