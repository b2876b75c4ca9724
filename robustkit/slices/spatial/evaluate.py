"""Evaluate a batch under rotations and translations, into the columns of a record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from attacks.spatial import DenseSpatial, Spatial, SpatialResult, grid_of_moves

from ...common.determinism import SampleRng
from ...evaluations.attacks.evaluate import AttacksEvaluator, attacked_labels, build_attack, evaluate_shown
from ...evaluations.condition import Cost
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import VOCABULARY

_COLUMNS = ("degrees", "shift_down", "shift_right")


class SpatialEvaluator(AttacksEvaluator):
    words = VOCABULARY
    columns = dict.fromkeys((*_COLUMNS, "first_degrees"), pa.float32())

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        attack = build_attack(condition, card)
        assert isinstance(attack, Spatial | DenseSpatial)
        moves = attack.draws + 1
        if not attack.draws:
            moves = len(grid_of_moves(attack.degrees, attack.shift, attack.angles, attack.shifts))
        predicted = int(attacked_labels(condition, card) == "predicted")
        return Cost(predicted + moves + 1, at_most=isinstance(attack, Spatial) and attack.early_stop)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return the columns of the images at their worst moves; a segmenter's masks move alike."""
        view, attack = self.show(subject, batch, condition, rng), build_attack(condition, subject.card)
        assert isinstance(view.result, SpatialResult)
        moves, first = view.result.moves, view.result.first.cpu()
        if isinstance(attack, DenseSpatial):
            masks = attack.move_masks(torch.from_numpy(np.stack(batch.truths)).to(moves.device), moves)
            batch = replace(batch, truths=list(masks.cpu().numpy()))
        done = evaluate_shown(subject, batch, condition, view)
        done.columns.update(subject.distance(None, len(batch)))  # a move has no size in values
        done.columns.update(zip(_COLUMNS, moves.T.tolist(), strict=True))
        done.columns["first_degrees"] = [value if value < torch.inf else None for value in first.tolist()]
        return replace(done, change=None)
