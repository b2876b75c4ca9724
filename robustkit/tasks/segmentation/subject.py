"""A segmenter under a card: how it is attacked and what is counted from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attacks import AttackResult, DenseAttack

from ...common.determinism import SampleRng
from ...data.dataset import Dataset, Sample
from ...data.images import MAX_RESIZED
from ...data.scenes import LabelledScenes, open_scenes, read_whole
from ...errors import BadImageError, DataError
from ...evaluations.attacks.evaluate import build_attack
from ...evaluations.subject import Batch, ImageSubject, Reader, Settings
from ...models.dense import Segmenter, Windows
from ...models.identity import ModelIdentity
from ...protocol.card import Card
from ...protocol.condition import Condition
from .counts import BY_RUN, class_counts

SCENES = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("pixels", "shifted"), pa.int64()),
        **dict.fromkeys(("intersections", "predicted", "labelled"), pa.list_(pa.int64())),
        **dict.fromkeys(("nll", "linf", "l2"), pa.float32()),
        **dict.fromkeys(("steps", "forwards", "backwards"), pa.int32()),
        "error": pa.string(),
    }
)
"""One row per image, for segmenters.

pixels: how many count, that is, are labelled with a class. shifted: how many would be right if masks were read with,
or without, `--reduce-zero-label`; as many as are right where that is no option. nll: its mean over them; null where
there are none. intersections, predicted, labelled: for each class, how many of these pixels are predicted right,
predicted as it, and labelled as it. `intersections js`, `predicted js` and so on: the same at the worst point of each
run of an attack that makes several. error: why the image or its mask could not be read or used; all but the id is null
then.
"""

LabelMap = NDArray[np.int16]  # (H, W): the index of a pixel's class, -1 where it does not count


class SegmenterSubject(ImageSubject):
    """One segmenter under one card. unjudged: classes no label has, as void; predicting one is wrong. shift: of
    `LabelledScenes`.
    """

    schema, by_run = SCENES, BY_RUN

    def __init__(
        self, model: Segmenter, card: Card, settings: Settings, unjudged: Sequence[int] = (), shift: int = 0
    ) -> None:
        super().__init__(model, card, settings, None)
        self.shift = shift
        self.unjudged = torch.tensor(list(unjudged), dtype=torch.int64, device=settings.device)

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    def needs_truth(self, condition: Condition) -> bool:
        return True

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack = build_attack(condition, self.card)
        assert isinstance(attack, DenseAttack)
        return attack.run(self.search, inputs, self._label_maps(batch), rng=rng)

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        return self._counted(logits, self._label_maps(batch)) | {"sample_id": [sample.id for sample in batch.samples]}

    def change(self, raw: Tensor, view: Tensor, inputs: Tensor) -> Tensor:
        return inputs - self.inputs(raw)

    def _label_maps(self, batch: Batch) -> Tensor:
        return torch.from_numpy(np.stack(batch.truths)).long().to(self.settings.device)

    def predicted(self, inputs: Tensor) -> Tensor:
        """Return (B, H, W): the likeliest class of each pixel, -1 where logits are not finite or it is not judged."""
        with torch.inference_mode():
            return self._classes(self.exact(inputs))

    def _counted(self, logits: Tensor, labels: Tensor) -> dict[str, list[Any]]:
        counting = (labels >= 0).flatten(1).sum(dim=1)
        losses = functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none").flatten(1).sum(dim=1)
        nll = [loss / n if n else None for loss, n in zip(losses.tolist(), counting.tolist(), strict=True)]
        classes = self._classes(logits)
        right, predicted, labelled = class_counts(classes, labels, logits.shape[1])
        shifted = ((classes + self.shift == labels) & (classes >= 0) & (labels >= 0)).flatten(1).sum(dim=1)
        counts = {"intersections": right.tolist(), "predicted": predicted.tolist(), "labelled": labelled.tolist()}
        counts["shifted"] = shifted.tolist()
        return {"pixels": counting.tolist(), **counts, "nll": nll}

    def _classes(self, logits: Tensor) -> Tensor:
        classes = torch.where(logits.isfinite().all(dim=1), logits.argmax(dim=1), -1)
        return torch.where(torch.isin(classes, self.unjudged), -1, classes) if len(self.unjudged) else classes


@dataclass(frozen=True)
class SceneImages:
    """The source of pixels and label maps; corruptions act on whole images. windows: of the network, or None."""

    scenes: LabelledScenes
    windows: Windows | None = None

    @property
    def dataset(self) -> Dataset:
        return self.scenes.dataset

    def reader(self, condition: Condition) -> Reader:
        return lambda sample: read_whole(self.dataset, sample)

    def locate(self, sample: Sample, pixels: Tensor) -> LabelMap:
        """Return a label map. Raises BadImageError, too, for an image so thin that windows would fill memory."""
        height, width = pixels.shape[-2:]
        for high, wide in () if self.windows is None else self.windows.sizes(height, width)[1:]:
            if high * wide > max(MAX_RESIZED, height * width):
                raise BadImageError(
                    f"{sample.id}: {width} x {height} pixels are too thin: for windows they would become {wide} x "
                    f"{high}, at most {MAX_RESIZED // 1_000_000} million pixels are supported; crop it"
                )
        return self.scenes.labels(sample, (pixels.shape[-2], pixels.shape[-1]))


def scenes_for(
    identities: Sequence[ModelIdentity],
    data_dir: str | Path,
    masks: str | Path | None,
    classes: str | Path | None,
    ignore: Sequence[int],
    layout: str | None,
    reduce_zero_label: bool,
) -> LabelledScenes:
    """Return the scenes, named by a checkpoint where no file does. DataError where checkpoints' classes differ."""
    first = identities[0]
    for identity in identities:
        if identity.num_classes != first.num_classes:
            raise DataError(
                f"{first.name} has {first.num_classes} classes and {identity.name} {identity.num_classes}; evaluate "
                "them in separate runs"
            )
    named = next((candidate for candidate in identities if candidate.class_names), None)
    scenes = open_scenes(
        data_dir,
        masks=masks,
        classes=classes,
        ignore=ignore,
        num_classes=first.num_classes,
        layout=layout,
        reduce_zero_label=reduce_zero_label,
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
