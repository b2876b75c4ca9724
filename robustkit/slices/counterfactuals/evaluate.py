"""Evaluate a batch of images with one thing changed, into the columns of a record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

import cam
from cam.localisation import energy_inside

from ...common.determinism import SampleRng
from ...evaluations.condition import Cost
from ...evaluations.maps import chosen_of, map_with_logits
from ...evaluations.maps.evaluate import MapEvaluator, explainer_of
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation, Shown
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import VOCABULARY

COLUMNS: dict[str, pa.DataType] = {
    "clean_prediction": pa.int32(),
    "clean_correct": pa.bool_(),
    "flipped": pa.bool_(),
    "followed": pa.bool_(),
    "mass_before": pa.float32(),
    "mass_after": pa.float32(),
}
"""Of the changed image. followed: whether the prediction is the class that was put in; null for backgrounds. mass_…:
the share of its map on the object, before and after; null without a map, or of one constant or not finite."""


def _explained(
    explainer: cam.Explainer, inputs: Tensor, masks: list[Tensor], rng: SampleRng
) -> tuple[Tensor, list[float | None]]:
    """Return the logits (B, K), and the share of each map on its object; None of one constant or not finite."""
    explained = explainer.explain(inputs, rng=rng)
    shares = energy_inside(explained.maps.cpu(), torch.stack(masks))
    lost = explained.degenerate.tolist()
    return explained.logits, [None if gone else share for share, gone in zip(shares.tolist(), lost, strict=True)]


class CounterfactualsEvaluator(MapEvaluator):
    words, columns = VOCABULARY, COLUMNS

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        method = str(dict(condition.parameters).get("map", ""))
        return map_with_logits(method, chosen_of(condition)) * 2 if method else Cost(2)

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        change = str(dict(condition.parameters)["change"])
        pixels = torch.stack([truth.changed(change).pixels for truth in batch.truths]).to(subject.settings.device)
        return subject.show_pixels(batch, pixels)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        given = dict(condition.parameters)
        altered = [truth.changed(str(given["change"])) for truth in batch.truths]
        shown, clean = self.show(subject, batch, condition, rng), subject.inputs(batch.inputs)
        masses: dict[str, list[Any]] = {}
        if method := str(given.get("map", "")):
            masks = [truth.mask for truth in batch.truths], [each.mask for each in altered]
            with explainer_of(subject, method, chosen_of(condition)) as explainer:
                before, masses["mass_before"] = _explained(explainer, clean, masks[0], rng)
                after, masses["mass_after"] = _explained(explainer, shown.inputs, masks[1], rng)
        else:
            with torch.inference_mode():
                before, after = subject.exact(clean), subject.exact(shown.inputs)
        samples = [replace(s, label=each.label, valid=None) for s, each in zip(batch.samples, altered, strict=True)]
        rows = subject.score(after, replace(batch, samples=samples)) | subject.distance(shown.change, len(batch))
        there, now = subject.score(before, batch), rows["prediction"]
        columns = {
            "clean_prediction": there["prediction"],
            "clean_correct": there["correct"],
            "flipped": [first != second for first, second in zip(there["prediction"], now, strict=True)],
            "followed": [None if a.other < 0 else p == a.other for p, a in zip(now, altered, strict=True)],
        }
        pictures = subject.pictures(batch, image=shown.images()) if batch.keep else {}
        return Evaluation(rows | columns | masses, pictures=pictures)
