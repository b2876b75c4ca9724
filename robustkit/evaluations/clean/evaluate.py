"""Whether a model answers a sample alone as it answers it in a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ...common.determinism import SampleRng
from ...common.finding import Finding
from ...protocol.condition import Condition
from ..family import Evaluator
from ..subject import Batch, EvaluatedModel, Evaluation, Shown
from . import VOCABULARY

_FEW = 4  # samples that are asked alone
_APART, _ROUNDED = 0.002, 0.1  # change of a figure that rounding does not explain, in float32 and below it
_NOISE = 4.0  # times the change between two answers alike, which a random model may show


def depends_on_batch(
    subject: EvaluatedModel, batch: Batch, done: Evaluation, ask: Callable[[Batch], Evaluation]
) -> tuple[str, ...]:
    """Return a note where samples of a batch get other figures alone; a batch of one is compared with one that holds
    its inverted mirror image, too. done: what came out for the batch. ask: evaluates another one."""
    if batch.inputs.ndim < 3:  # of documents, whose windows make batches of their own
        return ()
    alone = [replace(part, keep=()) for _, part in batch.parts(1)][:_FEW]
    together: Mapping[str, Sequence[Any]] = done.columns
    if len(batch) == 1:
        inputs = batch.inputs
        other = inputs.flip(-1).bitwise_not() if inputs.dtype == torch.uint8 else -inputs.flip(-1)
        pair = Batch(torch.cat([inputs, other]), [*batch.samples] * 2, [*batch.truths] * 2)
        together = ask(pair).columns

    def largest(first: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Sequence[Any]]]) -> float:
        names = [name for name in rows[0] if name in first]
        return max((_apart(first[name][i], row[name][0]) for i, row in enumerate(rows) for name in names), default=0.0)

    once = [ask(part).columns for part in alone]
    exact = subject.settings.dtype == torch.float32 and not subject.card.score_autocast
    if (apart := largest(together, once)) <= (_APART if exact else _ROUNDED):
        return ()
    twice = [ask(part).columns for part in alone]
    noise = max(largest(first, [second]) for first, second in zip(once, twice, strict=True))
    if apart <= _NOISE * noise:
        return ()
    return (str(Finding.of("model/depends-on-batch", apart=apart)),)


def _apart(one: Any, other: Any) -> float:
    """Return the difference of two figures relative to the larger, or to 1; 0 for anything but figures."""
    if not (isinstance(one, float) and isinstance(other, float)) or math.isnan(one) or math.isnan(other):
        return 0.0
    return 0.0 if one == other else min(abs(one - other) / max(1.0, min(abs(one), abs(other))), 1e6)


class CleanEvaluator(Evaluator):
    words, keeps_places = VOCABULARY, True

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        return subject.show_pixels(batch, batch.inputs.to(subject.settings.device))

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Of the first batch of a checkpoint also tell whether a sample alone is answered the same."""
        done = super().evaluate(subject, batch, condition, rng)
        if subject.asked_alone:
            return done
        subject.asked_alone = True
        ask = partial(super().evaluate, subject, condition=condition, rng=rng)
        return replace(done, notes=(*done.notes, *depends_on_batch(subject, batch, done, ask)))
