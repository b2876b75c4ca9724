"""How an image file becomes the pixels that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_SIDE = 2048  # Pixels: the largest side of inputs that a file may ask for
MOST_CHANNELS = 16  # Of an image
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # Mean and std of the training images of ImageNet
INCEPTION = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""Mean and std that map pixels to [-1, 1], as Inception and timm's augreg ViTs have them."""
INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos", "box", "hamming")
"""How an image is resized, by Pillow's names."""
ASSUMED = "default"
SOURCES = {  # The source of a value, as run.json has it, and in words
    "option": "by the user",
    "metadata": "by the checkpoint",
    "weights": "by tensors of the checkpoint",
    "published": "by {config}",
    "code": "by {config}",
    "network": "by the network's shape",
    "card": "by the protocol card",
    "tried": "found by trying",
    "trainer": "assumed from the arguments of its training script",
    "name": "assumed from its name",
    "architecture": "assumed from {config}",
    "family": "assumed, as usual for {arch}",
    ASSUMED: "assumed, our default",
}
UNPROVEN = frozenset({"trainer", "name", "architecture", "family", ASSUMED})
"""Sources that nobody stated for this checkpoint: what only they say is to be confirmed by data."""

LOGITS, PROBABILITIES, UNIT = "logits", "probabilities", "between 0 and 1"
"""What a network returns: `UNIT` where all lie between 0 and 1 and do not sum to 1, as after a sigmoid."""


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop and normalisation of one model, in the terms of timm's data config.

    input_size: (height, width) of the pixels the model takes.
    mean, std: per channel, applied inside the model to pixels in [0, 1].
    interpolation: one of `INTERPOLATIONS`.
    crop_pct: the image is resized to floor(size / crop_pct) before the crop, as timm does.
    value_range: what 0 and 1 stand for in a file; None for that of its 8 or 16 bits.
    crop_mode: 'center' (short side resized, centre cropped, half a pixel rounded to even), 'center-floor' (rounded
        down, as transformers does), 'squash' (resized to both sides) or 'border'.
    """

    input_size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "center"
    value_range: tuple[float, float] | None = None

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def is_rgb(self) -> bool:
        """Whether images are read as 8-bit RGB, whatever their file holds."""
        return self.channels == 3 and self.value_range is None

    @classmethod
    def standardised(cls, mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocessing:
        """Return that of inputs that are no images: they are standardised, and nothing else is done to them."""
        return cls((0, 0), mean, std, "", 1.0, "")


def is_real(value: object) -> bool:
    """Whether a value of a file is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def few_numbers(values: Sequence[float]) -> str:
    """Return one number per channel as text, or one where all are the same."""
    return " ".join(f"{value:.4g}" for value in (values if len(set(values)) > 1 else values[:1]))


def exact_numbers(values: Sequence[float]) -> str:
    """Return the same as `few_numbers`, with as many digits as distinguish each number from any other."""
    texts = [f"{value:g}" if float(f"{value:g}") == value else repr(value) for value in values]
    return " ".join(texts if len(set(texts)) > 1 else texts[:1])


def texts_of(values: Mapping[str, Any], numbers: Callable[[Sequence[float]], str]) -> dict[str, str]:
    """Return each value of a preprocessing in words, by name; mean and std alone for inputs that are no images."""
    size, crop = "{}x{} pixels".format(*values["input_size"]), f"crop {numbers([values['crop_pct']])}"
    of_images = {"input_size": size, "interpolation": str(values["interpolation"]), "crop_pct": crop}
    of_images["crop_mode"] = str(values["crop_mode"])
    if values.get("value_range"):
        of_images["value_range"] = "values {:g} to {:g}".format(*values["value_range"])
    statistics = {name: f"{name} {numbers(values[name])}" for name in ("mean", "std")}
    return {**(of_images if any(values["input_size"]) else {}), **statistics}


def describe_preprocessing(values: Mapping[str, Any], sources: Mapping[str, str], arch: str) -> str:
    """Return a preprocessing in words, with who said each value (`SOURCES`). arch: whose config counts."""
    texts: dict[str, list[str]] = {}
    for name, text in texts_of(values, few_numbers).items():
        if (source := sources.get(name)) in SOURCES:
            texts.setdefault(str(source), []).append(text)
    return "; ".join(f"{', '.join(parts)} ({source_words(source, arch)})" for source, parts in texts.items())


def source_words(source: str, arch: str) -> str:
    """Return who said a value, in words; empty for a source that `SOURCES` lacks. arch: whose config counts."""
    config = "the configuration of its code" if ":" in arch else f"timm's configuration of {arch}"
    return SOURCES.get(source, "").format(config=config, arch=arch)
