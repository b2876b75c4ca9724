"""The corruptions by name. Loads no torch."""

from __future__ import annotations

import difflib
from collections import UserDict
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from .base import Corruption, Rng


class Lazy(UserDict[str, Any]):
    """Classes by name, each imported when it is asked for; made of places, such as `corruptions.weather:Fog`."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(self.data[name])


_BY_CATEGORY = {
    "noise": {
        "gaussian_noise": "corruptions.noise:GaussianNoise",
        "shot_noise": "corruptions.noise:ShotNoise",
        "impulse_noise": "corruptions.noise:ImpulseNoise",
    },
    "blur": {
        "defocus_blur": "corruptions.blur:DefocusBlur",
        "glass_blur": "corruptions.blur:GlassBlur",
        "motion_blur": "corruptions.blur:MotionBlur",
        "zoom_blur": "corruptions.blur:ZoomBlur",
    },
    "weather": {
        "snow": "corruptions.weather:Snow",
        "frost": "corruptions.weather:Frost",
        "fog": "corruptions.weather:Fog",
        "brightness": "corruptions.digital:Brightness",
    },
    "digital": {
        "contrast": "corruptions.digital:Contrast",
        "elastic_transform": "corruptions.digital:ElasticTransform",
        "pixelate": "corruptions.digital:Pixelate",
        "jpeg_compression": "corruptions.digital:JpegCompression",
    },
    "extra": {
        "speckle_noise": "corruptions.noise:SpeckleNoise",
        "gaussian_blur": "corruptions.blur:GaussianBlur",
        "spatter": "corruptions.weather:Spatter",
        "saturate": "corruptions.digital:Saturate",
    },
}
CATEGORIES: Mapping[str, tuple[str, ...]] = {category: tuple(places) for category, places in _BY_CATEGORY.items()}
"""The benchmark's own: 15 test corruptions in four categories, and the four held out for validation."""
CORRUPTIONS: Mapping[str, type[Corruption]] = Lazy(
    {name: place for places in _BY_CATEGORY.values() for name, place in places.items()}
)
"""All 19 in the benchmark's order."""


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

    Raises ValueError for an unknown name, preset, variant or texture.
    """
    if name not in CORRUPTIONS:
        close = difflib.get_close_matches(name, CORRUPTIONS, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ";"
        raise ValueError(f"unknown corruption {name!r}{guess} known: {', '.join(CORRUPTIONS)}")
    kind: Any = CORRUPTIONS[name]
    made: Corruption = kind(preset, variant, frost_dir, texture) if name == "frost" else kind(preset, variant)
    return made


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

    Raises ValueError or TypeError, which say what: an unknown name, severity 6, one channel, values outside [0, 1]; and
    FileNotFoundError for frost without its photographs.
    """
    return corruption(name, preset=preset, variant=variant, frost_dir=frost_dir, texture=texture)(images, severity, rng)
