"""The input's own gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from .explainer import Explainer, chosen, each_target
from .rng import Rng


class InputGradient(Explainer):
    """Gradient times input (Shrikumar et al. 2016, arXiv:1605.01713): |sum over channels of x * d logit / d x|.

    x is what the model takes: pixels where it normalises them itself, normalised ones otherwise, and the two maps
    differ. Any differentiable model; one forward and a backward for each target.
    """

    name = "gradient"

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        images = images.clone().requires_grad_()  # a copy, so that the caller's own tensor stays as it was
        logits = self._logits(images)
        classes = chosen(logits, wanted)
        maps = []
        for total, more in each_target(logits, classes):
            gradient = None
            if total.requires_grad:
                (gradient,) = torch.autograd.grad(total, images, retain_graph=more, allow_unused=True)
            if gradient is None:
                raise ValueError("the logits have no gradient for the images (is the model detached?); use rollout")
            maps.append((gradient.float() * images.detach().float()).sum(dim=1).abs())
        return logits, classes, torch.stack(maps, dim=1)
