"""Evaluate a batch under a map's condition, into the columns of a record: scores of the map, or how it changed."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

import cam
from cam.agnostic import Control
from cam.faithfulness import Ends, abpc, blurred, insertion_deletion, road
from cam.localisation import (
    FREE_OF_THRESHOLDS,
    box_hits,
    entropy,
    gini,
    iou_at,
    pixel_counts,
    rank_correlation,
    score,
)
from cam.registry import CONTROLS
from cam.sensitivity import Squares, cascade, head_correlation, hide_squares, infidelity, sensitivity

from ...common.determinism import SampleRng, seeded
from ...common.plugins import Plugin
from ...data.dataset import Sample
from ...errors import ModelError
from ...models.identity import Classifier, has_gradients
from ...protocol.card import Card
from ...protocol.condition import Condition
from ...runs.kept_images import Picture
from ..condition import Cost
from ..family import Evaluator, family_of, inputs_under
from ..subject import Batch, EvaluatedModel, Evaluation
from . import (
    EVERY_EXPLAINER,
    FULL,
    MODES,
    MOVED,
    ON_OBJECTS,
    PLAIN,
    SCORES,
    VOCABULARY,
    Chosen,
    MapSpec,
    as_numbers,
    explained_of,
    map_of_class,
    map_with_logits,
    needs_gradients,
)
from .truth import Located


class MapEvaluator(Evaluator):
    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        plugged = EVERY_EXPLAINER.plugin(str(dict(condition.parameters).get("map", "")))
        return (*filter(None, [plugged]), *super().plugins(condition))


def explainer_of(subject: EvaluatedModel, method: str, options: Chosen = ()) -> cam.Explainer:
    """Return a network's explainer, with the subject's batch size and fill of hidden pixels where it takes them."""
    kind = EVERY_EXPLAINER[method]
    shared = {"fill": nothing_of(subject), "batch_size": subject.settings.batch_size}
    taken = {key: value for key, value in shared.items() if key in inspect.signature(kind).parameters}
    return kind(subject.exact, **taken, **as_numbers(method, options))


def control_map(method: str, inputs: Tensor, rng: SampleRng, target: Tensor | None = None) -> cam.Explanation:
    control = EVERY_EXPLAINER[method]
    assert issubclass(control, Control)
    return control().explain(inputs, target, rng=rng)


def nothing_of(subject: EvaluatedModel) -> Tensor:
    """Return what a removed pixel becomes, (3,): the mean that the model normalises with."""
    return torch.zeros(3) if subject.card.space != "pixels" else subject.classifier.mean.flatten()


ABPC, AREAS, ROAD = Cost(18), Cost(54), Cost(18)  # passes of an image for a map; areas are insertion with deletion


WHOLE, BLURRED, HIDDEN = Cost(1), Cost(1), Cost(32)  # once for all maps: curves' ends, infidelity; on `full`


Columns = dict[str, list[Any]]
_ROWS = 16384
"""Of about 2 KB each: of three controls 5461 images. The first stay: checkpoints take the images in one order."""
_CACHE: dict[Hashable, tuple[int, Columns]] = {}


def _digest(located: Located | None) -> Hashable:
    """Return what tells a truth apart, as far as scores depend on it."""
    if located is None:
        return None
    mask = hashlib.sha256(located.mask.numpy().tobytes()).digest()
    return mask, tuple(located.mask.shape), tuple(map(tuple, located.boxes.tolist())), located.vanished


T = TypeVar("T")


def clean_answers(subject: EvaluatedModel, samples: Sequence[Sample], inputs: Tensor) -> Tensor:
    return _answers(subject, samples, "clean", lambda rng: _logits(subject, inputs))


def shared_by_maps(subject: EvaluatedModel, samples: Sequence[Sample], inputs: Tensor, canvas: bool) -> dict[str, Any]:
    """Return what tests of maps have in common. canvas: whether there are curves that begin with a blurred image."""
    fill, shape = nothing_of(subject), inputs.shape[1:]
    nothing = fill.to(inputs).view(1, -1, 1, 1).expand(1, *shape)
    whole = clean_answers(subject, samples, inputs)
    empty = _answers(subject, [], f"empty {tuple(shape)}", lambda rng: _logits(subject, nothing))
    blank = _answers(subject, samples, "blurred", lambda rng: _logits(subject, blurred(inputs))) if canvas else None
    return {"fill": fill, "ends": Ends(whole, empty.expand_as(whole), blank), "batch_size": subject.settings.batch_size}


def _logits(subject: EvaluatedModel, images: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = subject.exact(images)
    return logits


def _answers(subject: EvaluatedModel, samples: Sequence[Sample], name: str, ask: Callable[[SampleRng], T]) -> T:
    """Return what `ask` gives for images, named by their samples and what they are shown as, `name`."""
    condition = Condition("answers", f"answers({name})")  # so that they do not depend on which map asks first
    rng = subject.rng(samples, condition)
    key = condition.text, *(sample.id for sample in samples)
    return subject.answered(key, lambda: subject.steadily(condition.text, rng, lambda: ask(rng)))


LEVELS = 200  # levels of a map's values, for PxAP from records
COLUMNS: dict[str, pa.DataType] = {
    "target": pa.int32(),
    "degenerate": pa.bool_(),
    **{f"{mode}_{name}": pa.float32() for mode in MODES for name in SCORES},
    **dict.fromkeys(ON_OBJECTS, pa.float32()),
    "vanished_boxes": pa.int32(),
    "pixel_counts": pa.list_(pa.int32()),
    "box_hits": pa.binary(),
    **dict.fromkeys([name for name in PLAIN if name not in ON_OBJECTS], pa.float32()),
    **dict.fromkeys(("clean_correct", "held"), pa.bool_()),
    **dict.fromkeys(MOVED, pa.float32()),
}
"""Null where the truth is not known, or the score was not asked for. target: the class explained. degenerate: a map
constant or not finite, all 0 then. pixel_counts: flat, at LEVELS levels. box_hits: packed to bits. clean_correct: null
without a label. held: whether the clean prediction stays."""


def check_explainable(model: Classifier, name: str, specs: Sequence[MapSpec]) -> None:
    """Raise ModelError where a method, with its options, does not work for a model; the message lists those that do."""
    plain = torch.zeros(2, 3, *model.identity.preprocessing.input_size, device=model.mean.device)
    for method, options in dict.fromkeys((spec.method, spec.options) for spec in specs):
        if needs_gradients(method) and not has_gradients(model):
            remedy = f"use rise, or the controls {', '.join(CONTROLS)}"
            raise ModelError(f"{name}: {method} needs gradients, which it does not have; {remedy}")
        try:
            explainer = EVERY_EXPLAINER[method](model, **as_numbers(method, options))
            # A network that fails by itself does so on clean images, too, and there it is said in one line.
            with seeded(plain.device, 0), suppress(RuntimeError):
                explainer.check(plain)
        except (ValueError, TypeError) as fault:
            raise ModelError(f"{name}: {fault}") from None


def explain_batch(
    subject: EvaluatedModel, inputs: Tensor, batch: Batch, labels: Tensor | None, spec: MapSpec, rng: SampleRng
) -> tuple[Tensor, Columns, Tensor]:
    """Return the logits (B, K), the record columns, and the maps (B, H, W) of inputs in the card's space."""
    target, samples = labels if spec.target == "label" else None, batch.samples
    if not spec.is_control:
        explanation = _maps(subject, inputs, target, spec, rng)
    else:
        answers = clean_answers(subject, samples, inputs)
        alone = control_map(spec.method, inputs, rng, answers.argmax(dim=1) if target is None else target)
        explanation = replace(alone, logits=answers)
    columns: Columns = {
        "target": subject.classes(explanation.target),
        "degenerate": explanation.degenerate.tolist(),
        **_located(subject, samples, explanation.maps, batch.truths, spec),
    }
    if spec.faithfulness != "none":
        shared = shared_by_maps(subject, samples, inputs, canvas=spec.faithfulness == "all")
        if spec.method == FULL:
            columns["abpc"] = [0.0] * len(inputs)
        else:
            curves = abpc(subject.exact, inputs, explanation.maps, explanation.target, **shared)
            columns["abpc"] = curves.abpc.tolist()
        if spec.faithfulness == "all":
            fill, size = shared["fill"], shared["batch_size"]

            def hide(drawn: SampleRng) -> Squares:
                return hide_squares(subject.exact, inputs, fill=fill, rng=drawn, batch_size=size)

            squares = _answers(subject, samples, "squares", hide)  # the same places for all maps
            columns |= _of_maps(subject, inputs, explanation, spec, shared, squares, rng)
    return explanation.logits, columns, explanation.maps


