"""Supply scenes to the runner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ...data.dataset import Dataset, Sample
from ...data.images import MAX_RESIZED
from ...data.scenes import LabelledScenes, open_scenes, whole
from ...errors import BadImageError, DataError
from ...evaluations.supply import Reader
from ...models.identity import ModelIdentity
from ...models.windows import Windows
from ...protocol.condition import Condition
from .subject import LabelMap


@dataclass(frozen=True)
class SceneImages:
    """The source of a sample's pixels and label map. Corruptions act on the whole image.

    windows: how the network sees images; None where it takes them as they are.
    """

    scenes: LabelledScenes
    windows: Windows | None = None

    @property
    def dataset(self) -> Dataset:
        return self.scenes.dataset

    def reader(self, condition: Condition) -> Reader:
        """Return the reader of samples, which is the same for every condition."""
        return lambda sample: whole(self.dataset, sample)

    def locate(self, sample: Sample, pixels: Tensor) -> LabelMap:
        """Return the label map of a sample. Raises BadImageError, too, for a picture so thin that windows on it would
        fill the memory.
        """
        height, width = pixels.shape[-2:]
        for high, wide in () if self.windows is None else self.windows.sizes(height, width)[1:]:
            if high * wide > max(MAX_RESIZED, height * width):
                raise BadImageError(
                    f"{sample.id}: {width} x {height} pixels are too thin: for windows they would become {wide} x "
                    f"{high}, at most {MAX_RESIZED // 1_000_000} million are made; crop it"
                )
        return self.scenes.labels(sample, (pixels.shape[-2], pixels.shape[-1]))


def scenes_for(
    identities: Sequence[ModelIdentity],
    data_dir: str | Path,
    masks: str | Path | None,
    classes: str | Path | None,
    ignore: Sequence[int],
    layout: str | None,
) -> LabelledScenes:
    """Return the scenes, with class names from a checkpoint where no file names the classes.

    Raises:
        DataError: the classes are not those of a checkpoint, or are in another order.
    """
    first = identities[0]
    for identity in identities:
        if identity.num_classes != first.num_classes:
            raise DataError(
                f"{first.name} has {first.num_classes} classes and {identity.name} {identity.num_classes}; evaluate "
                "them in runs of their own"
            )
    named = next((candidate for candidate in identities if candidate.class_names), None)
    scenes = open_scenes(
        data_dir, masks=masks, classes=classes, ignore=ignore, num_classes=first.num_classes, layout=layout
    )
    if named is not None and scenes.layout == "folders" and classes is None:
        scenes = replace(scenes, class_names=named.class_names or ())
    for identity in identities:
        names = identity.class_names or scenes.class_names
        pairs = zip(names, scenes.class_names, strict=True)
        place = next((k for k, pair in enumerate(pairs) if pair[0].lower() != pair[1].lower()), None)
        if place is not None:
            raise DataError(
                f"class {place} is {scenes.class_names[place]!r} in {data_dir} and {names[place]!r} in "
                f"{identity.name}; give the classes in the order of the model's outputs"
            )
    return scenes
