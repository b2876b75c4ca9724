"""What all corruptions share: a draw of random numbers, and a function of images and draw that is not random.

`robustkit.common.determinism.SampleRng` satisfies `Rng`; without one, `TorchRng` uses torch's global generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .constants import NEEDS_COLOUR, PRESETS, SEVERITIES
from .filters import from_bytes


class Rng(Protocol):
    """Random numbers (B, *shape) floating for a batch of B images; each `purpose` names a draw of its own.

    Example:
        >>> source: Rng = TorchRng(batch=2)
        >>> source.normal((3, 64, 64), purpose="normal").shape
        torch.Size([2, 3, 64, 64])
    """

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers in [0, 1)."""

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return numbers of mean 0 and variance 1."""


class TorchRng:
    """`Rng` over torch's global generator: seeded by `torch.manual_seed`, different at every call.

    Args:
        batch: number of images B.
        device: where the numbers are made.

    Example:
        >>> corrupt(images, "gaussian_noise", severity=3, rng=TorchRng(batch=2)).shape
        torch.Size([2, 3, 64, 64])
    """

    def __init__(self, batch: int, device: torch.device | str = "cpu") -> None:
        self.batch, self.device = batch, torch.device(device)

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.rand(self.batch, *shape, device=self.device)

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.randn(self.batch, *shape, device=self.device)


SMALLEST = 16
VARIANTS = ("hendrycks", "bethgelab")
TEXTURES = ("photographs", "own")


@dataclass(frozen=True)
class Draws:
    """The random part of one corruption of B images.

    Example:
        >>> noise = corruption("gaussian_noise")
        >>> draws = noise.draw((3, 64, 64), severity=3, rng=TorchRng(batch=2))
        >>> draws["normal"].shape
        torch.Size([2, 3, 64, 64])
    """

    severity: int
    """1 to 5."""
    numbers: dict[str, Tensor] = field(default_factory=dict)
    """Random numbers by name, each (B, ...), as the class of the corruption documents them."""

    def __getitem__(self, name: str) -> Tensor:
        return self.numbers[name]


@dataclass(frozen=True)
class Corruption(ABC):
    """One of the common corruptions of Hendrycks and Dietterich 2019. Calling it corrupts a batch.

    Args:
        preset: whose severities: `imagenet`, or `cifar` for images of 32x32.
        variant: `hendrycks`, the code that made the benchmark, or `bethgelab`, the package imagecorruptions 1.1.2.

    Raises:
        ValueError: an unknown preset or variant, or a pair that has no definition.

    Reference: Hendrycks and Dietterich 2019, arXiv:1903.12261.

    Example:
        >>> contrast = corruption("contrast", variant="bethgelab")
        >>> isinstance(contrast, Corruption), contrast.category, contrast.constants(severity=3)
        (True, 'digital', 0.2)
    """

    preset: str = "imagenet"
    variant: str = "hendrycks"

    name: ClassVar[str]
    category: ClassVar[str]  # noise, blur, weather or digital; extra for the four held out for validation

    def __post_init__(self) -> None:
        for what, value, choices in (("preset", self.preset, PRESETS), ("variant", self.variant, VARIANTS)):
            if value not in choices:
                raise ValueError(f"{what} {value!r}: expected {' or '.join(choices)}")
        if (self.preset, self.variant) == ("cifar", "bethgelab"):
            raise ValueError("variant 'bethgelab' has no constants for preset 'cifar'; use variant 'hendrycks'")

    def constants(self, severity: int) -> Any:
        """Return the entry of `constants.PRESETS` for this severity, 1 to 5. Raises NotImplementedError without one."""
        if self.name not in (constants := PRESETS[self.preset]):
            here = f"corruptions/constants.py has none of {self.name} for preset {self.preset}"
            raise NotImplementedError(f"{here}; override `constants` in {type(self).__name__}, or add them there")
        return constants[self.name][severity - 1]

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        """Return the random numbers for images of `shape` (3, H, W), one image per sample of `rng`; here none."""
        return Draws(severity)

    @abstractmethod
    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the corrupted images, (B, 3, H, W) uint8 like `images`, on their device: a function of the arguments.

        The result of one image does not depend on the others of the batch. Draws in float64 are computed with in
        float64, so that the reference's own draws give the reference's own pixels.
        """

    def __call__(self, images: Tensor, severity: int, rng: Rng | None = None) -> Tensor:
        """Corrupt a batch. The benchmark is defined on 8-bit images: floating ones are rounded to 256 levels first.

        Args:
            images: (B, 3, H, W), 16x16 or larger, uint8 or floating in [0, 1]; unless the corruption `NEEDS_COLOUR`, of
                any number of channels.
            severity: 1 to 5.
            rng: where random numbers come from; None: torch's global generator.

        Returns:
            The corrupted images, of the same shape, dtype and device.

        Raises:
            TypeError: anything but a tensor, uint8 or floating.
            ValueError: a wrong shape, values outside [0, 1], smaller images, or another severity.
        """
        if isinstance(severity, bool) or not isinstance(severity, int) or severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r}: expected a whole number from 1 to 5")
        pixels = as_bytes(images, 3 if self.name in NEEDS_COLOUR else 0)
        if not len(pixels):
            return images.clone()
        rng = rng or TorchRng(len(images), images.device)
        corrupted = self.apply(pixels, self.draw(images.shape[1:], severity, rng))
        return corrupted if images.dtype == torch.uint8 else from_bytes(corrupted, torch.float64).to(images.dtype)


