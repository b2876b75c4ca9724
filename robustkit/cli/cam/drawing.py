"""Draw the maps of one image: of each checkpoint, clean and attacked, for each class that is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cam import Explanation

from ...data.class_names import class_name
from ...data.dataset import Sample
from ...evaluations.explainers import explainer_of
from ...evaluations.images import as_bytes
from ...evaluations.maps.condition import MapSpec, map_condition
from ...evaluations.maps.gallery import GalleryRow, Tile
from ...evaluations.maps.truth import Located
from ...evaluations.subject import Batch, Subject
from ...evaluations.two_objects.evaluate import masses
from ...evaluations.under import shown_under
from ...protocol.condition import Condition
from .choice import Target, label

Heat = NDArray[np.float32]
Row = Mapping[str, Any]
Scores = Mapping[tuple[str, str], Row]
"""The row of the sample that is drawn, by checkpoint and condition."""


@dataclass
class Painter:
    """Draws what it is asked for, and keeps the maps by name.

    shown: the maps. targets: of each, in order; empty for the class that the map is scored for. under: attacks.
    """

    shown: Sequence[MapSpec]
    targets: Sequence[Target]
    under: Sequence[Condition]
    kept: dict[str, Heat]

    def rows(
        self, subject: Subject, pixels: Tensor, sample: Sample, named: str, located: Located | None, scores: Scores
    ) -> Iterator[GalleryRow]:
        """Yield a row for the image as it is, and one for each attack, whose maps are of the classes explained there.

        pixels: (3, H, W) uint8. named: its class in words. located: where its object is, or both of them.
        """
        clean, batch = subject.inputs(pixels[None]), Batch(pixels[None], [sample])
        first = _logits(subject, clean, sample)
        for under in (None, *self.under):
            inputs, logits, image = clean, first, pixels
            if under is not None:
                shown = shown_under(subject, batch, under)
                inputs, logits, image = shown.inputs, _logits(subject, shown.inputs, sample), shown.images()[0]
            picture = as_bytes(image)
            tiles = tuple(
                tile
                for spec in self.shown
                for tile in self._tiles(subject, inputs, sample, spec, first, located, scores, under, picture)
            )
            name, best = subject.classifier.identity.name, logits.argmax(dim=1)
            right = subject.correct(best, [sample])[0]
            said = f"predicts {_named(subject, int(best))} {_share(logits, int(best))}{' (wrong)' * (right is False)}"
            text = "" if under is None else under.text
            yield GalleryRow(sample.id, named, picture, tiles, _marked(located), name, text, (said,))

    def _tiles(
        self,
        subject: Subject,
        inputs: Tensor,
        sample: Sample,
        spec: MapSpec,
        clean: Tensor,
        located: Located | None,
        scores: Scores,
        under: Condition | None,
        image: NDArray[np.uint8],
    ) -> Iterator[Tile]:
        """Yield the tiles of one map, of all its classes from one explanation."""
        name, objects = subject.classifier.identity.name, None if located is None else located.objects
        both = objects is not None and not self.targets
        own = Target.of(spec.target)
        targets = (Target("first object"), Target("second object")) if both else self.targets or (own,)
        places = (
            subject.accepted([sample])[0]
            if both
            else torch.stack([target.place(subject, sample, clean) for target in targets])
        )
        rng = subject.rng([sample], map_condition(spec))

        def explain() -> Explanation:
            with explainer_of(subject, spec.method, spec.options) as explainer:
                return explainer.explain(inputs, places[None].to(inputs.device), rng=rng)

        explained = subject.steadily(label(spec), rng, explain)
        maps = explained.maps[0].cpu()
        shares = masses(maps[None], objects[None].to(maps))[2][0].tolist() if both and objects is not None else []
        for index, target in enumerate(targets):
            place, plain = int(places[index]), not both and target == own
            row = scores.get((name, spec.text if under is None else spec.beside(under.text).text), {}) if plain else {}
            lines = [f"{_named(subject, place)} {_share(explained.logits, place)}", *_figures(row)]
            lines += [f"{shares[index]:.0%} in it, of both"] if both else []
            truth = objects[index].numpy() if both and objects is not None else _marked(located)
            heading = label(spec) if target == own and not self.targets else f"{label(spec)}, {target.heading}"
            heat = maps[index].numpy()
            key = [name, label(spec), *([target.name] if both or self.targets else []), sample.id]
            key[-1:-1] = [] if under is None else [under.text]
            self.kept["/".join(key)] = heat
            yield Tile(heading, image, heat, tuple(lines), truth)


def _logits(subject: Subject, inputs: Tensor, sample: Sample) -> Tensor:
    """Return the logits (1, K) of the classes that compete."""

    def ask() -> Tensor:
        with torch.no_grad():
            logits: Tensor = subject.exact(inputs)
            return logits

    rng = subject.rng([sample], Condition("clean", "clean"))
    return subject.steadily("gallery", rng, ask)


def _share(logits: Tensor, place: int) -> str:
    return f"{logits.softmax(dim=1)[0, place].item():.0%}"


def _named(subject: Subject, place: int) -> str:
    identity = subject.classifier.identity
    return class_name(identity.class_names or (), subject.classes(torch.tensor([place]))[0], identity.num_classes)


def _figures(row: Row) -> Iterator[str]:
    """Yield the lines of a map's scores, or of how it differs from the clean one."""
    for some in (
        {"IoU": "mask_iou", "box IoU": "box_iou"},
        {"ABPC": "abpc"},
        {"rank correlation with clean": "rank_correlation"},
    ):
        found = {word: row[key] for word, key in some.items() if row.get(key) is not None}
        if line := "   ".join(f"{word} {value:.2f}" for word, value in found.items() if math.isfinite(value)):
            yield line


def _marked(located: Located | None) -> NDArray[np.bool_] | None:
    """Return where the object is, or both of them; None where that is not known."""
    if located is None:
        return None
    return (located.mask if located.objects is None else located.objects.any(dim=0)).numpy()
