"""Where maps that draw take their numbers from: an argument, so that they can be a function of the image.

`robustkit.common.randomness.SampleRng` satisfies `Rng`; without one, `TorchRng` uses torch's global generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Rng(Protocol):
    """Random numbers for a batch of B images; `purpose` names the draw, so that no two draws share numbers."""

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) floating in [0, 1)."""
        ...

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) floating, standard normal."""
        ...


class TorchRng:
    """`Rng` over torch's global generator: seeded by `torch.manual_seed`, different at every call."""

    def __init__(self, batch: int, device: torch.device | str = "cpu") -> None:
        self.batch = batch
        self.device = torch.device(device)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.rand(self.batch, *shape, device=self.device)

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.randn(self.batch, *shape, device=self.device)
