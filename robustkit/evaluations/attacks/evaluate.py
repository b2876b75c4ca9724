"""Evaluate a batch under attack, into the columns of a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from attacks import EnsembleResult, StagedResult

from ...common.randomness import SampleRng
from ...protocol.condition import Condition
from ..family import Evaluator, family_of
from ..inputs import attacked_inputs
from ..interface import Cost
from ..subject import Batch, Evaluation, Shown, Subject, show_attacked
from .build import attack_cost, build_attack
from .condition import EVERY_ATTACK, VOCABULARY

if TYPE_CHECKING:
    from ...common.plugins import Plugin
    from ...protocol.card import Card


def show(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
    """Return the adversarial images of a batch."""
    inputs = attacked_inputs(subject, batch, condition)
    return show_attacked(subject, inputs, subject.attack(condition, inputs, batch, rng))


def evaluate(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
    """Return how the model does on its adversarial images, in full precision, and what the attack spent."""
    shown = show(subject, batch, condition, rng)
    result, change = shown.result, shown.change
    assert result is not None and change is not None
    subject.keep(condition, batch.samples, shown.inputs)
    with torch.inference_mode():
        batches = torch.split(shown.inputs, subject.settings.batch_size)
        rows = subject.score(torch.cat([subject.scorer(part) for part in batches]), batch)
        if isinstance(result, EnsembleResult):
            for run, ends in zip(result.runs, result.ends, strict=True):
                points = torch.split(ends, subject.settings.batch_size)
                scored = subject.score(torch.cat([subject.scorer(part) for part in points]), batch)
                rows |= {f"{name} {run}": scored[name] for name in subject.by_run}
    rows |= subject.distance(change, len(batch))
    counts = torch.stack([result.broken_at, result.steps, result.forwards, result.backwards])
    broken_at, steps, forwards, backwards = counts.tolist()
    if "correct" in rows:
        rows |= {
            "broken_by": [None if correct else condition.name for correct in rows["correct"]],
            "broken_at": [at if at >= 0 else None for at in broken_at],
        }
    rows |= {"steps": steps, "forwards": forwards, "backwards": backwards}
    seconds = _stage(rows, result) if isinstance(result, StagedResult) else {}
    pictures = subject.pictures(batch, image=shown.images(), delta=change) if batch.keep else {}
    added = change if subject.card.space != "normalised" else change / subject.classifier.std
    return Evaluation(rows, seconds, result.notes, pictures, change=added)


def _stage(rows: dict[str, list[Any]], result: StagedResult) -> dict[str, float]:
    """Add what the stages of an attack did to the rows; return the seconds of each.

    The attack says what it broke: it asked in float32, and for a random model it averaged passes, which one more pass
    cannot overrule unless it gives no number. A sample that it left standing, and that is wrong all the same, was wrong
    from the start.
    """
    random = result.stages[1:] == ("apgd-ce", "apgd-dlr")
    broken_by = result.broken_by.tolist()
    held = [right or (random and said >= 0) for right, said in zip(rows["correct"], rows["prediction"], strict=True)]
    rows["correct"] = [by < 0 and holds for by, holds in zip(broken_by, held, strict=True)]
    names = [result.stages[max(by, 0)] for by in broken_by]
    rows["broken_by"] = [None if right else name for right, name in zip(rows["correct"], names, strict=True)]
    for what, counts in (("forwards", result.stage_forwards), ("backwards", result.stage_backwards)):
        rows |= {f"{what} {stage}": row for stage, row in zip(result.stages, counts.tolist(), strict=True)}
    return dict(zip(result.stages, result.seconds, strict=True))


class AttacksEvaluator(Evaluator):
    """Images changed, within a ball around each, to mislead the model."""

    words = VOCABULARY

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        plugged, under = EVERY_ATTACK.plugin(condition.name), condition.under
        beneath = () if under is None else family_of(under.name).evaluator.plugins(under)
        return (*(() if plugged is None else (plugged,)), *beneath)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        beneath = Cost(0) if condition.under is None else Cost(0, extra=0.2)
        return attack_cost(condition, card, classes) + Cost() + beneath

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        return bool(getattr(build_attack(condition, card), "queues", False))

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        return evaluate(subject, batch, condition, rng)


EVALUATOR = AttacksEvaluator()
