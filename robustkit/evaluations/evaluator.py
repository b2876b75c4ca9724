"""A batch and a condition into the columns of a record, by the family of the condition."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..protocol.condition import Condition
from .family import family_of
from .subject import Batch, Evaluation, Shown, Subject


def evaluate(subject: Subject, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch under a condition.

    Attacks run in the settings' dtype; what they return is scored in float32 (or as the card says), so that a break
    found in low precision counts only when float32 confirms it.
    """
    rng = subject.rng(batch.samples, condition)
    with subject.steady(rng):
        return family_of(condition.name).evaluate(subject, batch, condition, rng)


def inputs_under(subject: Subject, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, made as it is alone; (B, 3, H, W) in the card's space."""

    def make() -> Tensor:
        rng = subject.rng(batch.samples, under)
        with subject.steady(rng):
            return family_of(under.name).show(subject, replace(batch, tell=None), under, rng).inputs

    return subject.kept(under, batch.samples, make)


def show_pixels(subject: Subject, batch: Batch, shown: Tensor, known: bool = True) -> Shown:
    """Return (B, 3, H, W) uint8 pixels as the network sees them. known: whether they are the batch's own, changed."""
    inputs = subject.inputs(shown)
    return Shown(inputs, lambda: shown, subject.change(batch.inputs, shown, inputs) if known else None)


def score_shown(subject: Subject, batch: Batch, condition: Condition, shown: Shown) -> Evaluation:
    """Return how the model does on the images that a condition shows."""
    subject.keep(condition, batch.samples, shown.inputs)
    with torch.inference_mode():
        logits = (subject.scorer if subject.card.score_autocast else subject.fast)(shown.inputs)
        rows = subject.score(logits, batch)
    pictures = subject.pictures(batch, image=shown.images()) if batch.keep else {}
    return Evaluation(rows | subject.distance(shown.change, len(batch)), pictures=pictures)
