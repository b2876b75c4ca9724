"""Evaluate a batch under attack, into the columns of a record."""

from __future__ import annotations

from typing import Any

import torch

from attacks import EnsembleResult, StagedResult

from ...common.randomness import SampleRng
from ...protocol.condition import Condition
from ..inputs import attacked_inputs
from ..subject import Batch, Evaluation, Shown, Subject, show_attacked


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
