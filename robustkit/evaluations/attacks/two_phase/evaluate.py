"""Choose the samples of the second phase, and attack them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import torch

from ....common.determinism import SampleRng, draw_samples
from ....errors import RunError
from ....protocol.card import Card
from ....protocol.condition import Condition
from ....runs.folder import RunFolder
from ...aggregate import readable_rows
from ...condition import Cost
from ...family import Evaluator, family_of
from ...subject import Batch, EvaluatedModel, Evaluation
from .condition import VOCABULARY, phases_of


class PhaseChoice(NamedTuple):
    """By sample id: those that the first phase broke, with the stage, and those drawn for the second."""

    fallen: dict[str, str]
    drawn: frozenset[str]


def choose(run: RunFolder, checkpoint: str, condition: Condition) -> PhaseChoice:
    """Return the choice for a checkpoint: m at random of those that stand, a smaller m part of a larger one.

    Raises RunError where records of the first phase are missing: who is drawn follows from all of them.
    """
    phases = phases_of(condition.text)
    assert phases is not None and condition.after is not None
    if missing := run.missing_units(checkpoint, condition.after.text):
        raise RunError(
            f"{run.path}: {missing} of {run.shard_count} shards of {checkpoint} under {condition.after.text} are "
            "missing, from which the second phase draws; compute them first"
        )
    read = readable_rows(run.table(checkpoint, condition.after.text, ("sample_id", "error", "correct", "broken_by")))
    fallen = read.filter(pa.compute.invert(read["correct"]))
    names = zip(fallen["sample_id"].to_pylist(), fallen["broken_by"].to_pylist(), strict=True)
    standing = read.filter(read["correct"])["sample_id"].to_pylist()
    return PhaseChoice(dict(names), draw_samples(standing, phases.m, seed=run.manifest.seed, purpose="second phase"))


class TwoPhaseEvaluator(Evaluator):
    words, columns = VOCABULARY, {"drawn": pa.bool_()}

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        return True

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        assert condition.under is not None  # an upper bound: of all samples, not of those that are drawn
        return replace(family_of(condition.under.name).evaluator.cost(condition.under, card, classes), at_most=True)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return what the phases said about those that fell and those drawn; the others have a null `correct`."""
        choice, rest = batch.choice, condition.under
        assert isinstance(choice, PhaseChoice) and rest is not None
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
        inputs = batch.inputs[torch.tensor(rows)]
        part = replace(batch, inputs=inputs, samples=some, truths=truths, choice=None, keep=())
        rng, evaluator = subject.rng(some, rest), family_of(rest.name).evaluator
        done = subject.steadily(rest.text, rng, lambda: evaluator.evaluate(subject, part, rest, rng))
        for name, values in done.columns.items():
            column = columns.setdefault(name, [None] * len(ids))
            for row, value in zip(rows, values, strict=True):
                column[row] = value
        return replace(done, columns=columns, pictures={}, change=None)
