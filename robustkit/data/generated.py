"""The embedded sets by name: their samples, and where their bytes come from."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ..errors import DataError, unknown
from . import shapes
from .class_names import few
from .images import encode_png, read_image
from .layouts import Sample
from .shapes import CLASSES
from .sources import DataSource, Mask, ShapesSource

PREFIX = "pairs:"
SIDE = 512  # pixels of the square
_BETWEEN = "|"


@dataclass(frozen=True)
class SideBySideSource(DataSource):
    """Two files of another source as one image: the middle of each, cut to half the square, left and right."""

    source: DataSource

    def read(self, sample_id: str) -> bytes:
        """Read both files, and return their square as PNG."""
        names = sample_id.split(_BETWEEN)
        return encode_png(np.hstack([_half(read_image(self.source.read(name), name)) for name in names]))

    def objects(self, sample_id: str) -> tuple[Mask, Mask]:
        """Return the left and the right half."""
        left = np.zeros((SIDE, SIDE), np.uint8)
        left[:, : SIDE // 2] = 1
        return left, 1 - left


def _half(image: Image.Image) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    width, height = SIDE // 2, SIDE
    scale = max(width / image.width, height / image.height)
    size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    resized = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def paired(samples: Sequence[Sample], where: str) -> tuple[Sample, ...]:
    """Return samples next to one of another class. Each is in one pair, so that pairs are independent of each other.

    The samples stand in an order that hashes of their ids decide; the partner is the next one of another class that
    has none. Those that find none are left out: an odd one, or the last of a class that most are of. Both labels count
    as right.

    Raises:
        DataError: samples without a label, or of a single class, or whose id cannot be part of a pair's.
    """
    if len({sample.label for sample in samples}) < 2 or any(sample.label < 0 for sample in samples):
        raise DataError(f"{PREFIX}{where}: pairs need labelled images of two classes or more")
    if odd := next((sample.id for sample in samples if _BETWEEN in sample.id), None):
        raise DataError(f"{PREFIX}{where}: {odd} has a {_BETWEEN} in its name, which stands between the two of a pair")
    order = sorted(samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest())
    return tuple(sorted(_neighbours(order), key=lambda sample: sample.id))


def _neighbours(order: Sequence[Sample]) -> Iterator[Sample]:
    single: deque[Sample] = deque()  # all of one class
    for second in order:
        if not single or single[0].label == second.label:
            single.append(second)
            continue
        first = single.popleft()
        yield Sample(f"{first.id}{_BETWEEN}{second.id}", first.label, (first.label, second.label))


@dataclass(frozen=True)
class PairsSource(DataSource):
    """Two shapes in one image (robustkit.data.shape_sets); a sample's id is 'pair/<index>'."""

    def read(self, sample_id: str) -> bytes:
        """Generate the image and encode it as PNG."""
        return encode_png(self._pair(sample_id).pixels)

    def mask(self, sample_id: str) -> Mask:
        """Return the mask of both shapes."""
        both: Mask = self._pair(sample_id).masks.max(axis=0)
        return both

    def objects(self, sample_id: str) -> tuple[Mask, Mask]:
        """Return the masks of the two shapes."""
        first, second = self._pair(sample_id).masks
        return first, second

    @staticmethod
    def _pair(sample_id: str) -> shapes.Pair:
        return shapes.rendered_pair(int(sample_id.partition("/")[2]))


@dataclass(frozen=True)
class CounterfactualSource(ShapesSource):
    """Samples of the test split, each of which can also be had with one thing changed."""

    def changed(self, sample_id: str, change: str) -> shapes.Changed:
        """Generate the changed sample."""
        return shapes.changed(int(sample_id.partition("/")[2]), change)


@dataclass(frozen=True)
class EmbeddedSet:
    """What an embedded set is, for which commands, and how it is made."""

    what: str
    samples: Callable[[], tuple[Sample, ...]]
    source: DataSource
    commands: str = "audit"


def _split(name: str) -> EmbeddedSet:
    def samples() -> tuple[Sample, ...]:
        return tuple(Sample(f"{name}/{i:05d}", shapes.label(i)) for i in range(shapes.SIZES[name]))

    return EmbeddedSet(f"shapes, the {name} split", samples, ShapesSource(), "audit, segment")


def _pairs() -> tuple[Sample, ...]:
    labels = (shapes.pair_labels(i) for i in range(shapes.PAIRS))
    return tuple(Sample(f"pair/{i:05d}", both[0], both) for i, both in enumerate(labels))


def _changeable() -> tuple[Sample, ...]:
    return tuple(Sample(f"test/{i:05d}", shapes.label(i)) for i in shapes.changeable())


EMBEDDED = {
    "embedded:shapes": _split("test"),
    "embedded:shapes-train": _split("train"),
    "embedded:shapes-pairs": EmbeddedSet("two shapes in each image, with both masks", _pairs, PairsSource()),
    "embedded:shapes-counterfactual": EmbeddedSet(
        "shapes, each also with its colour, its outline or its background changed", _changeable, CounterfactualSource()
    ),
}


def embedded_set(spec: str, num_classes: int | None, class_names: Sequence[str] | None) -> EmbeddedSet:
    """Return an embedded set. Raises DataError where there is none, or a model has other classes."""
    if spec not in EMBEDDED:
        raise DataError(unknown("data set", spec, EMBEDDED))
    if num_classes not in (None, len(CLASSES)):
        raise DataError(f"{spec} has {len(CLASSES)} classes, but the model has {num_classes}")
    if class_names and not set(class_names) & set(CLASSES):
        raise DataError(f"{spec} shows {few(CLASSES, 3)}, but the model's classes are {few(class_names, 3)}")
    return EMBEDDED[spec]
