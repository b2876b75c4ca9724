"""Classifiers of images under a card, and the images that they are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...evaluations.corruptions.tree import CorruptedTree
from ...evaluations.maps.truth import Truth
from ...evaluations.subject import ImageSubject, Reader
from ...protocol.condition import Condition
from ..labelled.subject import LabelledSubject


@dataclass(frozen=True)
class Images:
    """The source of a sample's pixels, (3, H, W) uint8: the data set, or under a released corruption a tree.

    truth: where the object of a sample is, for the scores of maps.
    """

    dataset: Dataset
    preprocessing: Preprocessing
    tree: CorruptedTree | None = None
    truth: Truth | None = None

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples for this condition."""
        if condition.released:
            assert self.tree is not None
            return self.tree.reader(condition.under or condition, self.preprocessing)
        return lambda sample: to_pixels(self.dataset.image(sample), self.preprocessing, sample.id)

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        """Return the sample's object in the frame of its pixels; None where it is not known. Raises BadImageError."""
        return None if self.truth is None else self.truth.locate(sample, self.preprocessing)


class ClassifierSubject(LabelledSubject, ImageSubject):
    """One classifier of images on its device under one card."""
