"""A batch under a condition, whatever its family."""

from __future__ import annotations

from robustkit.evaluations.family import family_of
from robustkit.evaluations.subject import Batch, EvaluatedModel, Evaluation
from robustkit.pipeline import units
from robustkit.protocol.condition import Condition


def evaluate(subject: EvaluatedModel, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch, as the runner has them made."""
    return units.evaluate(family_of(condition.name), subject, batch, condition)
