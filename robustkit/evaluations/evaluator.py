"""Evaluate a batch under a condition, by the family of the condition, into the columns of a record."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..protocol.condition import Condition
from .family import family_of
from .subject import Batch, Evaluation, Subject


def evaluate(subject: Subject, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch under a condition.

    Attacks run in the settings' dtype; what they return is scored in float32 (or as the card says), so that a break
    found in low precision counts only when float32 confirms it.
    """
    rng = subject.rng(batch.samples, condition)
    with subject.steady(rng):
        return family_of(condition.name).evaluate(subject, batch, condition, rng)


def inputs_under(subject: Subject, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, computed without others; (B, 3, H, W) in the card's space."""

    def make() -> Tensor:
        rng = subject.rng(batch.samples, under)
        with subject.steady(rng):
            return family_of(under.name).show(subject, replace(batch, tell=None), under, rng).inputs

    return subject.kept(under, batch.samples, make)
