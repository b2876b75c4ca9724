"""Evaluate a batch of scenes under a map of a class, into the columns of a record: for each image a list with a value
for each class that is explained there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

import cam
from cam import SegmentTarget, component
from cam.faithfulness import Ends, abpc, blurred, insertion_deletion, region_iou
from cam.localisation import energy_inside, iou_at, pointing_game, rank_correlation
from cam.sensitivity import randomise_weights

from ....common.determinism import SampleRng
from ....errors import ModelError
from ....evaluations.condition import Cost
from ....evaluations.family import family_of, inputs_under
from ....evaluations.maps import map_of_class
from ....evaluations.maps.evaluate import ABPC as ABPC_COST
from ....evaluations.maps.evaluate import AREAS, BLURRED, MapEvaluator, control_map, explainer_of, nothing_of
from ....evaluations.subject import Batch, EvaluatedModel, Evaluation
from ....models.dense import Segmenter
from ....protocol.card import Card
from ....protocol.condition import Condition
from . import (
    ABPC,
    AREA,
    COLUMNS_READ,
    DELETION,
    ENERGY,
    EVERY,
    FLAT,
    HEAD,
    HEAD_ABPC,
    HEAD_ENERGY,
    IN_CONTEXT,
    IN_OBJECT,
    INSERTION,
    LARGEST,
    LEFT,
    OVERLAP,
    OWN_MASK,
    POINTING,
    RANK,
    VOCABULARY,
    ClassMap,
    Region,
)

COLUMNS: dict[str, pa.DataType] = dict.fromkeys(COLUMNS_READ, pa.list_(pa.float32())) | {
    "explained": pa.list_(pa.int32())
}
"""explained: the classes, from the largest down; empty where the image does not show the one that is asked for. The
others have a value for each of them. class_flat: 1 where the map is constant or not finite. …_head_…: of the map of
same class after the head is drawn again."""
_MOST = 8  # classes of an image that an estimate of the cost expects


@dataclass(frozen=True)
class Explained:
    """A class of an image. region: the pixels (H, W) bool whose logits are summed. object: those that are its own.
    clean: those that are predicted as it, without those outside of `zone`, other components of it."""

    target: int
    region: Tensor
    object: Tensor
    zone: Tensor
    clean: Tensor

    def left(self, predicted: Tensor) -> float:
        """Return the IoU of what is predicted as it, from the class (H, W) of each pixel, with its clean pixels; nan
        where it has none."""
        return overlap_of((predicted == self.target) & self.zone, self.clean) if bool(self.clean.any()) else math.nan


def explained_in(
    spec: ClassMap,
    predicted: Tensor,
    labels: Tensor | None,
    unjudged: Sequence[int] = (),
    anywhere: bool = False,
) -> list[Explained]:
    """Return the classes that a map is of in an image, from the largest down; none where it does not show them.

    predicted: (H, W), the class of each pixel. labels: (H, W) of the truth, negative where it does not count; None
    without. unjudged: classes that are never chosen. anywhere: whether a class is also explained at a pixel, or in a
    box, that has nothing of it.
    """
    region, mask = spec.region, predicted
    if region.kind == "true":
        assert labels is not None
        mask = labels
    inside = mask[_frame(region, mask)]
    classes = int(mask.max()) + 1
    counts = torch.bincount(inside[inside >= 0], minlength=max(classes, 1)).cpu()
    counts[[place for place in unjudged if place < len(counts)]] = 0
    present = [int(place) for place in counts.argsort(descending=True, stable=True) if counts[place]]
    chosen = present if spec.of == EVERY else present[:1] if spec.of == LARGEST else [spec.index]
    parts = []
    for target in chosen:
        assert target is not None
        pixels = _pixels(region, mask, target)
        likely = predicted == target
        mine = likely if region.kind in ("box", "pixel") else pixels
        zone = pixels | ~likely if region.kind == "component" else torch.ones_like(likely)
        if bool((pixels if anywhere and region.numbers else pixels & mine).any()):
            parts.append(Explained(target, pixels, mine, zone, likely & zone))
    return parts


def _frame(region: Region, mask: Tensor) -> Tensor:
    """Return the pixels (H, W) bool in which a class is chosen: all without numbers; none outside of the image."""
    inside = torch.full_like(mask, not region.numbers, dtype=torch.bool)
    if region.numbers:
        top, left, bottom, right = region.corners
        inside[top:bottom, left:right] = bottom <= mask.shape[0] and right <= mask.shape[1]
    return inside


def _pixels(region: Region, mask: Tensor, target: int) -> Tensor:
    """Return the pixels (H, W) bool whose logits of a class are summed; empty where it is not there."""
    likely, inside = mask == target, _frame(region, mask)
    if region.kind == "component":
        return component(likely, *region.numbers) if bool((likely & inside).any()) else torch.zeros_like(likely)
    if region.kind == "box" and not region.numbers and bool(likely.any()):
        (rows,), (columns,) = likely.any(dim=1).nonzero(as_tuple=True), likely.any(dim=0).nonzero(as_tuple=True)
        likely[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1] = True
    return inside if region.numbers else likely


def explain_class(
    subject: EvaluatedModel, spec: ClassMap, inputs: Tensor, part: Explained, rng: SampleRng
) -> cam.Explanation:
    """Return the map of a class of one image, given as inputs (1, 3, H, W); of a control it ignores the image."""
    if spec.method == OWN_MASK:
        maps, target = part.object[None].float(), torch.tensor([part.target], device=inputs.device)
        flat = part.object.all()[None]
        return cam.Explanation(maps, inputs.new_zeros(1, 0), target, flat)
    if spec.is_control:
        return control_map(spec.method, inputs, rng, torch.tensor([part.target], device=inputs.device))
    try:
        with explainer_of(subject, spec.method, spec.options) as explainer:
            return explainer.explain(inputs, SegmentTarget(part.target, part.region), rng=rng)
    except (ValueError, TypeError) as fault:
        raise ModelError(f"{subject.classifier.identity.name}: {fault}") from None


class ClassMapsEvaluator(MapEvaluator):
    words, columns, keeps_places = VOCABULARY, COLUMNS, True

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        spec = condition.payload
        assert isinstance(spec, ClassMap)
        times = min(_MOST, classes) if spec.of == EVERY else 1
        if not spec.method:
            return Cost(1) + Cost(2) * times
        alone = Cost(0) if spec.is_control else Cost(1) + map_of_class(spec.method, spec.options)
        if (under := condition.under) is not None:
            return Cost(2) + alone * (2 * times) + family_of(under.name).evaluator.cost(under, card, classes)
        curves = Cost(0) if spec.faithfulness == "none" else ABPC_COST
        twice = 1 if spec.is_control else 2  # again, with its head redrawn
        tested = spec.faithfulness == "all"
        areas = AREAS + BLURRED if tested else Cost(0)
        return Cost(2) + (alone * twice + curves * (twice if tested else 1) + areas) * times

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        spec = condition.payload
        assert isinstance(spec, ClassMap)
        inputs, under = subject.inputs(batch.inputs), condition.under
        views = None if under is None else inputs_under(subject, batch, under)
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS_READ}
        columns["sample_id"] = [sample.id for sample in batch.samples]
        for place, sample in enumerate(batch.samples):
            row, image = slice(place, place + 1), inputs[place : place + 1]
            labels = torch.from_numpy(batch.truths[place]).to(image.device)
            predicted = _predicted(subject, sample.id, image)
            parts = explained_in(spec, predicted, labels, getattr(subject, "unjudged", torch.zeros(0)).tolist())
            draws = rng.take(torch.arange(len(batch))[row])
            if not spec.method:
                of_part = partial(_with_noise, subject, image)
            elif views is None:
                of_part = partial(_scores, subject, spec, image)
            else:
                of_part = partial(_moved, subject, spec, image, views[row])
            values = [of_part(part, draws) | {AREA.name: float(part.object.float().mean())} for part in parts]
            columns["explained"].append([part.target for part in parts])
            for name in COLUMNS_READ[1:]:
                has_it = bool(values) and name in values[0]
                columns[name].append([each[name] for each in values] if has_it else None)
        return Evaluation(columns)


def _predicted(subject: EvaluatedModel, name: str, image: Tensor) -> Tensor:
    """Return the class (H, W) of each pixel of an image; the maps of a shard share it, in 16 bits."""
    if not isinstance(subject.classifier, Segmenter):
        raise ModelError(f"{subject.classifier.identity.name} is no segmenter; of= is of segmenters, leave it out")

    def ask() -> Tensor:
        with torch.no_grad():
            logits: Tensor = subject.exact(image)
            return logits[0].argmax(dim=0).short()

    predicted: Tensor = subject.answered(("predicted", name), ask)
    return predicted.long()


def _curves(subject: EvaluatedModel, image: Tensor, part: Explained, spec: ClassMap) -> dict[str, Any]:
    """Return what the curves of an image have in common: the IoU with the class's pixels as a model of two classes, and
    its answers to the image, to nothing, and, if curves need it, to the blurred image."""

    def in_zone(images: Tensor) -> Tensor:
        logits: Tensor = subject.exact(images)
        logits[:, part.target].masked_fill_(~part.zone, -math.inf)
        return logits

    overlap, fill = region_iou(in_zone, part.object, part.target), nothing_of(subject)
    share = overlap_of(part.clean, part.object)
    with torch.no_grad():
        empty = overlap(fill.to(image).view(1, -1, 1, 1).expand_as(image))
        canvas = overlap(blurred(image)) if spec.faithfulness == "all" else None
    ends = Ends(torch.tensor([[1 - share, share]], device=image.device).log(), empty, canvas)
    return {"model": overlap, "fill": fill, "ends": ends, "batch_size": subject.settings.batch_size}


def _scores(
    subject: EvaluatedModel, spec: ClassMap, image: Tensor, part: Explained, rng: SampleRng
) -> dict[str, float]:
    explanation = explain_class(subject, spec, image, part, rng)
    maps, mask = explanation.maps, part.object[None]
    values = {
        ENERGY.name: float(energy_inside(maps, mask)),
        POINTING.name: float(pointing_game(maps, mask)),
        FLAT: float(explanation.degenerate),
    }
    shared = {} if spec.faithfulness == "none" else _curves(subject, image, part, spec)
    if shared:
        values[ABPC.name] = float(abpc(images=image, maps=maps, target=1, **shared).abpc)
    if spec.faithfulness == "all":
        areas = insertion_deletion(images=image, maps=maps, target=1, **shared)
        values |= {INSERTION.name: float(areas.insertion), DELETION.name: float(areas.deletion)}
    if not spec.is_control and (head := _head(subject, image)) is not None:
        with randomise_weights([head]):
            again = explain_class(subject, spec, image, part, rng).maps
        values |= {HEAD.name: float(rank_correlation(maps, again)), HEAD_ENERGY.name: float(energy_inside(again, mask))}
        if spec.faithfulness == "all":
            values[HEAD_ABPC.name] = float(abpc(images=image, maps=again, target=1, **shared).abpc)
    return {name: value if math.isfinite(value) else math.nan for name, value in values.items()}


def _head(subject: EvaluatedModel, image: Tensor) -> nn.Module | None:
    """Return the layer whose weights are the nearest to the logits, so none of an auxiliary head; None without any."""

    def find() -> nn.Module | None:
        parts, frozen = nn.Module.modules(subject.exact.network), list[nn.Parameter]()
        owners = {
            id(weight): (part, weight)
            for part in parts
            for weight in nn.Module.parameters(part, recurse=False)
            if weight.ndim > 1 and weight.is_floating_point()
        }
        try:
            for _, weight in owners.values():
                if not weight.requires_grad:
                    weight.requires_grad_(True)
                    frozen.append(weight)
            with torch.inference_mode(False), torch.enable_grad():
                queue, seen = [subject.exact(image.clone()).grad_fn], {None}
            for node in queue:  # which grows, from the logits on
                if node not in seen:
                    seen.add(node)
                    if (owned := owners.get(id(getattr(node, "variable", None)))) is not None:
                        return owned[0]
                    queue += [each for each, _ in node.next_functions]
        finally:
            for weight in frozen:
                weight.requires_grad_(False)
        return None

    layer: nn.Module | None = subject.answered("head", find)
    return layer


def _moved(
    subject: EvaluatedModel, spec: ClassMap, image: Tensor, view: Tensor, part: Explained, rng: SampleRng
) -> dict[str, float]:
    """Return how the map of a class changes with the image, over the same pixels, and how much of the class is left."""
    before, after = (explain_class(subject, spec, each, part, rng) for each in (image, view))
    flat = bool(before.degenerate | after.degenerate)
    return {
        RANK.name: float(rank_correlation(before.maps, after.maps)),
        OVERLAP.name: math.nan if flat else float(iou_at(before.maps, after.maps)),
        LEFT.name: _left(subject, view, part),
        FLAT: float(flat),
    }


def _with_noise(subject: EvaluatedModel, image: Tensor, part: Explained, rng: SampleRng) -> dict[str, float]:
    """Return the IoU that is left where pixels of the class, or all others, become random ones of 256 even levels."""
    levels = (rng.uniform(image.shape[1:], "levels") * 256).floor().to(image) / 255
    noise = levels if subject.card.space == "pixels" else subject.classifier.normalize(levels)
    return {
        IN_OBJECT.name: _left(subject, torch.where(part.object, noise, image), part),
        IN_CONTEXT.name: _left(subject, torch.where(part.object, image, noise), part),
    }


def overlap_of(mask: Tensor, region: Tensor) -> float:
    """Return the IoU of two masks (H, W) bool; 0 where both are empty."""
    return float((mask & region).sum() / (mask | region).sum().clamp_min(1))


def _left(subject: EvaluatedModel, image: Tensor, part: Explained) -> float:
    with torch.no_grad():
        return part.left(subject.exact(image)[0].argmax(dim=0))
