"""Plan the maps of classes of a run of segmenters, all checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from cam import SegmentTarget

from ....common.determinism import SampleRng, seeded
from ....data.scenes import LabelledScenes, read_whole
from ....errors import BadImageError, ModelError, ProtocolError
from ....evaluations.condition import shows
from ....evaluations.maps import EVERY_EXPLAINER, Chosen, as_numbers, needs_gradients
from ....models.dense import Segmenter
from ....models.identity import has_gradients
from ....pipeline.request import SegmentationRequest
from ....protocol.condition import CLEAN, Condition, split_list
from . import EVERY_CONTROL, ClassMap, parse_class_map


def maps_of_classes(
    request: SegmentationRequest, conditions: Sequence[Condition], models: Sequence[Segmenter], scenes: LabelledScenes
) -> tuple[Condition, ...]:
    """Return the maps that are asked for, their controls, noise in and around the class, and the maps under all
    conditions that are compared with the clean ones. Raises ProtocolError for a class or region that is not there,
    ModelError for a method that does not fit a network."""
    named = dict[ClassMap, None]()
    for text in split_list(request.cams or ()):
        spec = parse_class_map(text.replace("auto", _usual(models, scenes), 1) if text.startswith("auto") else text)
        if spec.under:
            raise ProtocolError(f"--cams {text}: under= is of --stability, which compares maps under attacks; give it")
        if "faithfulness" not in text:
            spec = replace(spec, faithfulness=request.faithfulness)
        named[spec.resolve(scenes.class_names, scenes.unjudged)] = None
    if not named:
        raise ProtocolError(f"--cams {request.cams!r}: none is left; expected methods such as agcam,grad-cam")
    _check_regions(list(named), scenes)
    _check_methods([(each.method, each.options) for each in named if not each.is_control], models, scenes)
    kinds = dict.fromkeys(spec.kind for spec in named)
    controls = (replace(kind, method=name) for kind in kinds for name in EVERY_CONTROL)
    noise = dict.fromkeys(replace(kind, faithfulness="abpc") for kind in kinds)
    scored = dict.fromkeys((*named, *controls))
    others = [each for each in conditions if each != CLEAN and shows(each.text)] if request.stability else []
    if request.stability and not others:
        raise ProtocolError("--stability: nothing to compare clean maps with; give --attacks or --corruptions")
    moved = (spec.condition(under) for under in others for spec in named if not spec.is_control)
    return (*(spec.condition() for spec in scored), *(spec.condition() for spec in noise), *moved)


def _check_regions(specs: Sequence[ClassMap], scenes: LabelledScenes) -> None:
    """Raise ProtocolError for a region that no image holds."""
    for spec in specs:
        outside: ProtocolError | None = None
        for sample in scenes.dataset.samples if spec.region.numbers else ():
            with suppress(BadImageError):
                height, width = read_whole(scenes.dataset, sample).shape[-2:]
                try:
                    spec.region.check(height, width, sample.id, "over")
                except ProtocolError as fault:
                    outside = outside or fault
                else:
                    break
        else:
            if outside is not None:
                raise outside


_LONG = ("rise", "score-cam")  # take too many passes to be tried before


def _check_methods(methods: Sequence[tuple[str, Chosen]], models: Sequence[Segmenter], scenes: LabelledScenes) -> None:
    """Raise ModelError where a method does not fit a network, tried on the first image that can be read."""
    for sample in scenes.dataset.samples:
        with suppress(BadImageError):
            pixels = read_whole(scenes.dataset, sample)
            for model in models:
                image = (pixels[None] / 255).to(model.mean.device)
                for method, options in dict.fromkeys(methods):
                    if method not in _LONG:
                        _try_method(model, method, options, image)
            return


def _try_method(model: Segmenter, method: str, options: Chosen, image: Tensor) -> None:
    """Raise ModelError where a method does not fit a network. image: (1, 3, H, W) in [0, 1]."""
    if needs_gradients(method) and not has_gradients(model):
        raise ModelError(f"{model.identity.name}: {method} needs gradients, which it does not have; use rise")
    try:
        explainer = EVERY_EXPLAINER[method](model, **as_numbers(method, options))
        rng = SampleRng.of(["first"], seed=0, condition="try", device=image.device)
        with seeded(image.device, 0), suppress(RuntimeError):  # a network that fails does so clean, too
            explainer.explain(image, SegmentTarget(), rng=rng)
    except (ValueError, TypeError) as fault:
        raise ModelError(f"{model.identity.name}: {fault}") from None


def _usual(models: Sequence[Segmenter], scenes: LabelledScenes) -> str:
    """Return agcam where it works for all networks, else grad-cam, which works for CNNs, too, else rise."""
    for method in ("agcam", "grad-cam"):
        with suppress(ModelError):
            _check_methods([(method, ())], models, scenes)
            return method
    return "rise"