def _of_maps(
    subject: EvaluatedModel,
    inputs: Tensor,
    explanation: cam.Explanation,
    spec: MapSpec,
    shared: Mapping[str, Any],
    squares: Squares,
    rng: SampleRng,
) -> Columns:
    """Return the scores of `faithfulness=all`; those of dependence on the model and sensitivity not for controls."""
    maps, target = explanation.maps, explanation.target
    areas = insertion_deletion(subject.exact, inputs, maps, target, **shared)
    imputed = road(subject.exact, inputs, maps, target, rng=rng, batch_size=shared["batch_size"])
    scores = {
        "insertion": areas.insertion,
        "deletion": areas.deletion,
        "road": imputed.road,
        "road_lerf": imputed.lerf.mean(dim=1),
        "road_morf": imputed.morf.mean(dim=1),
        "infidelity": infidelity(subject.exact, inputs, maps, target, squares=squares, **shared),
        "map_entropy": entropy(maps),
        "map_gini": gini(maps),
    }
    if not spec.is_control:
        explainer = explainer_of(subject, spec.method, spec.options)
        redrawn = cascade(explainer, inputs, maps, target, rng=rng)
        moved = sensitivity(explainer, inputs, maps, target, rng=rng)
        scores |= {
            "head_correlation": head_correlation(explainer, inputs, maps, target, rng=rng),
            "cascade_correlation": redrawn.correlations.nanmean(dim=1),
            "entropy_rise": redrawn.entropy_rise,
            "max_sensitivity": moved.largest,
            "mean_sensitivity": moved.mean,
        }
    return {name: _finite(values) for name, values in scores.items()}


