"""Supply labelled images to the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...evaluations.supply import Reader
from ...protocol.condition import Condition


@dataclass(frozen=True)
class Pixels:
    """The source of a sample's pixels, (3, H, W) uint8."""

    dataset: Dataset
    preprocessing: Preprocessing

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples, which are the same for all conditions."""
        return self.read

    def read(self, sample: Sample) -> Tensor:
        """Return the pixels of a sample. Raises BadImageError."""
        return to_pixels(self.dataset.image(sample), self.preprocessing, sample.id)

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return None: nothing is true of an image besides its class."""
        return None
