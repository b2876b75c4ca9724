"""Evaluate a batch under an attack that looks for the smallest change, into the columns of a record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pyarrow as pa
import torch

from attacks.threat import Norm, distance

from ...common.determinism import SampleRng
from ...evaluations.attacks.evaluate import evaluate_shown
from ...evaluations.condition import Cost
from ...evaluations.family import Evaluator
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation, show_attacked
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import VOCABULARY


class DistancesEvaluator(Evaluator):
    words, columns = VOCABULARY, {"distance": pa.float32()}

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        parameters = dict(condition.parameters)
        if "queries" in parameters:
            return Cost(int(parameters["queries"]) + 2, at_most=True)  # the clean image, and the score
        return Cost(int(parameters["steps"]) + 3, int(parameters["steps"]))  # and the last point

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        inputs = subject.inputs(batch.inputs)
        view = show_attacked(subject, inputs, subject.attack(condition, inputs, batch, rng))
        pictured = batch if subject.card.space == "pixels" else replace(batch, keep=())
        done = evaluate_shown(subject, pictured, condition, view)
        assert view.change is not None
        sizes = distance(cast(Norm, condition.norm), view.change, torch.zeros_like(view.change)).tolist()
        # A point that is right after all, where the attack found nothing, has no distance.
        right = done.columns["correct"]
        done.columns["distance"] = [math.nan if each else size for each, size in zip(right, sizes, strict=True)]
        return replace(done, change=None)
