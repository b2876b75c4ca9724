"""What all tasks on images share: pixels as a network takes them, distances in pixels, pictures for people."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.images import unit
from ..models.identity import Classifier
from ..runs.kept_images import Picture
from .subject import Batch, Subject

SIDE = 224
"""The longest side of a kept image; larger ones are shrunk."""
MAP_SIDE = 64


def _is_cnn(classifier: Classifier) -> bool:
    """Whether the network has no attention; channels-last memory is fastest then."""
    return classifier.identity.attention == "none"


class ImageSubject(Subject):
    """A checkpoint of images, whose inputs are (B, 3, H, W) uint8 pixels. eps and distances are in pixel units."""

    def _placed(self, classifier: Classifier) -> Classifier:
        return classifier.to(memory_format=torch.channels_last) if _is_cnn(classifier) else classifier

    def inputs(self, raw: Tensor) -> Tensor:
        clean = unit(raw.to(self.settings.device))
        if _is_cnn(self.classifier):
            clean = clean.contiguous(memory_format=torch.channels_last)
        return clean if self.card.space == "pixels" else self.classifier.normalize(clean)

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return unit(shown.float() - raw.to(shown.device).float())

    def pictures(self, batch: Batch, **parts: Tensor) -> dict[str, Picture]:
        """Return pictures of the samples to keep, by id. parts: as `picture` takes them, batched."""
        return {
            sample.id: picture(**{name: values[index] for name, values in parts.items()})
            for index, sample in enumerate(batch.samples)
            if sample.id in batch.keep
        }


def picture(image: Tensor | None = None, delta: Tensor | None = None, heat: Tensor | None = None) -> Picture:
    """Return the picture of an image, (3, H, W) uint8 or floats in [0, 1]; of a change, (3, H, W) floats in pixels;
    and of a map, (H, W) floats in [0, 1].
    """
    return Picture(
        None if image is None else _webp(as_bytes(image), quality=80),
        None if delta is None else _webp(as_bytes(_stretched(delta)), quality=60),
        None if heat is None else _small_map(as_bytes(heat)),
    )


def _stretched(delta: Tensor) -> Tensor:
    largest = float(delta.abs().max())
    return delta / (2 * largest or 1) + 0.5


def as_bytes(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return values as (H, W, 3) or (H, W) uint8."""
    values = values.detach().cpu()
    if values.is_floating_point():
        values = values.nan_to_num().clamp(0, 1).mul(255).round().byte()
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = values.numpy()
    return array.transpose(1, 2, 0) if array.ndim == 3 else array


def _webp(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], quality: int) -> bytes:
    """Encode an image as WebP; a small one keeps every pixel, with little effort: more saves 7 % of the bytes for seven
    times the time.
    """
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    small = max(image.size) <= MAP_SIDE
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    effort = {"lossless": True, "quality": 20, "method": 1} if small else {"quality": quality}
    image.save(buffer, "WEBP", **effort)
    return buffer.getvalue()


def _small_map(levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    image, buffer = Image.fromarray(levels), io.BytesIO()
    image.thumbnail((MAP_SIDE, MAP_SIDE), Image.Resampling.BILINEAR)
    image.save(buffer, "PNG")
    return buffer.getvalue()
