"""The embedded sets by name: their samples, and where their bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import DataError, unknown
from . import shape_sets, shapes
from .class_lists import few
from .images import encode_png
from .layouts import Sample
from .shapes import CLASSES
from .sources import DataSource, Mask, ShapesSource


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
    def _pair(sample_id: str) -> shape_sets.Pair:
        return shape_sets.rendered_pair(int(sample_id.partition("/")[2]))


@dataclass(frozen=True)
class CounterfactualSource(ShapesSource):
    """Samples of the test split, each of which can also be had with one thing changed."""

    def changed(self, sample_id: str, change: str) -> shape_sets.Changed:
        """Generate the changed sample."""
        return shape_sets.changed(int(sample_id.partition("/")[2]), change)


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
    labels = (shape_sets.pair_labels(i) for i in range(shape_sets.PAIRS))
    return tuple(Sample(f"pair/{i:05d}", both[0], both) for i, both in enumerate(labels))


def _changeable() -> tuple[Sample, ...]:
    return tuple(Sample(f"test/{i:05d}", shapes.label(i)) for i in shape_sets.changeable())


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
