"""Evaluate a batch of images with two objects: maps of both classes, into the columns of a record."""

from __future__ import annotations

import pyarrow as pa
import torch

from attacks.model_access import likeliest
from cam.registry import CONTROLS

from ...common.determinism import SampleRng
from ...evaluations.condition import Cost
from ...evaluations.maps import chosen_of, map_with_logits
from ...evaluations.maps.evaluate import MapEvaluator, control_map, explainer_of, masses
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import VOCABULARY

COMPARED = ("centre", "random")
COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("asked_share", "first_share", "second_share"), pa.float32()),
    **dict.fromkeys(("asked_mass", "other_mass", "centre_mass", "random_mass"), pa.float32()),
    "both_found": pa.bool_(),
    "degenerate": pa.bool_(),
}
"""Null where an object is outside the frame. first_share, second_share: a class's own share of both objects;
asked_share: their mean. …_mass: share of a map's sum, a mean over both classes. both_found: the two most probable
classes. degenerate: a map constant or not finite, whose masses are 0 and share one half."""


class TwoObjectsEvaluator(MapEvaluator):
    words, columns = VOCABULARY, COLUMNS

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        method = str(dict(condition.parameters)["map"])
        return Cost(1) if method in CONTROLS else map_with_logits(method, chosen_of(condition), targets=2)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        inputs, labels = subject.inputs(batch.inputs), subject.accepted(batch.samples).to(subject.settings.device)
        with explainer_of(subject, str(dict(condition.parameters)["map"]), chosen_of(condition)) as explainer:
            explained = explainer.explain(inputs, labels, rng=rng)
        objects = torch.stack([truth.objects for truth in batch.truths]).to(explained.maps)
        rows = subject.score(explained.logits, batch) | subject.distance(torch.zeros(len(batch), 1), len(batch))
        there = (objects.flatten(2).sum(dim=2) > 0).all(dim=1).tolist()
        asked, other, shares = masses(explained.maps, objects)
        two = likeliest(explained.logits, 2).sort(dim=1).values
        figures = {
            "asked_share": shares.mean(dim=1),
            "first_share": shares[:, 0],
            "second_share": shares[:, 1],
            "asked_mass": asked.mean(dim=1),
            "other_mass": other.mean(dim=1),
        }
        for name in COMPARED:
            alike = control_map(name, inputs, rng).maps[:, None].expand(objects.shape)  # the same for every class
            figures[f"{name}_mass"] = masses(alike, objects)[0].mean(dim=1)
        figures["both_found"] = (two == labels.sort(dim=1).values).all(dim=1)
        figures["degenerate"] = explained.degenerate.any(dim=1)
        for name, some in figures.items():
            rows[name] = [value if seen else None for value, seen in zip(some.tolist(), there, strict=True)]
        return Evaluation(rows)
