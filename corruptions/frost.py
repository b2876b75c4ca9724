"""Frost: pictures of ice laid over the image (Hendrycks and Dietterich 2019), and where these are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from .corruption import Corruption, Draws
from .rng import Rng

Bytes = npt.NDArray[np.uint8]
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
TEXTURES = ("photographs", "own")
LARGEST = 50_000_000  # pixels of a photograph
CHOSEN = 5  # the reference never draws the sixth


@dataclass(frozen=True)
class Frost(Corruption):
    """A weighted sum of the image and of a random part of one of five photographs of ice.

    photographs: the folder with the six files; None: those of an installed imagecorruptions.
    texture: `photographs`, the benchmark's; or `own`, textures that come with this package, drawn by a program with the
        photographs' brightness, colours and spectra. Errors are near, and not the same.

    hendrycks takes the part from the photograph as it is, and for 32x32 images (preset cifar) from one shrunk to a
    fifth; bethgelab enlarges it by 1.1 first, or to 1.1 of the image where that is larger. Where the image does not fit
    into the photograph, which hendrycks does not foresee, the photograph is enlarged as bethgelab does.

    Draws: `uniform` (3,): photograph floor(5 u0), first row floor(u1 (Hf - H)), first column floor(u2 (Wf - W)) of the
    photograph Hf x Wf. So the last row and column are never used, as in the reference.

    Raises:
        ValueError: an unknown texture.
        FileNotFoundError, OSError: `apply` lacks a photograph, or cannot read one; see `find_photographs`.
    """

    photographs: str | None = None
    texture: str = "photographs"

    name: ClassVar[str] = "frost"
    category: ClassVar[str] = "weather"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.texture not in TEXTURES:
            raise ValueError(f"texture {self.texture!r}: expected {' or '.join(TEXTURES)}")

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"uniform": rng.uniform((3,), "uniform")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        weight, ice = self.constants(draws.severity)
        height, width = images.shape[2:]
        paths = own_textures() if self.texture == "own" else find_photographs(self.photographs)
        parts = []
        for which, row, column in draws["uniform"].tolist():
            photograph = self._photograph(paths[int(CHOSEN * which)], height, width, images.device)
            top = int(row * (photograph.shape[1] - height))
            left = int(column * (photograph.shape[2] - width))
            parts.append(photograph[:, top : top + height, left : left + width])
        layer = torch.stack(parts).double().mul_(ice)
        return images.double().mul_(weight).add_(layer).clamp_(0, 255).to(torch.uint8)

    def _photograph(self, path: Path, height: int, width: int, device: torch.device) -> Tensor:
        """Return the photograph from which a part of this size is taken, (3, Hf, Wf) uint8."""
        shrink = 0.2 if self.preset == "cifar" else 1.0
        rows, columns, _ = _decoded(path, shrink).shape
        if self.variant == "hendrycks" and height < rows and width < columns:
            return _on_device(path, shrink, 1.0, device)
        return _on_device(path, shrink, 1.1 * max(1.0, height / rows, width / columns), device)


@lru_cache(maxsize=2 * CHOSEN)
def _decoded(path: Path, shrink: float) -> Bytes:
    """Decode and scale to (H, W, 3) uint8, RGB, with OpenCV as the reference does: other libraries round otherwise."""
    remedy = "copy the six photographs again"
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as header:
            if header.width * header.height > LARGEST:
                raise OSError(f"frost photograph {path} has {header.width} x {header.height} pixels; {remedy}")
    except (UnidentifiedImageError, Image.DecompressionBombError):
        raise OSError(f"frost photograph {path} is not a readable image; {remedy}") from None
    pixels = cv2.imread(str(path))
    if pixels is None:
        raise OSError(f"frost photograph {path} is not a readable image; {remedy}")
    if shrink != 1:
        pixels = cv2.resize(pixels, (0, 0), fx=shrink, fy=shrink)
    return np.asarray(pixels[..., ::-1], dtype=np.uint8)


@lru_cache(maxsize=4 * CHOSEN)
def _on_device(path: Path, shrink: float, growth: float, device: torch.device) -> Tensor:
    pixels = np.ascontiguousarray(_decoded(path, shrink))
    if growth != 1:
        height, width = pixels.shape[:2]
        size = (ceil(width * growth), ceil(height * growth))
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
    return torch.from_numpy(pixels).to(device).permute(2, 0, 1).contiguous()


def own_textures() -> tuple[Path, ...]:
    """Return the paths of the six textures that stand in for the photographs; as there, the sixth is never drawn."""
    return tuple(Path(__file__).with_name("ice") / f"ice{number}.png" for number in range(1, len(PHOTOGRAPHS) + 1))


def find_photographs(folder: str | Path | None = None) -> tuple[Path, ...]:
    """Return the paths of the six photographs: from `folder`, else from an installed imagecorruptions.

    That package is located, not imported: its import fails with today's libraries.

    Raises:
        FileNotFoundError: no folder given and no such package, or one of the files is missing.
    """
    if folder is None:
        package = find_spec("imagecorruptions")
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError(
                "frost needs its six photographs: `pip install --no-deps imagecorruptions` (only files of it are "
                "read), or name a folder that has them: --frost-dir on the command line, frost_dir in Python; or take "
                "textures of our own: frost(texture=own), texture='own' in Python"
            )
        place = Path(package.submodule_search_locations[0]) / "frost"
    else:
        place = Path(folder).absolute()
    paths = tuple(place / name for name in PHOTOGRAPHS)
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"frost photograph {path} is missing; expected {', '.join(PHOTOGRAPHS)} in that folder"
            )
    return paths
