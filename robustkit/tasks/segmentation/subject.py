"""A segmenter under a card: turns a batch of pixels and a condition into the columns of a record."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attacks import DensePGD
from attacks.attack import Tell

from ...common.randomness import SampleRng
from ...data.dataset import Sample
from ...evaluations.attacks.build import build_attack
from ...evaluations.subject import Evaluation, Settings, Subject
from ...models.segmenter import Segmenter
from ...protocol.card import Card
from ...protocol.condition import Condition
from .columns import SCENES
from .metrics import class_counts

LabelMap = NDArray[np.int16]
"""(H, W): the index of a pixel's class, -1 where it does not count."""


class SceneSubject(Subject):
    """One segmenter on its device under one card: turns a batch and a condition into rows of `schema`.

    unjudged: classes of the model that the labels never have because they are ignored, such as void. A prediction of
    one is wrong and of no class, so that it has no IoU.
    """

    schema = SCENES

    def __init__(self, model: Segmenter, card: Card, settings: Settings, unjudged: Sequence[int] = ()) -> None:
        super().__init__(model, card, settings, None)
        self.unjudged = torch.tensor(list(unjudged), dtype=torch.int64, device=settings.device)

    @staticmethod
    def unread(sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    @staticmethod
    def judges(condition: Condition) -> bool:
        return True

    def evaluate(
        self,
        pixels: Tensor,
        samples: Sequence[Sample],
        condition: Condition,
        tell: Tell | None = None,
        located: Sequence[Any] = (),
        keep: Container[str] = (),
    ) -> Evaluation:
        """Rows for (B, 3, H, W) uint8 pixels, a list for each column. located: the label map of each sample.

        No pictures are kept, whatever `keep` says: scenes are large, and `scene_examples` draws some.
        """
        rng = self.rng(samples, condition)
        labels = torch.from_numpy(np.stack(located)).long().to(self.settings.device)
        with self.steady(rng):
            inputs, delta, spent = self.shown(pixels, samples, condition, rng, labels)
            with torch.inference_mode():
                logits = (self.exact if spent else self.fast)(inputs)
                rows = self._counted(logits, labels) | {"sample_id": [sample.id for sample in samples]}
        return Evaluation(rows | self._distance(delta) | spent)

    def shown(
        self, pixels: Tensor, samples: Sequence[Sample], condition: Condition, rng: SampleRng, labels: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, list[int]]]:
        """What the network is shown under a condition, how far it is from the image, in pixels, and what it cost."""
        clean = self.inputs(pixels)
        attack = build_attack(condition, self.card)
        if attack is None:
            shown = self.inputs(self.corrupt(pixels, condition, rng))
            return shown, shown - clean, {}
        assert isinstance(attack, DensePGD)
        result = attack.run(self.fast, clean, labels, rng=rng)
        counts = {name: getattr(result, name).tolist() for name in ("steps", "forwards", "backwards")}
        return result.adversarials, result.adversarials - clean, counts

    def predicted(self, inputs: Tensor) -> Tensor:
        """(B, H, W) the most likely class of each pixel, -1 where its logits are not finite or it is not judged."""
        with torch.inference_mode():
            return self._classes(self.exact(inputs))

    def _counted(self, logits: Tensor, labels: Tensor) -> dict[str, list[Any]]:
        counting = (labels >= 0).flatten(1).sum(dim=1)
        losses = functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none").flatten(1).sum(dim=1)
        nll = [loss / n if n else None for loss, n in zip(losses.tolist(), counting.tolist(), strict=True)]
        names = ("intersections", "predicted", "labelled")
        counts = class_counts(self._classes(logits), labels, logits.shape[1])
        return {
            "pixels": counting.tolist(),
            **{name: count.tolist() for name, count in zip(names, counts, strict=True)},
            "nll": nll,
        }

    def _classes(self, logits: Tensor) -> Tensor:
        found = torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)
        return torch.where(torch.isin(found, self.unjudged), -1, found) if len(self.unjudged) else found