def stability(
    subject: EvaluatedModel,
    clean: Tensor,
    inputs: Tensor,
    batch: Batch,
    labels: Tensor | None,
    spec: MapSpec,
    rng: SampleRng,
) -> tuple[Tensor, Columns, Tensor]:
    """Return the logits (B, K) of the images shown, how maps of the same class differ, and the maps (B, H, W)."""
    before = _maps(subject, clean, labels if spec.target == "label" else None, spec, rng)
    after = _maps(subject, inputs, before.target, spec, rng)
    predicted, lost = before.logits.argmax(dim=1), before.degenerate | after.degenerate
    columns = {
        "target": subject.classes(before.target),
        "degenerate": lost.tolist(),
        "clean_correct": subject.correct(predicted, batch.samples),
        "held": (after.logits.argmax(dim=1) == predicted).tolist(),
        "rank_correlation": _finite(rank_correlation(before.maps, after.maps)),
        "map_iou": _finite(iou_at(before.maps, after.maps, spec.threshold).masked_fill(lost, math.nan)),
    }
    return after.logits, columns, after.maps


def _maps(subject: EvaluatedModel, inputs: Tensor, target: Tensor | None, spec: MapSpec, rng: Any) -> cam.Explanation:
    with explainer_of(subject, spec.method, spec.options) as explainer:
        return explainer.explain(inputs, target, rng=rng)


def _located(
    subject: EvaluatedModel, samples: Sequence[Sample], maps: Tensor, located: Sequence[Located | None], spec: MapSpec
) -> Columns:
    """Return how maps (B, H, W) agree with the truth; of controls, what was found for another checkpoint."""
    key: Hashable = None
    if spec.is_control:
        drawn = subject.settings.seed, *(sample.id for sample in samples)
        key = spec.method, spec.threshold, maps.shape, str(maps.device), drawn, *map(_digest, located)
        if key in _CACHE:
            return _CACHE[key][1]
    columns = localised(maps.cpu(), located, spec.threshold)
    if key is not None and sum(rows for rows, _ in _CACHE.values()) + len(located) <= _ROWS:
        _CACHE[key] = len(located), columns
    return columns


