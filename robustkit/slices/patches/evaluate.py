"""Evaluate a batch with patches, into the columns of a record."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa

from attacks.pgd import PatchResult

from ...common.determinism import SampleRng
from ...evaluations.attacks.evaluate import AttacksEvaluator, evaluate_shown
from ...evaluations.condition import Cost
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import VOCABULARY


class PatchesEvaluator(AttacksEvaluator):
    words, columns = VOCABULARY, {"patch_top": pa.int32(), "patch_left": pa.int32(), "patch_share": pa.float32()}

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        parameters = dict(condition.parameters)
        where = str(parameters["where"])
        steps, runs = int(parameters["steps"]), int(where.removeprefix("worst-of-")) if where.startswith("worst") else 1
        return Cost(runs * (steps + 1) + 2, runs * steps, at_most=bool(parameters["early_stop"]))

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        view = self.show(subject, batch, condition, rng)
        assert isinstance(view.result, PatchResult)
        done, size = evaluate_shown(subject, batch, condition, view), int(dict(condition.parameters)["size"])
        done.columns["patch_top"], done.columns["patch_left"] = view.result.places.T.tolist()
        done.columns["patch_share"] = [size * size / math.prod(view.inputs.shape[-2:])] * len(batch)
        return replace(done, change=None)
