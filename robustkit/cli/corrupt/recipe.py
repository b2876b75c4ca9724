"""Settle how clean images are corrupted: for a written tree, its comparison and a contact sheet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import torch
from PIL import Image
from torch import Tensor

from corruptions.corruption import SMALLEST

from ...common.preprocessing import INTERPOLATIONS, Preprocessing
from ...common.randomness import SampleRng
from ...data.dataset import Dataset, Sample
from ...data.images import to_pixels
from ...errors import BadImageError, DataError, ProtocolError, unknown
from ...evaluations.corruptions.condition import PRESETS, VARIANTS, Corrupted
from ...evaluations.corruptions.plan import CIFAR_SIZE, choose_constants

FORMATS = {"jpeg": ".JPEG", "png": ".png"}
JPEG_QUALITY = 85  # of the released ImageNet-C


@dataclass(frozen=True)
class Recipe:
    """Resize, crop and corruption. The draws are those of an audit with the same seed, so the pixels are the same."""

    preprocessing: Preprocessing = field(default_factory=lambda: Preprocessing(interpolation="bilinear"))
    preset: str = "imagenet"
    variant: str = "hendrycks"
    seed: int = 0
    frost_dir: str | None = None
    texture: str = "photographs"  # of frost
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def corrupt(
        self, pixels: Tensor, ids: Sequence[str], name: str, severity: int, *, seed: int | None = None
    ) -> Tensor:
        """Return (B, 3, H, W) uint8 on the CPU, like `pixels`; seed: one other than the recipe's.

        Raises:
            DataError: a photograph of frost cannot be read.
        """
        part = Corrupted(name, severity, self.preset, self.variant, texture=self.texture)
        seed = self.seed if seed is None else seed
        rng = SampleRng.of(ids, seed=seed, condition=part.text, device=self.device)
        corruption = part.make(self.frost_dir)
        try:
            corrupted = corruption.apply(pixels.to(self.device), corruption.draw(pixels.shape[1:], severity, rng))
        except OSError as fault:
            raise DataError(str(fault)) from None
        return corrupted.cpu()

    def decoded(
        self, dataset: Dataset, samples: Sequence[Sample], pool: Executor
    ) -> Iterator[tuple[Sample, Tensor | BadImageError]]:
        """Yield the samples resized and cropped, (3, H, W) uint8, or why one cannot be read."""

        def read(sample: Sample) -> Tensor | BadImageError:
            try:
                return to_pixels(dataset.image(sample), self.preprocessing, sample.id)
            except BadImageError as fault:
                return fault

        yield from zip(samples, pool.map(read, samples), strict=True)


def settle(
    native: tuple[int, int] | None,
    *,
    constants: str,
    variant: str,
    seed: int,
    frost_dir: str | None,
    texture: str,
    device: torch.device,
    img_size: int | None,
    crop_pct: float | None,
    interpolation: str,
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for images of this (height, width), and lines for the user.

    constants: `auto` takes CIFAR-10-C's for images of 32x32. img_size, crop_pct: 224 and 0.875 if None, as the
    benchmark was made; images of 32x32 are taken as they are.

    Raises:
        ProtocolError: a setting is unknown or out of range, or no such pair of constants and variant exists.
    """
    for what, value, allowed in (
        ("constants", constants, ("auto", *PRESETS)),
        ("variant", variant, VARIANTS),
        ("interpolation", interpolation, INTERPOLATIONS),
    ):
        if value not in allowed:
            raise ProtocolError(unknown(what, value, allowed))
    small = native == CIFAR_SIZE
    size = img_size if img_size is not None else 32 if small else 224
    if size < SMALLEST:
        raise ProtocolError(f"--img-size {size}: the corruptions are defined from {SMALLEST}x{SMALLEST} on")
    crop = crop_pct if crop_pct is not None else 1.0 if small else 0.875
    if not 0 < crop <= 1:
        raise ProtocolError(f"--crop-pct {crop}: expected a number above 0, at most 1")
    lines = []
    if constants == "auto":
        constants, line = choose_constants(native, [(size, size)])
        lines.append(line)
    if native and img_size is None and max(native) < size:
        lines.append(f"images of {native[1]}x{native[0]} are enlarged to {size}x{size}; --img-size takes another size")
    try:
        Corrupted("fog", 1, constants, variant).make()
    except ValueError as fault:  # bethgelab has no constants for 32x32
        raise ProtocolError(str(fault)) from None
    preprocessing = Preprocessing(input_size=(size, size), interpolation=interpolation, crop_pct=crop)
    return Recipe(preprocessing, constants, variant, seed, frost_dir, texture, device), tuple(filter(None, lines))


def encode(pixels: Tensor, image_format: str) -> bytes:
    """Return (3, H, W) uint8 as a file: `jpeg` at the benchmark's quality, or `png`."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    if image_format == "jpeg":
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()
