"""Draw the maps of classes of a run: the worst images, clean and under the conditions of its sheet of scenes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....data.dataset import Sample
from ....data.scenes import LabelledScenes
from ....display.format import percent
from ....errors import BadImageError
from ....evaluations.condition import name_of
from ....evaluations.family import shown_under
from ....evaluations.subject import Batch, as_levels
from ....models.dense import Segmenter
from ....pipeline.request import SegmentationRequest
from ....protocol.condition import CLEAN, Condition
from ....report.samples import tile_of
from ....runs.folder import RunFolder
from ....runs.manifest import Manifest
from ....tasks.segmentation.pictures import LabelMap, Pane, coloured, shown_conditions, worst_scenes
from ....tasks.segmentation.subject import SegmenterSubject
from ..sheet import Gallery, GalleryRow, Look, Panel, with_names
from . import EVERY, ClassMap
from .evaluate import Explained, explain_class, explained_in

_CLASSES = 3  # of an image that are drawn
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class LabelPanel(Panel):
    """A tile with a label map in colours. plain: classes that stay grey."""

    labels: LabelMap = field(default_factory=lambda: np.zeros((0, 0), np.int16))
    plain: tuple[int, ...] = ()

    def drawn(self, look: Look | None = None) -> Pixels:
        return tile_of(coloured(Pane(self.image, self.labels), self.plain))


def draw_maps(
    run: RunFolder,
    models: Sequence[Segmenter],
    scenes: LabelledScenes,
    conditions: Sequence[Condition],
    request: SegmentationRequest,
) -> None:
    """Write cams/gallery.png and .html in a run's folder: a row for each class of an image under each condition."""
    specs = [each.payload for each in conditions if isinstance(each.payload, ClassMap) and each.under is None]
    named = [spec for spec in specs if spec.method and not spec.is_control] or [spec for spec in specs if spec.method]
    methods = list(dict.fromkeys(replace(spec, of=EVERY, over="", on=0, index=None) for spec in named))
    kinds = list(dict.fromkeys(spec.kind for spec in named))
    settings = replace(request.settings, batch_size=1)
    subjects = [SegmenterSubject(model, request.card, settings, scenes.unjudged) for model in models]
    views, rows = shown_conditions(run, conditions), list[GalleryRow]()
    for sample in worst_scenes(run, scenes)[: request.examples]:
        try:
            for subject in subjects:
                rows += _Scene.of(subject, scenes, sample, views, run.manifest).rows(kinds, methods)
        except BadImageError:
            continue
    if not rows:
        return
    title = f"{', '.join(with_names(spec.called) for spec in methods)}: {', '.join(m.identity.name for m in models)}"
    several = f"; of=*: the {_CLASSES} classes of an image of which least is left" if kinds[0].of == EVERY else ""
    lines = (
        f"{scenes.dataset.name}; worst images first{several}; protocol {request.card.tag}",
        "outlined: the class's own pixels, clean; maps under each condition are over the same pixels as the clean one",
    )
    gallery = Gallery(title, tuple(rows), lines, run=run, setup=tuple(each.text for each in conditions))
    for kind in ("png", "html"):
        gallery.save(Path(run.path) / "cams" / f"gallery.{kind}")


@dataclass(frozen=True)
class _Scene:
    """An image under the conditions that are drawn. predictions: (H, W) classes under each."""

    subject: SegmenterSubject
    sample: Sample
    names: tuple[str, ...]
    labels: LabelMap
    views: Sequence[tuple[Condition, Tensor, Pixels]]
    predictions: Sequence[Tensor]
    manifest: Manifest

    @classmethod
    def of(
        cls,
        subject: SegmenterSubject,
        scenes: LabelledScenes,
        sample: Sample,
        conditions: Sequence[Condition],
        manifest: Manifest,
    ) -> _Scene:
        image = np.array(scenes.dataset.image(sample))
        labels = scenes.labels(sample, (image.shape[0], image.shape[1]))
        batch = Batch(torch.from_numpy(image).permute(2, 0, 1)[None], [sample], [labels])
        views = []
        for condition in conditions:
            view = shown_under(subject, batch, condition)
            views.append((condition, view.inputs, as_levels(view.images()[0])))
        predictions = [
            subject.steadily(each.text, subject.rng([sample], each), partial(_predicted, subject, inputs))
            for each, inputs, _ in views
        ]
        return cls(subject, sample, scenes.class_names, labels, views, predictions, manifest)

    def rows(self, kinds: Sequence[ClassMap], methods: Sequence[ClassMap]) -> Iterator[GalleryRow]:
        """Yield a row for each class and condition; of all classes those first of which least is left."""
        labels = torch.from_numpy(self.labels).to(self.predictions[0].device)
        for kind in kinds:
            parts = explained_in(kind, self.predictions[0], labels, self.subject.unjudged.tolist())
            if kind.of == EVERY:
                parts = sorted(parts, key=lambda part: min(map(part.left, self.predictions)))[:_CLASSES]
            over = "" if kind.over == "predicted" else f", over {kind.over}"
            for part in parts:
                for place, (condition, _, image) in enumerate(self.views):
                    yield self._row(part, methods, place, condition, image, over)

    def _row(
        self,
        part: Explained,
        methods: Sequence[ClassMap],
        place: int,
        condition: Condition,
        image: Pixels,
        over: str,
    ) -> GalleryRow:
        name, mask = self.names[part.target], part.object.cpu().numpy()
        predicted, nothing = self.predictions[place], np.zeros((1, 1), np.float32)
        plain = tuple(at for at, each in enumerate(self.names) if each.lower() == "background")
        left = part.left(predicted)
        labels = {"truth": self.labels, "prediction": predicted.short().cpu().numpy()}
        tiles: list[Panel] = [
            LabelPanel(heading, image, nothing, (), mask, each, plain) for heading, each in labels.items()
        ]
        for spec in methods:
            heat = self._map(spec, part, place)
            energy = float(heat[mask].sum() / heat.sum()) if heat.any() else None
            line = "constant map" if energy is None else f"energy on it {percent(energy, 0)}"
            tiles.append(Panel(spec.called, image, heat, (line,), mask))
        lines = () if condition == CLEAN else (f"{percent(left, 0)} of it left (IoU)" if left else "lost",)
        under = "" if condition == CLEAN else name_of(condition.text, "table", self.manifest)
        checkpoint = self.subject.classifier.identity.name
        return GalleryRow(self.sample.id, name, image, tuple(tiles), mask, checkpoint, under, lines, of=name + over)

    def _map(self, spec: ClassMap, part: Explained, place: int) -> NDArray[np.float32]:
        """Return the map (H, W) of a class of the image as a condition shows it."""
        condition, inputs, _ = self.views[place]
        rng = self.subject.rng([self.sample], spec.condition())
        explain = partial(explain_class, self.subject, spec, inputs, part, rng)
        return self.subject.steadily(condition.text, rng, explain).maps[0].cpu().numpy()


def _predicted(subject: SegmenterSubject, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        predicted: Tensor = subject.exact(inputs)[0].argmax(dim=0)
        return predicted
