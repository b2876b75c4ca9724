"""Supply documents to the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...data.dataset import Dataset, Sample
from ...data.documents import as_bytes
from ...errors import BadImageError
from ...evaluations.supply import Reader
from ...protocol.condition import Condition


@dataclass(frozen=True)
class Documents:
    """The source of a document, (n,) uint8: its UTF-8 bytes."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples, which are the same for all conditions."""
        return self._read

    def _read(self, sample: Sample) -> Tensor:
        content = self.dataset.read(sample).removeprefix(b"\xef\xbb\xbf")
        if not content.split():
            raise BadImageError(f"{sample.id}: no words in it; expected text")
        return as_bytes([content.decode()])[0]

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return None: a document is its own truth."""
        return None
