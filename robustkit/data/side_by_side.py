"""Pairs of labelled images of different classes, side by side in one square: `pairs:FOLDER`."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from ..errors import DataError
from .images import encode_png, read_image
from .layouts import Sample
from .sources import DataSource, Mask

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
    return tuple(sorted(_pairs(order), key=lambda sample: sample.id))


def _pairs(order: Sequence[Sample]) -> Iterator[Sample]:
    single: deque[Sample] = deque()  # all of one class
    for second in order:
        if not single or single[0].label == second.label:
            single.append(second)
            continue
        first = single.popleft()
        yield Sample(f"{first.id}{_BETWEEN}{second.id}", first.label, (first.label, second.label))
