"""A classifier of time series under a card: its inputs are in units of each channel's standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data.dataset import Dataset, Sample
from ...data.series import SeriesSource
from ...evaluations.subject import Reader
from ...protocol.condition import Condition
from ..labelled.subject import LabelledSubject


@dataclass(frozen=True)
class Series:
    """The source of a sample's values, (C, T) float32 as they were measured."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples for this condition."""
        source = self.dataset.source
        assert isinstance(source, SeriesSource)
        return lambda sample: torch.from_numpy(source.series(sample))

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return None: nothing is true of a series besides its class."""
        return None


class SeriesSubject(LabelledSubject):
    """One classifier of series on its device under one card; batches are of one length, so nothing is filled up."""

    def inputs(self, raw: Tensor) -> Tensor:
        return self.classifier.normalize(raw.to(self.settings.device))

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return (shown - raw.to(shown.device)) / self.classifier.std
