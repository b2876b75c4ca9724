"""Explanation maps behind the seam of families."""

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


class Maps(Family):
    """What a model looks at: the scores of maps that explain a class, and how they change with the images."""

    name = "maps"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .summary import MapSummary

        return MapSummary(reading)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Maps()
