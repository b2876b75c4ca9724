"""Evaluate a batch with patches, into the columns of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from attacks.pgd import PatchResult

from ....common.randomness import SampleRng
from ....protocol.condition import Condition
from ...family import Evaluator
from ...interface import Cost
from ...subject import Batch, Evaluation, Shown, Subject, show_attacked
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ....protocol.card import Card


def show(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
    """Return the images of a batch with their patches."""
    inputs = subject.inputs(batch.inputs)
    return show_attacked(subject, inputs, subject.attack(condition, inputs, batch, rng))


def evaluate(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
    """Return how the model does on the images with patches, in full precision, where these are, and what they took."""
    shown = show(subject, batch, condition, rng)
    result, change = shown.result, shown.change
    assert isinstance(result, PatchResult) and change is not None
    subject.keep(condition, batch.samples, shown.inputs)
    with torch.inference_mode():
        parts = torch.split(shown.inputs, subject.settings.batch_size)
        rows = subject.score(torch.cat([subject.scorer(part) for part in parts]), batch)
    rows |= subject.distance(change, len(batch))
    counts = torch.stack([result.broken_at, result.steps, result.forwards, result.backwards, *result.places.unbind(1)])
    broken_at, rows["steps"], rows["forwards"], rows["backwards"], rows["patch_top"], rows["patch_left"] = (
        counts.tolist()
    )
    rows["broken_at"] = [at if at >= 0 else None for at in broken_at]
    rows["broken_by"] = [None if correct else condition.name for correct in rows["correct"]]
    size = int(dict(condition.parameters)["size"])
    rows["patch_share"] = [size * size / (change.shape[-2] * change.shape[-1])] * len(batch)
    pictures = subject.pictures(batch, image=shown.images(), delta=change) if batch.keep else {}
    return Evaluation(rows, notes=result.notes, pictures=pictures)


class PatchesEvaluator(Evaluator):
    """A square of each image takes the values that mislead the model most."""

    words = VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        import pyarrow as pa

        return {"patch_top": pa.int32(), "patch_left": pa.int32(), "patch_share": pa.float32()}

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        given = dict(condition.parameters)
        where = str(given["where"])
        steps, runs = int(given["steps"]), int(where.removeprefix("worst-of-")) if where.startswith("worst") else 1
        return Cost(runs * (steps + 1) + 2, runs * steps, at_most=bool(given["early_stop"]))

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        return evaluate(subject, batch, condition, rng)


EVALUATOR = PatchesEvaluator()
