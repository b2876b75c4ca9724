"""The corruptions by name. Loads no torch."""

from __future__ import annotations

import difflib
from collections import UserDict
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .base import Corruption, Rng

Images = TypeVar("Images")


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
    "c-bar": {
        "caustic_refraction": "corruptions.bar:CausticRefraction",
        "inverse_sparkles": "corruptions.bar:InverseSparkles",
        "sparkles": "corruptions.bar:Sparkles",
        "perlin_noise": "corruptions.bar:PerlinNoise",
        "blue_noise_sample": "corruptions.bar:BlueNoiseSample",
        "plasma_noise": "corruptions.bar:PlasmaNoise",
        "checkerboard_cutout": "corruptions.bar:CheckerboardCutout",
        "cocentric_sine_waves": "corruptions.bar:CocentricSineWaves",
        "single_frequency_greyscale": "corruptions.bar:SingleFrequencyGreyscale",
        "brownish_noise": "corruptions.bar:BrownishNoise",
    },
    "cifar-bar": {
        "pinch_and_twirl": "corruptions.bar_small:PinchAndTwirl",
        "ripple": "corruptions.bar_small:Ripple",
        "circular_motion_blur": "corruptions.bar_small:CircularMotionBlur",
        "lines": "corruptions.bar_small:Lines",
        "transverse_chromatic_abberation": "corruptions.bar_small:TransverseChromaticAbberation",
    },
    "laion": {
        "mosaic": "corruptions.laion:Mosaic",
        "glitched": "corruptions.laion:Glitched",
        "vertical_lines": "corruptions.laion:VerticalLines",
        "geometric_shapes": "corruptions.laion:GeometricShapes",
        "stickers": "corruptions.laion:Stickers",
        "luminance_checkerboard": "corruptions.laion:LuminanceCheckerboard",
    },
}
CATEGORIES: Mapping[str, tuple[str, ...]] = {category: tuple(places) for category, places in _BY_CATEGORY.items()}
"""ImageNet-C's 15 test corruptions in four categories, and its four held out for validation; ImageNet-C-bar's ten, the
five of CIFAR-10-C-bar alone, LAION-C's six."""
CORRUPTIONS: Mapping[str, type[Corruption]] = Lazy(
    {name: place for places in _BY_CATEGORY.values() for name, place in places.items()}
)
"""All 40, the first 19 in ImageNet-C's order."""


def corruption(
    name: str,
    *,
    preset: str = "imagenet",
    variant: str = "hendrycks",
    frost_dir: str | None = None,
    tiles_dir: str | None = None,
    texture: str = "photographs",
) -> Corruption:
    """Return the corruption of this name.

    Args:
        name: one of `CORRUPTIONS`; case and separators do not matter: `Gaussian Noise`.
        preset: see `Corruption`.
        variant: see `Corruption`.
        frost_dir: where frost's photographs are; None: those of an installed imagecorruptions.
        tiles_dir: a folder of images, of which mosaic and stickers take tiles.
        texture: of frost, mosaic and stickers: `photographs`, or `own` where these are missing.

    Returns:
        A `Corruption`, which is called with images and a severity.

    Raises:
        ValueError: an unknown name, preset, variant or texture.

    Example:
        >>> fog = corruption("Fog")
        >>> fog(images, severity=3).shape, fog.category
        (torch.Size([2, 3, 64, 64]), 'weather')
    """
    name = {_plain(known): known for known in CORRUPTIONS}.get(_plain(name), name)
    if name not in CORRUPTIONS:
        close = difflib.get_close_matches(name, CORRUPTIONS, n=1)
        guess = f"; did you mean {close[0]!r}?" if close else ";"
        raise ValueError(f"unknown corruption {name!r}{guess} known: {', '.join(CORRUPTIONS)}")
    kind: Any = CORRUPTIONS[name]
    folder = {"frost": frost_dir, "mosaic": tiles_dir, "stickers": tiles_dir}
    made: Corruption = kind(preset, variant, *((folder[name], texture) if name in folder else ()))
    return made


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def corrupt(
    images: Images,
    name: str | int | None = None,
    severity: int | str | None = None,
    corruption_number: int = -1,
    *,
    corruption_name: str | None = None,
    rng: Rng | None = None,
    preset: str = "imagenet",
    variant: str | None = None,
    frost_dir: str | None = None,
    tiles_dir: str | None = None,
    texture: str = "photographs",
) -> Images:
    """Corrupt images as ImageNet-C does, and return them as the kind that was given.

    Args:
        images: a tensor (B, 3, H, W) or (3, H, W); a NumPy array (B, H, W, 3) or (H, W, 3); an RGB image of Pillow, or
            a list of these of one size. From 16x16 on, uint8 or floating in [0, 1]. Floating images are rounded to 8
            bits first, since the benchmark is defined on those.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        corruption_number: 0 to 18, in place of a name, as in the package imagecorruptions.
        corruption_name: the name in the form of that package, `corrupt(image, severity=3, corruption_name="fog")` or
            `corrupt(image, 3, "fog")`. The severity then is 1, and the variant `bethgelab`, its code, if left out.
        rng: where random numbers come from; None: torch's global generator.
        preset: see `Corruption`.
        variant: see `Corruption`; None: `hendrycks`.
        frost_dir: where frost's photographs are; None: those of an installed imagecorruptions.
        tiles_dir: a folder of images, of which mosaic and stickers take tiles.
        texture: of frost, mosaic and stickers: `photographs`, or `own` where these are missing.

    Returns:
        The corrupted images, of the same kind, shape, dtype and device.

    Raises:
        ValueError: an unknown name, severity 6, one channel, or values outside [0, 1].
        TypeError: another kind of images, or no name or severity.
        FileNotFoundError: frost without its photographs.

    Reference: Hendrycks and Dietterich 2019, arXiv:1903.12261.

    Example:
        >>> corrupt(images, "frost", severity=5, texture="own").shape
        torch.Size([2, 3, 64, 64])
        >>> corrupt(np.zeros((64, 64, 3), dtype=np.uint8), "brightness", severity=1).dtype
        dtype('uint8')
    """
    from .base import as_batch

    theirs = corruption_name is not None or corruption_number != -1 or isinstance(name, int)
    if isinstance(name, int):  # theirs, by position
        name, severity = severity, name
    called = _one_name(name, corruption_name, corruption_number)
    if severity is None and not theirs:
        raise TypeError(f"severity is missing; expected 1 to 5, such as corrupt(images, {called!r}, severity=3)")
    strength: Any = 1 if severity is None else severity
    code = variant or ("bethgelab" if theirs and preset != "cifar" else "hendrycks")
    made = corruption(called, preset=preset, variant=code, frost_dir=frost_dir, tiles_dir=tiles_dir, texture=texture)
    batch, back = as_batch(images)
    corrupted: Images = back(made(batch, strength, rng))
    return corrupted


def _one_name(name: Any, corruption_name: str | None, number: int) -> str:
    """Return the corruption's name, which was given in one of three ways."""
    names = list(CORRUPTIONS)[:19]
    candidates = [each for each in (name, corruption_name) if each is not None]
    if number != -1:
        if not 0 <= number < len(names):
            raise ValueError(f"corruption_number is {number}; expected 0 to {len(names) - 1}")
        candidates.append(names[number])
    if len(candidates) != 1:
        fault = f"{' and '.join(map(repr, candidates))} were given" if candidates else "no corruption is named"
        raise TypeError(f"{fault}; expected one name, such as corrupt(images, 'fog', severity=3)")
    return str(candidates[0])
