"""What a condition shows the network, and how the model does on it."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks import AttackResult

from ..protocol.condition import Condition
from .subject import Batch, Evaluation, Shown, Subject


def show_pixels(subject: Subject, batch: Batch, shown: Tensor, known: bool = True) -> Shown:
    """Return (B, 3, H, W) uint8 pixels as the network sees them. known: whether they are the batch's own, changed."""
    inputs = subject.inputs(shown)
    return Shown(inputs, lambda: shown, subject.change(batch.inputs, shown, inputs) if known else None)


def show_attacked(subject: Subject, inputs: Tensor, result: AttackResult) -> Shown:
    """Return what an attack made of inputs (B, ...) in the card's space, with its change in the units of records."""
    adversarials, classifier = result.adversarials, subject.classifier
    as_it_is = subject.card.space != "normalised"
    with torch.inference_mode():
        change = (adversarials - inputs).float()
        change = change if as_it_is else change * classifier.std
    return Shown(
        adversarials,
        lambda: adversarials if as_it_is else adversarials * classifier.std + classifier.mean,
        change,
        result,
    )


def score_shown(subject: Subject, batch: Batch, condition: Condition, shown: Shown) -> Evaluation:
    """Return how the model does on the images that a condition shows."""
    subject.keep(condition, batch.samples, shown.inputs)
    with torch.inference_mode():
        rows = subject.answers(shown.inputs, batch)
    pictures = subject.pictures(batch, image=shown.images()) if batch.keep else {}
    return Evaluation(rows | subject.distance(shown.change, len(batch)), pictures=pictures)
