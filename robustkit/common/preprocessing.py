"""How an image file becomes the pixels that a model takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop and normalisation of one model, in the terms of timm's data config.

    input_size: (height, width) of the pixels the model takes.
    mean, std: per channel, applied inside the model to pixels in [0, 1].
    interpolation: 'bicubic', 'bilinear', 'nearest' or 'lanczos'.
    crop_pct: the image is resized to floor(size / crop_pct) before the crop, as timm does.
    crop_mode: 'center' (short side resized, centre cropped), 'squash' (resized to both sides) or 'border'.
    """

    input_size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "center"
