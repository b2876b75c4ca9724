"""Run the second phase on the samples of a batch that were drawn for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...protocol.condition import Condition
from ..family import family_of
from ..subject import Batch, Evaluation, Subject
from .choice import Choice


def evaluate(subject: Subject, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch: what the first phase said about those that it broke, the second about those
    that were drawn, and nothing of the others, whose `correct` is null.
    """
    choice, rest = batch.choice, condition.under
    assert isinstance(choice, Choice) and rest is not None
    ids = [sample.id for sample in batch.samples]
    rows = [row for row, sample in enumerate(ids) if sample in choice.drawn]
    columns: dict[str, list[Any]] = {
        "sample_id": ids,
        "correct": [False if sample in choice.fallen else None for sample in ids],
        "broken_by": [choice.fallen.get(sample) for sample in ids],
        "drawn": [sample in choice.drawn for sample in ids],
    }
    if not rows:
        return Evaluation(columns)
    some = [batch.samples[row] for row in rows]
    truths = [batch.truths[row] for row in rows] if batch.truths else ()
    part = replace(batch, inputs=batch.inputs[torch.tensor(rows)], samples=some, truths=truths, choice=None, keep=())
    rng = subject.rng(some, rest)
    done = subject.steadily(rest.text, rng, lambda: family_of(rest.name).evaluate(subject, part, rest, rng))
    for name, values in done.columns.items():
        column = columns.setdefault(name, [None] * len(ids))
        for row, value in zip(rows, values, strict=True):
            column[row] = value
    return replace(done, columns=columns, pictures={}, change=None)
