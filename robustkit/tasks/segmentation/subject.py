"""A segmenter under a card: how it is attacked and what is counted from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attacks import AttackResult, DenseAttack

from ...common.randomness import SampleRng
from ...data.dataset import Sample
from ...evaluations.attacks.build import build_attack
from ...evaluations.images import ImageSubject
from ...evaluations.subject import Batch, Settings
from ...models.dense import Segmenter
from ...protocol.card import Card
from ...protocol.condition import Condition
from .columns import BY_RUN, SCENES
from .counts import class_counts

LabelMap = NDArray[np.int16]
"""(H, W): the index of a pixel's class, -1 where it does not count."""


class SegmenterSubject(ImageSubject):
    """One segmenter on its device under one card; rows of `SCENES`.

    unjudged: classes of the model that no label has because they are ignored, such as void. A prediction of one is
    wrong and counts for no class, so it has no IoU.
    """

    schema, by_run = SCENES, BY_RUN

    def __init__(self, model: Segmenter, card: Card, settings: Settings, unjudged: Sequence[int] = ()) -> None:
        super().__init__(model, card, settings, None)
        self.unjudged = torch.tensor(list(unjudged), dtype=torch.int64, device=settings.device)

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    def needs_truth(self, condition: Condition) -> bool:
        return True

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack = build_attack(condition, self.card)
        assert isinstance(attack, DenseAttack)
        return attack.run(self.fast, inputs, self._label_maps(batch), rng=rng)

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        return self._counted(logits, self._label_maps(batch)) | {"sample_id": [sample.id for sample in batch.samples]}

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return inputs - self.inputs(raw)

    def _label_maps(self, batch: Batch) -> Tensor:
        return torch.from_numpy(np.stack(batch.truths)).long().to(self.settings.device)

    def predicted(self, inputs: Tensor) -> Tensor:
        """Return (B, H, W): the likeliest class of each pixel, -1 where logits are not finite or it is not judged."""
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
        classes = torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)
        return torch.where(torch.isin(classes, self.unjudged), -1, classes) if len(self.unjudged) else classes
