"""Where the pixels of samples and their truths come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ..data.dataset import Dataset, Sample
from ..protocol.condition import Condition

Reader = Callable[[Sample], Tensor]
"""From a sample to its pixels, (3, H, W) uint8; raises BadImageError."""


class Supply(Protocol):
    """The samples of a run, with their pixels and truths on request."""

    @property
    def dataset(self) -> Dataset:
        """The samples, in the order of their shards."""

    def reader(self, condition: Condition) -> Reader:
        """Return what reads the samples for this condition."""

    def locate(self, sample: Sample, pixels: Tensor) -> Any:
        """Return the truth of a sample in the frame of its pixels; None where it is not known.

        Raises:
            BadImageError: its mask cannot be read.
        """
