"""Evaluate a batch under an attack that looks for the smallest change, into the columns of a record."""

from __future__ import annotations

import math
from typing import cast

import torch

from attacks.threat import Norm, distance

from ....common.randomness import SampleRng
from ....protocol.condition import Condition
from ...subject import Batch, Evaluation, Subject


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
