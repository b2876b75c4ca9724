"""Evaluate a batch under an attack that looks for the smallest change, into the columns of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch

from attacks.threat import Norm, distance

from ....common.randomness import SampleRng
from ....protocol.condition import Condition
from ...family import Evaluator
from ...interface import Cost
from ...subject import Batch, Evaluation, Subject
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ....protocol.card import Card


def evaluate(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
    """Return how far the nearest wrong point is, and how the model does there, in full precision."""
    inputs = subject.inputs(batch.inputs)
    result = subject.attack(condition, inputs, batch, rng)
    with torch.inference_mode():
        change = (result.adversarials - inputs).float()
        if subject.card.space == "normalised":
            change = change * subject.classifier.std
        batches = torch.split(result.adversarials, subject.settings.batch_size)
        rows = subject.score(torch.cat([subject.scorer(part) for part in batches]), batch)
        norm = cast(Norm, condition.norm)
        sizes = distance(norm, change, torch.zeros_like(change)).tolist()
    rows |= subject.distance(change, len(batch))
    # A point that is right after all, where the attack found nothing, has no distance.
    rows["distance"] = [math.nan if right else size for right, size in zip(rows["correct"], sizes, strict=True)]
    counts = torch.stack([result.broken_at, result.steps, result.forwards, result.backwards])
    rows["broken_by"] = [None if right else condition.name for right in rows["correct"]]
    broken_at, rows["steps"], rows["forwards"], rows["backwards"] = counts.tolist()
    rows["broken_at"] = [at if at >= 0 else None for at in broken_at]
    images = result.adversarials
    pictures = {}
    if batch.keep and subject.card.space == "pixels":
        pictures = subject.pictures(batch, image=images, delta=change)
    return Evaluation(rows, notes=result.notes, pictures=pictures)


class DistancesEvaluator(Evaluator):
    """How far the nearest wrong point is: a distance for each sample, and so accuracy at every radius."""

    words = VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        import pyarrow as pa

        return {"distance": pa.float32()}

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        return True  # the attack makes its own batches

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        steps = int(dict(condition.parameters)["steps"])
        return Cost(steps + 2, steps)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        return evaluate(subject, batch, condition, rng)


EVALUATOR = DistancesEvaluator()
