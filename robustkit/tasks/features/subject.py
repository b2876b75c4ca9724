"""A checkpoint without its head under a card: how its features are attacked, and what heads make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from attacks import AttackResult, FeaturePGD
from attacks.pgd import DISTANCES

from ...common.preprocessing import Preprocessing
from ...common.randomness import SampleRng
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...evaluations.attacks.evaluate import build_attack
from ...evaluations.subject import Batch, ImageSubject, Reader, Settings
from ...models.identity import Classifier
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition
from .heads import Heads

FEATURES = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("label", "knn", "probe"), pa.int32()),
        **dict.fromkeys(("precision", "moved", "linf", "l2"), pa.float32()),
        **dict.fromkeys(("steps", "forwards", "backwards"), pa.int32()),
        "error": pa.string(),
    }
)
"""One row per image.

knn: the class that the k nearest training images vote for, k as run.json has it; `knn 5` and so on: those of each k.
probe: the class that the linear probe predicts. `few_shot 1 0` and so on: that of a head which learned from so many
images of each class, for each draw. All are -1 where features are not finite.
precision: the average precision with which training images of the same class are retrieved; 0 where features are not
finite. moved: 1 minus the cosine between the features and those of the clean image; nan where features are not finite.
linf, l2: size of the perturbation that was measured, in pixel units. steps, forwards, backwards: what an attack spent.
error: why an image could not be read; all but id and label are null then.
"""


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


class FeatureSubject(ImageSubject):
    """One network without its head on its device under one card; rows of `FEATURES`. Its logits are features (B, D).

    heads: makes the heads, from what gives the features (B, D) of pixels (B, 3, H, W).
    """

    schema = FEATURES

    def __init__(
        self, model: Classifier, card: Card, settings: Settings, heads: Callable[[Callable[[Tensor], Tensor]], Heads]
    ) -> None:
        super().__init__(model, card, settings, None)
        self._clean: dict[tuple[str, ...], Tensor] = {}
        made = self.steadily("heads", self.rng([Sample("training", 0)], CLEAN), lambda: heads(self.embedded))
        self.heads = made.to(settings.device)

    def embedded(self, raw: Tensor) -> Tensor:
        """Return the features (B, D), float32, of pixels as the supply reads them."""
        with torch.inference_mode():
            features: Tensor = self.scorer(self.inputs(raw))
        return features

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id, "label": sample.label}

    def forget(self) -> None:
        super().forget()
        self._clean = {}

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack = build_attack(condition, self.card)
        assert isinstance(attack, FeaturePGD)
        return attack.run(self.fast, inputs, rng=rng)

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        features, samples = logits.float(), batch.samples
        labels = [sample.label for sample in samples]
        predicted, precision = self.heads.predict(features, labels)
        return {
            "sample_id": [sample.id for sample in samples],
            "label": labels,
            **{name: found.tolist() for name, found in predicted.items()},
            "precision": precision.tolist(),
            "moved": DISTANCES["cosine"](features, self._of_clean(batch)).tolist(),
        }

    def _of_clean(self, batch: Batch) -> Tensor:
        """Return the features of a batch's clean images; kept until the next shard."""
        key = tuple(sample.id for sample in batch.samples)
        if key not in self._clean:
            self._clean[key] = self.embedded(batch.inputs)
        return self._clean[key]
