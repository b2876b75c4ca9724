"""The source of samples' inputs and truths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from ..data.dataset import Dataset, Sample
from ..protocol.condition import Condition

Reader = Callable[[Sample], Tensor]
"""From a sample to its input, a tensor; samples of one shape share a batch. Raises BadImageError."""


class Supply(Protocol):
    """The samples of a run, with their inputs and truths on request."""

    @property
    def dataset(self) -> Dataset:
        """The samples, in the order of their shards."""

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples for this condition."""

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return the truth of a sample in the frame of its input; None where it is not known.

        Raises:
            BadImageError: its mask cannot be read.
        """