def as_batch(images: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Return images of any kind that `corrupt` takes as (B, 3, H, W), and a function that turns such into that kind.
    Raises TypeError or ValueError for another kind.
    """
    if isinstance(images, Tensor):
        return (images[None], lambda made: made[0]) if images.ndim == 3 else (images, lambda made: made)
    if isinstance(images, np.ndarray):
        if images.ndim not in (3, 4) or images.shape[-1] != 3:
            raise ValueError(f"the array has the shape {images.shape}; expected (H, W, 3) or (B, H, W, 3), RGB")
        batch, back = as_batch(torch.from_numpy(np.array(images, order="C")).movedim(-1, -3))
        return batch, lambda made: np.ascontiguousarray(back(made).movedim(-3, -1).numpy())
    if isinstance(images, Image.Image):
        if images.mode != "RGB":
            raise ValueError(f"the image is of mode {images.mode}; expected RGB: image.convert('RGB')")
        batch, back = as_batch(np.asarray(images))
        return batch, lambda made: Image.fromarray(back(made))
    if isinstance(images, list | tuple) and images:
        parts = [as_batch(each) for each in images]
        if len(sizes := {tuple(batch.shape) for batch, _ in parts}) > 1:
            raise ValueError(f"images of {len(sizes)} sizes; expected one, or a call for each")
        made_of = [back for _, back in parts]
        return torch.cat([batch for batch, _ in parts]), lambda made: type(images)(
            back(one) for back, one in zip(made_of, made.split(len(parts[0][0])), strict=True)
        )
    kinds = "a tensor (B, 3, H, W), a NumPy array (B, H, W, 3), or RGB images of Pillow"
    raise TypeError(f"images are {type(images).__name__}; expected {kinds}")


def as_bytes(images: Tensor, channels: int = 3) -> Tensor:
    """Return images (B, C, H, W) as uint8. channels: C; 0 for any. See `Corruption.__call__` for what is refused."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images are {type(images).__name__}; expected a torch tensor (B, 3, H, W)")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images are {images.dtype}; expected uint8, or floating in [0, 1]")
    if images.ndim != 4 or images.shape[1] not in (channels or images.shape[1],):
        raise ValueError(f"images have the shape {tuple(images.shape)}; expected (B, 3, H, W), RGB")
    if min(images.shape[2:]) < SMALLEST:
        size = "x".join(map(str, images.shape[2:]))
        raise ValueError(f"images are {size}; corruptions need at least {SMALLEST}x{SMALLEST} pixels")
    if images.dtype == torch.uint8 or not len(images):
        return images.to(torch.uint8)
    low, high = images.aminmax()
    if not (low >= 0 and high <= 1):  # also where there is a NaN
        raise ValueError(
            f"images lie in [{float(low):.4g}, {float(high):.4g}]; expected [0, 1], before any normalisation"
        )
    return images.double().mul(255).round().to(torch.uint8)
