"""Watched attention behind the seam of families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..family import Family, Summary

if TYPE_CHECKING:
    import pyarrow as pa

    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ..rows import Reading
    from ..subject import Batch, Evaluation, Subject


class Attention(Family):
    """What each head of each layer does on the images that another condition shows."""

    name = "attention"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .columns import ATTENTION

        return ATTENTION

    def summary(self, reading: Reading) -> Summary:
        from .summary import AttentionSummary

        return AttentionSummary(reading)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition)


FAMILY = Attention()
