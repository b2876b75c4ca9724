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
from .evaluate import Explained, explain_class, explained_in, overlap_of

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
    named = [spec for spec in named if spec.kind == named[0].kind]
    settings = replace(request.settings, batch_size=1)
    subjects = [SegmenterSubject(model, request.card, settings, scenes.unjudged) for model in models]
    views, rows = shown_conditions(run, conditions), list[GalleryRow]()
    for sample in worst_scenes(run, scenes)[: request.examples]:
        try:
            for subject in subjects:
                rows += _Scene.of(subject, scenes, sample, views, run.manifest).rows(named)
        except BadImageError:
            continue
    if not rows:
        return
    title = f"{', '.join(with_names(spec.called) for spec in named)}: {', '.join(m.identity.name for m in models)}"
    region = "where it is predicted" if named[0].over == "predicted" else f"over {named[0].over}"
    lines = (
        f"{scenes.dataset.name}; worst images first; protocol {request.card.tag}",
        f"outlined: the class whose logits are summed, {region}, clean; the same pixels under each condition",
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
            shown = shown_under(subject, batch, condition)
            views.append((condition, shown.inputs, as_levels(shown.images()[0])))
        predictions = [
            subject.steadily(each.text, subject.rng([sample], each), partial(_predicted, subject, inputs))
            for each, inputs, _ in views
        ]
        return cls(subject, sample, scenes.class_names, labels, views, predictions, manifest)

    def rows(self, specs: Sequence[ClassMap]) -> Iterator[GalleryRow]:
        """Yield a row for each class and condition; the class that is lost most under a condition first."""
        first, device = specs[0], self.predictions[0].device
        parts = explained_in(
            first, self.predictions[0], torch.from_numpy(self.labels).to(device), self.subject.unjudged.tolist()
        )
        if first.of == EVERY:
            parts = sorted(parts, key=self._left)[:_CLASSES]
        for part in parts:
            for place, (condition, _, image) in enumerate(self.views):
                yield self._row(part, specs, place, condition, image)

    def _left(self, part: Explained) -> float:
        return min(overlap_of(each == part.target, part.object) for each in self.predictions)

    def _row(
        self, part: Explained, specs: Sequence[ClassMap], place: int, condition: Condition, image: Pixels
    ) -> GalleryRow:
        name, own = self.names[part.target], part.object.cpu().numpy()
        predicted, nothing = self.predictions[place], np.zeros((1, 1), np.float32)
        plain = tuple(at for at, each in enumerate(self.names) if each.lower() == "background")
        left = overlap_of(predicted == part.target, part.object)
        labels = {"truth": self.labels, "prediction": predicted.short().cpu().numpy()}
        tiles: list[Panel] = [
            LabelPanel(heading, image, nothing, (), own, each, plain) for heading, each in labels.items()
        ]
        for spec in specs:
            heat, energy = self._map(spec, part, place)
            tiles.append(Panel(spec.called, image, heat, (f"energy on it {percent(energy, 0)}",), own))
        lines = () if condition == CLEAN else (f"{percent(left, 0)} of it left (IoU)" if left else "lost",)
        under = "" if condition == CLEAN else name_of(condition.text, "table", self.manifest)
        checkpoint = self.subject.classifier.identity.name
        return GalleryRow(self.sample.id, name, image, tuple(tiles), own, checkpoint, under, lines, of=name)

    def _map(self, spec: ClassMap, part: Explained, place: int) -> tuple[NDArray[np.float32], float]:
        """Return the map (H, W) of a class of the image as a condition shows it, and its energy on the class."""
        condition, inputs, _ = self.views[place]
        rng = self.subject.rng([self.sample], spec.condition())
        explain = partial(explain_class, self.subject, spec, inputs, part, rng)
        heat = self.subject.steadily(condition.text, rng, explain).maps[0]
        return heat.cpu().numpy(), float(heat[part.object].sum() / heat.sum().clamp_min(1e-12))


def _predicted(subject: SegmenterSubject, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        predicted: Tensor = subject.exact(inputs)[0].argmax(dim=0)
        return predicted
