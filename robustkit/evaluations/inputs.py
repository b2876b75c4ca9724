"""Inputs of a condition as another condition shows them: for maps, attention, and attacks on corrupted images."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..protocol.condition import Condition
from .family import family_of
from .subject import Batch, EvaluatedModel, Shown


def attacked_inputs(subject: EvaluatedModel, batch: Batch, condition: Condition) -> Tensor:
    """Return the inputs that an attack changes, (B, ...) in the card's space: clean, or as its `under` shows them."""
    return (
        subject.inputs(batch.inputs) if condition.under is None else shown_under(subject, batch, condition.under).inputs
    )


def inputs_under(subject: EvaluatedModel, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, made as it is alone; (B, 3, H, W) in the card's space."""
    return subject.kept(under, batch.samples, lambda: shown_under(subject, batch, under).inputs)


def shown_under(subject: EvaluatedModel, batch: Batch, under: Condition) -> Shown:
    """Return what a condition shows the network, made as it is alone."""
    rng = subject.rng(batch.samples, under)
    alone = replace(batch, tell=None)
    return subject.steadily(under.text, rng, lambda: family_of(under.name).evaluator.show(subject, alone, under, rng))
