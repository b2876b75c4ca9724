"""The fast gradient sign method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attack import Attack, Tally
from .frozen import Oracle, input_gradient
from .labels import answered, missed
from .losses import LOSSES, check_loss
from .rng import Rng
from .threat import per_sample


@dataclass(frozen=True)
class FGSM(Attack):
    """One step of length eps along the gradient's sign (Goodfellow et al. 2015, arXiv:1412.6572, section 4).

    With the l2 norm the step goes along the gradient itself. One forward and one backward; predicted labels come from
    that forward. `broken_at` is 0 where the clean prediction is already wrong; an image whose logits are not finite is
    returned as it is.

    loss: "ce", "margin" or "dlr".
    """

    loss: str = "ce"

    def __post_init__(self) -> None:
        check_loss(self.loss)

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        points = clean.clone().requires_grad_()
        logits = oracle(points)
        labels = logits.detach().argmax(dim=1) if labels is None else labels
        gradient = input_gradient(LOSSES[self.loss](logits, labels), points)
        tally.saw(torch.arange(len(clean), device=clean.device), missed(logits, labels))
        tally.steps += 1
        tally.forwards += 1
        tally.backwards += 1
        points = points.detach().add_(self.threat.steepest(gradient), alpha=self.threat.eps)
        points = self.threat.ball(clean).project_(points)
        return torch.where(per_sample(answered(logits), clean), points, clean)
