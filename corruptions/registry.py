"""The corruptions by name."""

from __future__ import annotations

import difflib

from torch import Tensor

from .blur import DefocusBlur, GaussianBlur, GlassBlur, MotionBlur, ZoomBlur
from .corruption import Corruption, Rng
from .digital import Brightness, Contrast, ElasticTransform, JpegCompression, Pixelate, Saturate
from .noise import GaussianNoise, ImpulseNoise, ShotNoise, SpeckleNoise
from .weather import Fog, Frost, Snow, Spatter

_CLASSES: tuple[type[Corruption], ...] = (
    *(GaussianNoise, ShotNoise, ImpulseNoise),
    *(DefocusBlur, GlassBlur, MotionBlur, ZoomBlur),
    *(Snow, Frost, Fog, Brightness),
    *(Contrast, ElasticTransform, Pixelate, JpegCompression),
    *(SpeckleNoise, GaussianBlur, Spatter, Saturate),
)
CORRUPTIONS: dict[str, type[Corruption]] = {kind.name: kind for kind in _CLASSES}
"""All 19 in the benchmark's order: the 15 test corruptions, then the four held out for validation."""


def corruption(
    name: str,
    *,
    preset: str = "imagenet",
    variant: str = "hendrycks",
    frost_dir: str | None = None,
    texture: str = "photographs",
) -> Corruption:
    """Return the corruption of this name; see `Corruption` for preset and variant. frost_dir: where frost's photographs
    are; texture: of frost, see `Frost`.

    Raises:
        ValueError: unknown name, preset, variant or texture.
    """
    if name not in CORRUPTIONS:
        close = difflib.get_close_matches(name, CORRUPTIONS, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ";"
        raise ValueError(f"unknown corruption {name!r}{guess} known: {', '.join(CORRUPTIONS)}")
    if name == Frost.name:
        return Frost(preset, variant, frost_dir, texture)
    return CORRUPTIONS[name](preset, variant)


def corrupt(
    images: Tensor,
    name: str,
    severity: int,
    *,
    rng: Rng | None = None,
    preset: str = "imagenet",
    variant: str = "hendrycks",
    frost_dir: str | None = None,
    texture: str = "photographs",
) -> Tensor:
    """Corrupt a batch as ImageNet-C does (Hendrycks and Dietterich 2019).

    images: (B, 3, H, W), uint8 or floating in [0, 1], from 16x16 on; the result has their dtype and device. Floating
        images are rounded to 8 bits first, since the benchmark is defined on those.
    texture: of frost: `photographs`, or `own` where these are missing.
    severity: 1 to 5. rng: where random numbers come from; None: torch's global generator.

    Raises:
        ValueError, TypeError: as the line says: an unknown name, severity 6, one channel, values outside [0, 1].
        FileNotFoundError: frost without its photographs.
    """
    return corruption(name, preset=preset, variant=variant, frost_dir=frost_dir, texture=texture)(images, severity, rng)
