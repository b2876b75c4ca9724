"""Inputs as another condition shows them: maps and attention can be evaluated on those."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ..protocol.condition import Condition
from .family import family_of
from .subject import Batch, Subject


def inputs_under(subject: Subject, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, made as it is alone; (B, 3, H, W) in the card's space."""

    def make() -> Tensor:
        rng = subject.rng(batch.samples, under)
        alone = replace(batch, tell=None)
        return subject.steadily(under.text, rng, lambda: family_of(under.name).show(subject, alone, under, rng).inputs)

    return subject.kept(under, batch.samples, make)