def localised(maps: Tensor, located: Sequence[Located | None], threshold: float) -> Columns:
    if all(entry is None for entry in located):
        return {}
    marked = {index: entry for index, entry in enumerate(located) if entry is not None and bool(entry.mask.any())}
    columns: Columns = {}

    def put(name: str, values: Sequence[Any]) -> None:
        column = columns.setdefault(name, [None] * len(located))
        for index, value in zip(marked, values, strict=True):
            column[index] = value

    whole, maps = list(marked.values()), maps[list(marked)]
    masks = torch.stack([entry.mask for entry in whole]) if whole else torch.zeros(0, *maps.shape[1:], dtype=torch.bool)
    for mode in MODES:
        scores = score(maps, masks, threshold, mode)
        for name in SCORES:
            put(f"{mode}_{name}", getattr(scores, name).tolist())
    for name, of in FREE_OF_THRESHOLDS.items():
        put(name, of(maps, masks).tolist())
    put("pixel_counts", list(pixel_counts(maps, masks, LEVELS).flatten(1).int().numpy()))
    hits = box_hits(maps, [entry.boxes for entry in whole]).flatten(1).numpy()
    put("box_hits", [np.packbits(row).tobytes() for row in hits])
    columns["vanished_boxes"] = [None if entry is None else entry.vanished for entry in located]
    return columns


def _finite(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


AGAIN = 5 + 8 + 10  # maps made again: of five redrawn heads, eight stages of the cascade, ten noisy copies


def cost_lines(costs: Mapping[Condition, Cost]) -> list[str]:
    """Return a line on the controls: free themselves, but the model is asked what they are worth."""
    specs = {condition: spec for condition in costs if (spec := explained_of(condition)) is not None}
    controls = [costs[condition] for condition, spec in specs.items() if spec.is_control]
    if not controls:
        return []
    every = sum((costs[condition] for condition in specs), Cost(0))
    tested = any(spec.faithfulness != "none" for spec in specs.values())
    saved = "; --faithfulness none skips the faithfulness tests" if tested else ""
    return [f"maps: {sum(controls, Cost(0))} of their {every} passes are for controls, which ignore the image{saved}"]


class MapsEvaluator(Evaluator):
    words, columns = VOCABULARY, COLUMNS

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        spec = explained_of(condition)
        plugged = None if spec is None else EVERY_EXPLAINER.plugin(spec.method)
        return (*filter(None, [plugged]), *super().plugins(condition))

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        spec = explained_of(condition)
        if spec is None:
            return Cost()
        alone = map_with_logits(spec.method, spec.options)
        if (under := condition.under) is not None:
            return alone * 2 + family_of(under.name).evaluator.cost(under, card, classes)
        constant, tested = spec.method == FULL, spec.faithfulness == "all"
        total = alone + ABPC if spec.faithfulness != "none" and not constant else alone
        if tested:
            road = ROAD * 0.5 if constant else ROAD  # a constant map has one order, from both ends
            again = Cost(0) if spec.is_control else map_of_class(spec.method, spec.options) * AGAIN
            total = total + AREAS + road + again
        return total + WHOLE + (BLURRED + HIDDEN if tested else Cost(0)) if constant else total

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        spec, under = explained_of(condition), condition.under
        assert spec is not None
        labels = subject.labels(batch.samples) if all(sample.label >= 0 for sample in batch.samples) else None
        inputs = subject.inputs(batch.inputs)
        if under is None:
            logits, columns, maps = explain_batch(subject, inputs, batch, labels, spec, rng)
            rows = subject.score(logits, batch) | subject.distance(torch.zeros(len(batch), 1), len(batch))
            return Evaluation(rows | columns, pictures=subject.pictures(batch, heat=maps))
        view = inputs_under(subject, batch, under)
        merged, pictures = Columns(), dict[str, Picture]()
        for place, part in batch.parts(subject.settings.batch_size):  # the attack may have had the whole shard
            label = None if labels is None else labels[place]
            streams = rng.take(torch.arange(len(batch))[place])
            logits, columns, maps = stability(subject, inputs[place], view[place], part, label, spec, streams)
            pictures |= subject.pictures(part, heat=maps)
            rows = subject.score(logits, part) | subject.distance(None, len(part)) | columns
            for name, values in rows.items():
                merged.setdefault(name, []).extend(values)
        return Evaluation(merged, pictures=pictures)


def masses(maps: Tensor, objects: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each map's share in its own object, in the other, and its own of both (half where 0 in both): (B, 2) each,
    of maps and object masks (B, 2, H, W)."""
    inside = torch.einsum("bthw,bohw->bto", maps.double(), objects.double())
    whole = maps.double().sum(dim=(2, 3)).clamp_min(torch.finfo(torch.float64).tiny)
    own, both = inside.diagonal(dim1=1, dim2=2), inside.sum(dim=2)
    shares = torch.where(both > 0, own / both.clamp_min(torch.finfo(torch.float64).tiny), 0.5)
    return own / whole, (both - own) / whole, shares
