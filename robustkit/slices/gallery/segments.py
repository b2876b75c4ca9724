"""Draw what segmenters look at: maps of a class in a region of a user's own pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cam import SegmentTarget

from ...common.determinism import SampleRng
from ...common.names import IN_MEMORY, held_object
from ...data.class_names import class_name, class_names
from ...display.format import percent
from ...errors import ModelError, ProtocolError, RobustkitError
from ...evaluations.maps import EVERY_EXPLAINER, MapSpec, as_numbers
from ...models.dense import Segmenter
from ...models.device import pick_device
from ...models.identity import distinct_names
from ...models.segmenter import is_segmenter, load_segmenter
from ...pipeline.request import SegmenterOptions
from .class_maps import LARGEST, ClassMap, Region
from .class_maps.evaluate import explained_in
from .painter import LABEL, PREDICTED, Heat, Target, brief
from .sheet import Gallery, GalleryRow, Panel

_FEW = 3  # classes that a line names
_EVERY = "all"  # classes that are predicted somewhere, from the largest down


def are_segmenters(checkpoints: Sequence[str | Path]) -> bool:
    """Whether all are segmenters. Raises ProtocolError where only some are."""
    kinds = []
    for spec in checkpoints:
        kinds.append(False)
        with suppress(RobustkitError):  # what cannot be read is said where it is loaded
            held = str(spec).startswith(IN_MEMORY)
            kinds[-1] = isinstance(held_object(str(spec)).network, Segmenter) if held else is_segmenter(spec)
    if any(kinds) and not all(kinds):
        classifier = checkpoints[kinds.index(False)]
        raise ProtocolError(f"{classifier} is no segmenter, and others are; draw the maps of one kind at a time")
    return all(kinds) and bool(kinds)


def explain_segments(
    pictures: Iterable[tuple[str, Image.Image]],
    checkpoints: Sequence[str | Path],
    targets: Sequence[str],
    specs: Sequence[MapSpec],
    over: str,
    *,
    model: Mapping[str, Any],
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> Gallery:
    """Return maps of segmenters on named pictures, of the named classes, or the one that most pixels are predicted as,
    in a region. Raises ModelError for a class, a method or an option that a segmenter lacks."""
    region, where = Region.of(over), pick_device(device)
    if region.kind == "true":
        raise ProtocolError("--over true: a picture of your own has no mask; give predicted, or --data-dir and --masks")
    if odd := {name for name, value in model.items() if value} - {*SegmenterOptions.__dataclass_fields__}:
        raise ProtocolError(f"--{min(odd).replace('_', '-')}: an option of classifiers; these are segmenters")
    settings = {name: value for name, value in model.items() if value}
    segmenters = [load_segmenter(spec, **settings) for spec in checkpoints]
    distinct_names(segmenters)
    rows, heats, named = list[GalleryRow](), dict[str, Heat](), list(pictures)
    if say is not None:
        for note in (f"{each.identity.name}: {note}" for each in segmenters for note in each.identity.notes):
            say(note)
    for picture, image in named:
        pixels = np.array(image.convert("RGB"))
        for segmenter in segmenters:
            segmenter.to(where)
            rows.append(_Drawn(segmenter, specs, targets or ["predicted"], region, heats).row(picture, pixels))
    names = ", ".join(segmenter.identity.name for segmenter in segmenters)
    lines = (f"outlined: where the class is explained ({region.text}); without masks no map has a score",)
    digests = (f"{each.identity.spec} (SHA-256 {(each.identity.sha256 or 'none')[:12]})" for each in segmenters)
    setup = (*digests, f"maps: {', '.join(map(brief, specs))}, over {region.text}")
    return Gallery(names, tuple(rows), lines, heats, setup=setup)


@dataclass(frozen=True)
class _Drawn:
    segmenter: Segmenter
    specs: Sequence[MapSpec]
    targets: Sequence[str]
    region: Region
    heats: dict[str, Heat]

    def row(self, picture: str, pixels: np.ndarray[Any, Any]) -> GalleryRow:
        identity = self.segmenter.identity
        inputs = (torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255).to(self.segmenter.mean.device)
        with torch.inference_mode():
            predicted = self.segmenter(inputs)[0].argmax(dim=0)
        self.region.check(predicted.shape[0], predicted.shape[1], picture)
        names = class_names(identity.class_names, identity.num_classes)
        counts = torch.bincount(predicted.flatten(), minlength=len(names))
        largest = [place for place in counts.argsort(descending=True, stable=True)[:_FEW].tolist() if counts[place]]
        labels = {
            place: class_name(identity.class_names or (), place, identity.num_classes) for place in range(len(names))
        }
        shares = [f"{labels[place]} {percent(int(counts[place]) / predicted.numel(), 0)}" for place in largest]
        tiles, every = (
            list[Panel](),
            [str(place) for place in counts.argsort(descending=True).tolist() if counts[place]],
        )
        asked_for = [each for text in self.targets for each in (every if text == _EVERY else [text])]
        classes = set[int]()
        for text in asked_for:
            goal = Target.of(text, names)
            if goal == LABEL:
                raise ProtocolError(
                    "--target label: a picture of your own has no mask; name a class, or give predicted"
                )
            of = LARGEST if goal == PREDICTED else str(goal.index)
            asked = ClassMap("", of=of, over=self.region.text, index=goal.index)
            parts = explained_in(asked, predicted, None, anywhere=True)
            target = parts[0].target if parts else goal.index
            if target is None or target in classes:
                continue
            classes.add(target)
            region = parts[0].region if parts else torch.zeros_like(predicted, dtype=torch.bool)
            share = f"{labels[target]}, {percent(float(region.float().mean()), 1)}"
            for spec in self.specs:
                lines = (share,) if region.any() else (f"no {labels[target]} there",)
                heat = self._heat(spec, inputs, picture, target, region)
                heading = brief(spec) if asked_for == ["predicted"] else f"{brief(spec)}, {labels[target]}"
                self.heats["/".join([identity.name, brief(spec), labels[target], picture])] = heat
                tiles.append(Panel(heading, pixels, heat, lines, region.cpu().numpy()))
        shares[0] = f"predicts {shares[0]}"
        return GalleryRow(picture, Path(picture).stem, pixels, tuple(tiles), None, identity.name, "", tuple(shares))

    def _heat(self, spec: MapSpec, inputs: Tensor, picture: str, target: int, region: Tensor) -> Heat:
        rng = SampleRng.of([picture], seed=0, condition=f"cam({brief(spec)})", device=inputs.device)
        try:
            explainer = EVERY_EXPLAINER[spec.method](self.segmenter, **as_numbers(spec.method, spec.options))
            explanation = explainer.explain(inputs, SegmentTarget(target, region), rng=rng)
        except (ValueError, TypeError) as fault:
            raise ModelError(f"{self.segmenter.identity.name}: {fault}") from None
        return explanation.maps[0].cpu().numpy()
