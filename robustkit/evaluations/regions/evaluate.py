"""Evaluate a batch with a region drowned, into the columns of a record: the answers, and those without a random region
of the same size.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from ...common.randomness import SampleRng
from ...protocol.condition import Condition
from ..explainers import control_map, explainer_of
from ..shown import show_pixels
from ..subject import Batch, Evaluation, Shown, Subject
from .drown import elsewhere, extreme, noised
from .vocabulary import OF_MAP, RANDOM, chosen_of

COLUMNS: dict[str, pa.DataType] = {
    "clean_correct": pa.bool_(),
    "random_correct": pa.bool_(),
    "region_area": pa.float32(),
}
"""Columns that region noise adds to a record.

clean_correct: whether the clean image is predicted right. random_correct: whether the image is that has the region
drowned at a random place; null for random regions. region_area: the share of the image that is drowned; 0 where an
image has no such region, and is not counted.
"""


def show(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
    """Return the images of a batch with their regions drowned."""
    return _shown(subject, batch, _regions(subject, batch, condition, rng), condition, rng)


def evaluate(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
    """Return how the model does on images with their regions drowned, on the clean ones, and on those with the region
    drowned elsewhere. All is computed in float32.
    """
    regions = _regions(subject, batch, condition, rng)
    shown = _shown(subject, batch, regions, condition, rng)
    rows = _answers(subject, batch, shown) | subject.distance(shown.change, len(batch))
    rows["clean_correct"] = _answers(subject, batch, show_pixels(subject, batch, batch.inputs))["correct"]
    if dict(condition.parameters)["region"] != RANDOM:
        control = _shown(subject, batch, elsewhere(regions, rng), condition, rng)
        rows["random_correct"] = _answers(subject, batch, control)["correct"]
    rows["region_area"] = regions.float().mean(dim=(1, 2)).tolist()
    pictures = subject.pictures(batch, image=shown.images()) if batch.keep else {}
    return Evaluation(rows, pictures=pictures)


def _answers(subject: Subject, batch: Batch, shown: Shown) -> dict[str, list[Any]]:
    with torch.inference_mode():
        return subject.score(subject.exact(shown.inputs), batch)


def _shown(subject: Subject, batch: Batch, regions: Tensor, condition: Condition, rng: SampleRng) -> Shown:
    pixels = batch.inputs.to(subject.settings.device)
    severity = int(dict(condition.parameters)["severity"])
    return show_pixels(subject, batch, torch.where(regions[:, None], noised(pixels, severity, rng), pixels))


def _regions(subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Tensor:
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
