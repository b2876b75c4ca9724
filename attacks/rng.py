"""Where attacks take their random numbers from.

An attack never draws from a global state by itself: it asks an `Rng` for the numbers of each sample of the batch, and
names their purpose. A caller that wants reproducible attacks passes one whose numbers depend on the sample alone (as
`robustkit.common.randomness.SampleRng` does); without one, `TorchRng` uses torch's global generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn


class Rng(Protocol):
    """Random numbers for a batch of B samples; `purpose` names the draw, so that no two draws share numbers."""

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) float32 in [0, 1)."""
        ...

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) float32, mean 0, variance 1."""
        ...

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        """Return (B, *shape) float32 of -1 and 1: rows first, first + 1, ... of an endless draw along shape[0].

        So `signs((8, 3), p)` equals `cat([signs((4, 3), p), signs((4, 3), p, first=4)], dim=1)` if the numbers are a
        function of the sample: a chunked loop draws the same as an unchunked one.
        """
        ...

    def take(self, index: Tensor) -> Rng:
        """Return the source for the samples `index` (int64) of this batch."""
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

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        # Eight signs from each random byte: SPSA draws so many that a number for each would cost time.
        count = math.prod(shape)
        draws = torch.randint(0, 256, (self.batch, -(-count // 8)), dtype=torch.uint8, device=self.device)
        signs = nn.functional.embedding(draws.int(), _signs_of_bytes(self.device))
        return signs.reshape(self.batch, -1)[:, :count].reshape(self.batch, *shape)

    def take(self, index: Tensor) -> TorchRng:
        return TorchRng(len(index), self.device)


def _signs_of_bytes(device: torch.device) -> Tensor:
    """Return (256, 8) float32: the bits of every byte, 0 as -1."""
    byte, bit = torch.arange(256, device=device), torch.arange(8, device=device)
    return ((byte[:, None] >> bit) & 1).float().mul_(2).sub_(1)
