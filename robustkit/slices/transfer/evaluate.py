"""Score a batch on the adversarial images that were found for another checkpoint."""

from __future__ import annotations

import torch

from ...common.determinism import SampleRng
from ...evaluations.attacks.evaluate import build_attack, score_images
from ...evaluations.family import Evaluator, attacked_inputs
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.condition import Condition
from . import VOCABULARY


class TransferEvaluator(Evaluator):
    words = VOCABULARY

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return answers in full precision; rounding may leave the ball, so the sum is drawn back into it."""
        attack = condition.under
        assert attack is not None and batch.added is not None
        found_by = build_attack(attack, subject.card)
        assert found_by is not None
        inputs = attacked_inputs(subject, batch, attack)
        with torch.inference_mode():
            attacked = found_by.threat.project(inputs + batch.added.to(inputs.device, inputs.dtype), inputs)
            change = (attacked - inputs).float()
            if subject.card.space != "pixels":
                change = change * subject.classifier.std
        return Evaluation(score_images(subject, batch, attacked) | subject.distance(change, len(batch)))
