"""A checkpoint without its head under a card: how its features are attacked, and what heads make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attacks import AttackResult, FeaturePGD
from attacks.pgd import DISTANCES

from ...common.randomness import SampleRng
from ...data.dataset import Sample
from ...evaluations.attacks.build import build_attack
from ...evaluations.images import ImageSubject
from ...evaluations.subject import Batch, Settings
from ...models.identity import Classifier
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition
from .columns import FEATURES
from .heads import Heads


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
