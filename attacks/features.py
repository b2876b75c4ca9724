"""PGD on the features of a model: no labels, no logits, only how far an image's features move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .attack import Attack, Tally
from .frozen import Oracle, input_gradient
from .pgd import PGD, STEP_SHARES
from .rng import Rng
from .threat import per_sample


def cosine(features: Tensor, clean: Tensor) -> Tensor:
    """Return 1 minus the cosine (B,) between features (B, D) and those of the clean images: 0 to 2.

    It is half the squared distance of both at length 1, which is exactly 0 where they are the same.
    """
    return squared(functional.normalize(features, dim=1), functional.normalize(clean, dim=1)) / 2


def squared(features: Tensor, clean: Tensor) -> Tensor:
    """Return the squared Euclidean distance (B,) between features (B, D) and those of the clean images."""
    return (features - clean).square().sum(dim=1)


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"cosine": cosine, "l2": squared})
"""What the attack maximises, by name."""


@dataclass(frozen=True)
class FeaturePGD(Attack):
    """PGD that moves the features of each image as far as it can from those of the clean image.

    The model returns features (B, D) in place of logits. Labels play no part, and `broken_at` is -1 for all. Each
    restart begins at a random point of the ball, since at the image itself both distances have no gradient. Of all
    points that were seen the farthest is returned; features that are not finite count as infinitely far.

    steps: updates of each restart, a forward and a backward each; a forward more scores its last point, and one the
        clean images. step_size: as in `PGD`. loss: "cosine", 1 minus the cosine, or "l2", the squared Euclidean
        distance.
    """

    steps: int = 20
    step_size: float | None = None
    restarts: int = 1
    loss: str = "cosine"
    least_classes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        PGD(self.threat, self.steps, self.step_size, restarts=self.restarts)  # raises for what PGD cannot do
        if self.loss not in DISTANCES:
            raise ValueError(f"loss is {self.loss!r}; expected one of: {', '.join(DISTANCES)}")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        step_size = STEP_SHARES[self.threat.norm] * self.threat.eps if self.step_size is None else self.step_size
        distance, ball = DISTANCES[self.loss], self.threat.ball(clean)
        start = oracle.predict(clean)
        tally.forwards += 1
        farthest, record = clean.clone(), torch.full((len(clean),), -math.inf, dtype=start.dtype, device=clean.device)
        for restart in range(self.restarts):
            points = ball.random_start(rng, f"pgd/start/{restart}")
            for step in range(self.steps + 1):
                points.requires_grad_(step < self.steps)
                away = distance(oracle(points), start)
                tally.forwards += 1
                reached = away.detach().nan_to_num(nan=math.inf, posinf=math.inf)
                farther = reached > record
                farthest = torch.where(per_sample(farther, clean), points.detach(), farthest)
                record = torch.where(farther, reached, record)
                if step < self.steps:
                    gradient = input_gradient(away, points)
                    points = torch.add(points.detach(), self.threat.steepest(gradient), alpha=step_size)
                    ball.project_(points)
                    tally.steps += 1
                    tally.backwards += 1
        return farthest
