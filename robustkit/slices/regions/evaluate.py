"""Drown a region of each image in noise, and evaluate the answers, into the columns of a record."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from ...common.determinism import SampleRng
from ...evaluations.condition import Cost
from ...evaluations.maps import chosen_of, map_with_logits
from ...evaluations.maps.evaluate import MapEvaluator, control_map, explainer_of
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation, Shown
from ...protocol.card import Card
from ...protocol.condition import Condition
from . import OF_MAP, RANDOM, VOCABULARY

SPREAD = {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.8}  # of pixels' range; 5 keeps nothing


def extreme(maps: Tensor, share: Fraction, lowest: bool = False) -> Tensor:
    """Return the pixels (B, H, W) bool of the highest or lowest values of maps: as many of each, the share rounded;
    raster order decides among equals, so that highest and lowest halves are disjoint."""
    order = maps.flatten(1).argsort(dim=1, descending=True, stable=True)
    count = int(share * order.shape[1] + Fraction(1, 2))
    chosen = order[:, order.shape[1] - count :] if lowest else order[:, :count]
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, chosen, True).view_as(maps)


def elsewhere(regions: Tensor, rng: SampleRng) -> Tensor:
    """Return regions (B, H, W) at random places: each moved by drawn rows and columns, around the borders."""
    B, H, W = regions.shape
    drawn = rng.uniform((2,), "place").to(regions.device)
    rows, columns = (
        (torch.arange(size, device=regions.device) + (drawn[:, axis, None] * size).long()) % size
        for axis, size in ((0, H), (1, W))
    )
    return regions[torch.arange(B, device=regions.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def noised(pixels: Tensor, severity: int, rng: SampleRng) -> Tensor:
    """Return images (B, 3, H, W) uint8 with noise everywhere, rounded to whole levels."""
    if severity not in SPREAD:
        return (rng.uniform(pixels.shape[1:], "levels") * 256).to(pixels)
    noise = rng.normal(pixels.shape[1:], "noise").to(pixels.device)
    return (pixels.float() + 255 * SPREAD[severity] * noise).round_().clamp_(0, 255).to(pixels.dtype)


COLUMNS: dict[str, pa.DataType] = {
    "clean_correct": pa.bool_(),
    "random_correct": pa.bool_(),
    "region_area": pa.float32(),
}
"""random_correct: with the region at a random place; null for random regions. region_area: 0 without a region."""


def _answers(subject: EvaluatedModel, batch: Batch, shown: Shown) -> dict[str, list[Any]]:
    with torch.inference_mode():
        return subject.score(subject.exact(shown.inputs), batch)


def _shown(subject: EvaluatedModel, batch: Batch, regions: Tensor, condition: Condition, rng: SampleRng) -> Shown:
    pixels = batch.inputs.to(subject.settings.device)
    severity = int(dict(condition.parameters)["severity"])
    return subject.show_pixels(batch, torch.where(regions[:, None], noised(pixels, severity, rng), pixels))


def _regions(subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Tensor:
    """Return the region of each image, (B, H, W) bool; empty where it has none."""
    given, device = dict(condition.parameters), subject.settings.device
    region = str(given["region"])
    if "share" in given:
        inputs = subject.inputs(batch.inputs)
        if region in OF_MAP:
            with explainer_of(subject, str(given["map"]), chosen_of(condition)) as explainer:
                explained = explainer.explain(inputs, rng=rng)
        else:
            explained = control_map(RANDOM, inputs, rng)
        chosen = extreme(explained.maps, Fraction(str(given["share"])), lowest=region == "map-bottom")
        return chosen & ~explained.degenerate[:, None, None]
    nothing = torch.zeros(batch.inputs.shape[2:], dtype=torch.bool)
    objects = torch.stack([nothing if truth is None else truth.mask for truth in batch.truths]).to(device)
    known = objects.any(dim=(1, 2), keepdim=True)
    return objects if region == "object" else ~objects & known


class RegionsEvaluator(MapEvaluator):
    words, columns = VOCABULARY, COLUMNS

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        given = dict(condition.parameters)
        if given["region"] in OF_MAP:
            return Cost(3) + map_with_logits(str(given["map"]), chosen_of(condition))
        return Cost(2 if given["region"] == RANDOM else 3)

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        return _shown(subject, batch, _regions(subject, batch, condition, rng), condition, rng)

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        regions = _regions(subject, batch, condition, rng)
        shown = _shown(subject, batch, regions, condition, rng)
        rows = _answers(subject, batch, shown) | subject.distance(shown.change, len(batch))
        rows["clean_correct"] = _answers(subject, batch, subject.show_pixels(batch, batch.inputs))["correct"]
        if dict(condition.parameters)["region"] != RANDOM:
            control = _shown(subject, batch, elsewhere(regions, rng), condition, rng)
            rows["random_correct"] = _answers(subject, batch, control)["correct"]
        rows["region_area"] = regions.float().mean(dim=(1, 2)).tolist()
        return Evaluation(rows, pictures=subject.pictures(batch, image=shown.images()) if batch.keep else {})
