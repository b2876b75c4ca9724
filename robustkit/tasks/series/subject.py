"""A classifier of time series under a card: its inputs are in units of each channel's standard deviation."""

from __future__ import annotations

from torch import Tensor

from ..labelled.subject import LabelledSubject


class SeriesSubject(LabelledSubject):
    """One classifier of series on its device under one card; batches are of one length, so nothing is filled up."""

    def inputs(self, raw: Tensor) -> Tensor:
        return self.classifier.normalize(raw.to(self.settings.device))

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return (shown - raw.to(shown.device)) / self.classifier.std
