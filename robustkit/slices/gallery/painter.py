"""Draw the tiles of a gallery: a sample's maps for the classes, or the texts, that are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cam import Explanation

from ...data.channels import looked_at
from ...data.class_names import class_name, target_of
from ...data.dataset import Sample
from ...display.format import number, percent
from ...evaluations.family import shown_under
from ...evaluations.maps import TARGETS, MapSpec, map_condition, option_texts
from ...evaluations.maps.evaluate import explainer_of, localised, masses
from ...evaluations.maps.truth import Located
from ...evaluations.subject import Batch, EvaluatedModel, as_levels
from ...protocol.condition import Condition
from .sheet import GalleryRow, Panel

_PLAIN = MapSpec("agcam")


@dataclass(frozen=True)
class Target:
    """A class that maps are drawn for: `predicted`, `label`, or one by name; index: of that among the model's
    outputs."""

    name: str
    index: int | None = None

    @property
    def heading(self) -> str:
        return {PREDICTED: "predicted class", LABEL: "true class"}.get(self, self.name)

    @classmethod
    def of(cls, text: str, names: Sequence[str] = ()) -> Target:
        """Return what a user means. names: of the classes. Raises ModelError where no class is called so."""
        if text in TARGETS:
            return PREDICTED if text == "predicted" else LABEL
        index = target_of(text, names)
        return cls(names[index].split(",")[0], index)

    def place(self, subject: EvaluatedModel, sample: Sample, logits: Tensor) -> Tensor:
        """Return its index among the classes that compete, a scalar on the host. logits: (1, K) of the clean image."""
        if self == PREDICTED:
            return logits.argmax(dim=1)[0].cpu()
        asked = sample if self.index is None else replace(sample, label=self.index)
        return subject.labels([asked])[0].cpu()


PREDICTED, LABEL = Target("predicted"), Target("label")


def brief(spec: MapSpec) -> str:
    """Return the heading of a map: its method, and what differs from the published protocol."""
    differing = [key for key in ("threshold", "target") if getattr(spec, key) != getattr(_PLAIN, key)]
    differences = [*option_texts(spec.options), *(f"{key}={getattr(spec, key)}" for key in differing)]
    return f"{spec.method}({','.join(differences)})" if differences else spec.method


Heat = NDArray[np.float32]
Result = Mapping[str, Any]
Scores = Mapping[tuple[str, str], Result]  # the row of the sample that is drawn, by checkpoint and condition


@dataclass
class Painter:
    """Draws maps, and keeps them by name. targets: of each map; empty for the class that it is scored for. under:
    attacks. texts: by checkpoint, the same image tower with a head of sentences that maps are drawn for, too."""

    specs: Sequence[MapSpec]
    targets: Sequence[Target]
    under: Sequence[Condition]
    heats: dict[str, Heat]
    texts: Mapping[str, EvaluatedModel] = field(default_factory=dict)

    def rows(
        self,
        subject: EvaluatedModel,
        pixels: Tensor,
        sample: Sample,
        named: str,
        located: Located | None,
        scores: Scores,
    ) -> Iterator[GalleryRow]:
        """Yield a row for the clean image and one for each attack, with maps of the same classes. pixels: (3, H, W)
        uint8."""
        clean, batch = subject.inputs(pixels[None]), Batch(pixels[None], [sample])
        first = _logits(subject, clean, sample)
        for under in (None, *self.under):
            inputs, logits, image = clean, first, pixels
            if under is not None:
                view = shown_under(subject, batch, under)
                inputs, logits, image = view.inputs, _logits(subject, view.inputs, sample), view.images()[0]
            picture = as_levels(looked_at(image, subject.settings.show))
            drawn = inputs, sample, first, located, scores, under, picture
            of_texts = self.texts.get(subject.classifier.identity.name)
            of_class = self.specs if self.targets or scores or of_texts is None else ()  # not where nobody asks
            tiles = tuple(chain.from_iterable(self._tiles(subject, spec, *drawn) for spec in of_class))
            if of_texts is not None:
                maps = [spec for spec in self.specs if not spec.is_control]
                about = inputs, sample, located, under, picture
                tiles += tuple(chain.from_iterable(self._of_texts(of_texts, spec, *about) for spec in maps))
            name, best = subject.classifier.identity.name, logits.argmax(dim=1)
            right = subject.correct(best, [sample])[0]
            line = f"predicts {_named(subject, int(best))} {_share(logits, int(best))}{' (wrong)' * (right is False)}"
            text = "" if under is None else under.text
            yield GalleryRow(sample.id, named, picture, tiles, _marked(located), name, text, (line,))

    def _tiles(
        self,
        subject: EvaluatedModel,
        spec: MapSpec,
        inputs: Tensor,
        sample: Sample,
        clean: Tensor,
        located: Located | None,
        scores: Scores,
        under: Condition | None,
        image: NDArray[np.uint8],
    ) -> Iterator[Panel]:
        """Yield the tiles of one map, of all its classes from one explanation."""
        name, objects = subject.classifier.identity.name, None if located is None else located.objects
        both = objects is not None and not self.targets
        usual = Target.of(spec.target)
        targets = (Target("first object"), Target("second object")) if both else self.targets or (usual,)
        places = (
            subject.accepted([sample])[0]
            if both
            else torch.stack([target.place(subject, sample, clean) for target in targets])
        )
        rng = subject.rng([sample], map_condition(spec))

        def explain() -> Explanation:
            with explainer_of(subject, spec.method, spec.options) as explainer:
                return explainer.explain(inputs, places[None].to(inputs.device), rng=rng)

        explained = subject.steadily(brief(spec), rng, explain)
        maps = explained.maps[0].cpu()
        shares = masses(maps[None], objects[None].to(maps))[2][0].tolist() if both and objects is not None else []
        for index, target in enumerate(targets):
            place, plain = int(places[index]), not both and target == usual
            text = spec.text if under is None else spec.compared_under(under.text).text
            row = scores.get((name, text), {}) if plain else {}
            label = f"{_named(subject, place)} {_share(explained.logits, place)}"
            alone = target == PREDICTED and under is None and not both  # the line under the image says it
            lines = [*([] if alone else [label]), *_figures(row)]
            lines += [f"{percent(shares[index], 0)} in it, of both"] if both else []
            truth = objects[index].numpy() if both and objects is not None else _marked(located)
            heading = brief(spec) if target == usual and not self.targets else f"{brief(spec)}, {target.heading}"
            heat = maps[index].numpy()
            key = [name, brief(spec), *([target.name] if both or self.targets else []), sample.id]
            key[-1:-1] = [] if under is None else [under.text]
            self.heats["/".join(key)] = heat
            yield Panel(heading, image, heat, tuple(lines), truth)

    def _of_texts(
        self,
        subject: EvaluatedModel,
        spec: MapSpec,
        inputs: Tensor,
        sample: Sample,
        located: Located | None,
        under: Condition | None,
        image: NDArray[np.uint8],
    ) -> Iterator[Panel]:
        """Yield the tiles of one map for all sentences, with their scores where the object is known."""
        identity, rng = subject.classifier.identity, subject.rng([sample], map_condition(spec))
        sentences = identity.class_names or ()

        def explain() -> Explanation:
            with explainer_of(subject, spec.method, spec.options) as explainer:
                return explainer.explain(inputs, torch.arange(len(sentences), device=inputs.device)[None], rng=rng)

        explained = subject.steadily(brief(spec), rng, explain)
        maps = explained.maps[0].cpu()
        for index, sentence in enumerate(sentences):
            scores = {key: values[0] for key, values in localised(maps[index][None], [located], spec.threshold).items()}
            key = [identity.name, brief(spec), f"text: {sentence}", *([] if under is None else [under.text]), sample.id]
            self.heats["/".join(key)] = heat = maps[index].numpy()
            lines = (f"logit {number(explained.logits[0, index].item(), 2)}", *_figures(scores))
            yield Panel(f"{brief(spec)}, {sentence!r}", image, heat, lines, _marked(located))


def _logits(subject: EvaluatedModel, inputs: Tensor, sample: Sample) -> Tensor:
    """Return the logits (1, K) of the classes that compete."""

    def ask() -> Tensor:
        with torch.no_grad():
            logits: Tensor = subject.exact(inputs)
            return logits

    return subject.steadily("gallery", subject.rng([sample], Condition("clean", "clean")), ask)


def _share(logits: Tensor, place: int) -> str:
    return percent(logits.softmax(dim=1)[0, place].item(), 0)


def _named(subject: EvaluatedModel, place: int) -> str:
    identity = subject.classifier.identity
    return class_name(identity.class_names or (), subject.classes(torch.tensor([place]))[0], identity.num_classes)


def _figures(row: Result) -> Iterator[str]:
    """Yield the lines of a map's scores, or of how it differs from the clean one."""
    for some in (
        {"IoU": "mask_iou", "box IoU": "box_iou"},
        {"ABPC": "abpc"},
        {"rank correlation with clean": "rank_correlation"},
    ):
        values = {word: row[key] for word, key in some.items() if row.get(key) is not None}
        finite = {word: value for word, value in values.items() if math.isfinite(value)}
        if line := ", ".join(f"{word} {percent(v) if 'IoU' in word else number(v, 2)}" for word, v in finite.items()):
            yield line


def _marked(located: Located | None) -> NDArray[np.bool_] | None:
    """Return where the object is, or both of them; None where that is not known."""
    if located is None:
        return None
    return (located.mask if located.objects is None else located.objects.any(dim=0)).numpy()
