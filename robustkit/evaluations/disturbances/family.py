"""Disturbances of time series as a family of evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..family import Family
from .condition import VOCABULARY

if TYPE_CHECKING:
    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ..subject import Batch, Shown, Subject


class Disturbances(Family):
    """Series are changed at random, as worse sensors would measure them."""

    name, words = "disturbances", VOCABULARY

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..subject import Shown
        from .evaluate import DISTURBANCES

        inputs = subject.inputs(batch.inputs)
        ((_, amount),) = condition.parameters
        shown = DISTURBANCES[condition.name](inputs, float(amount), rng)
        return Shown(shown, lambda: shown, shown - inputs)


FAMILY = Disturbances()
