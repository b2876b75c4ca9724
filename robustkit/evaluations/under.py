"""Inputs as another condition shows them: maps, attention and attacks can be evaluated on those."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..protocol.condition import Condition
from .family import family_of
from .subject import Batch, Subject


def attacked_inputs(subject: Subject, batch: Batch, condition: Condition) -> Tensor:
    """Return the inputs that an attack changes, (B, ...) in the card's space: the clean ones, or as the condition
    shows them under which it attacks.
    """
    return subject.inputs(batch.inputs) if condition.under is None else _made(subject, batch, condition.under)


def inputs_under(subject: Subject, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, made as it is alone; (B, 3, H, W) in the card's space."""
    return subject.kept(under, batch.samples, lambda: _made(subject, batch, under))


def _made(subject: Subject, batch: Batch, under: Condition) -> Tensor:
    rng = subject.rng(batch.samples, under)
    alone = replace(batch, tell=None)
    return subject.steadily(under.text, rng, lambda: family_of(under.name).show(subject, alone, under, rng).inputs)
