"""Fog, snow, frost and spatter (Hendrycks and Dietterich 2019), and where frost's pictures are found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from .base import TEXTURES, Corruption, Draws, Rng
from .filters import Q16_HALF, by_parts, from_bytes, motion_blur, motion_paths, smooth, to_bytes, trim, zoom_in


class Fog(Corruption):
    """x plus a height map in [0, c0], scaled so that the largest value stays what it was.

    Draws: `uniform` (size * size - 1,), size the power of two from the longer side on: every number of the height map
    but its corner, in the order in which `height_map` uses them.
    """

    name, category = "fog", "weather"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        size = 1 << (max(shape[-2:]) - 1).bit_length()
        return Draws(severity, {"uniform": rng.uniform((size**2 - 1,), "uniform")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        weight, decay = self.constants(draws.severity)
        height, width = images.shape[2:]

        def fogged(images: Tensor, uniform: Tensor) -> Tensor:
            heights = height_map(uniform, math.isqrt(uniform.shape[1] + 1), decay)
            pixels = from_bytes(images, torch.float64)
            brightest = pixels.amax((1, 2, 3), keepdim=True)
            pixels.add_(heights[:, None, :height, :width].mul_(weight))
            return to_bytes(pixels.mul_(brightest).div_(brightest + weight))

        return by_parts(fogged, images, draws["uniform"])


def height_map(uniform: Tensor, size: int, decay: float) -> Tensor:
    """Return (B, size, size) float64 in [0, 1]: the diamond-square algorithm on a torus (Fournier et al. 1982).

    uniform: (B, size * size - 1) in [0, 1). From the coarsest step on, each level takes the middles of its squares,
    then those of their upper edges, then of their left edges; each set row by row. A new height is the mean of four
    known ones and a number in (-roughness^2, roughness^2): 100 at first, divided by `decay` at every level.
    """
    heights = torch.zeros(len(uniform), size, size, dtype=torch.float64, device=uniform.device)
    step, roughness, used = size, 100.0, 0
    while step >= 2:
        half, count = step // 2, (size // step) ** 2
        numbers = uniform[:, used : used + 3 * count].double() * (2 * roughness)
        numbers.sub_(roughness).mul_(roughness)
        middle, upper, left = numbers.reshape(-1, 3, size // step, size // step).unbind(1)
        corners = heights[:, ::step, ::step]
        sides = corners + corners.roll(-1, 1)
        middles = heights[:, half::step, half::step]
        middles.copy_((sides + sides.roll(-1, 2)).div_(4).add_(middle))
        above = (middles + middles.roll(1, 1)).add_(corners + corners.roll(-1, 2))
        heights[:, ::step, half::step] = above.div_(4).add_(upper)
        sideways = (middles + middles.roll(1, 2)).add_(corners + corners.roll(-1, 1))
        heights[:, half::step, ::step] = sideways.div_(4).add_(left)
        step, roughness, used = half, roughness / decay, used + 3 * count
    heights -= heights.amin((1, 2), keepdim=True)
    return heights.div_(heights.amax((1, 2), keepdim=True))


class Snow(Corruption):
    """Noise, enlarged about its middle, cut off below a threshold and blurred along a line: added twice, the second
    time turned by 180 degrees, to an image that was whitened.

    hendrycks: truncates the flakes to 8 bits and has ImageMagick blur them. bethgelab: blurs the numbers themselves
    and rounds then, and enlarges about the top left corner of the middle.

    Draws: `normal` (H, W); `angle` uniform (): -135 + 90 u degrees.
    """

    name, category = "snow", "weather"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"normal": rng.normal(shape[-2:], "normal"), "angle": rng.uniform((), "angle")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        weight = self.constants(draws.severity)[6]

        def snowed(part: Tensor, layer: Tensor) -> Tensor:
            flakes, image = from_bytes(layer, torch.float64), from_bytes(part, torch.float32)
            red, green, blue = image.unbind(1)
            grey = (red * 0.299 + green * 0.587 + blue * 0.114)[:, None]
            pale = weight * image + (1 - weight) * torch.maximum(image, grey * 1.5 + 0.5)
            return to_bytes(pale.double() + flakes + flakes.flip(-2, -1))

        return by_parts(snowed, images, self.flakes(draws))

    def flakes(self, draws: Draws) -> Tensor:
        """Return the layer of snow, (B, 1, H, W) uint8."""
        mean, deviation, zoom, threshold, radius, sigma, _ = self.constants(draws.severity)
        exact = self.variant == "bethgelab"
        noise = draws["normal"].double()[:, None] * deviation + mean
        size = noise.shape[-2:]
        layer = zoom_in(noise, zoom)
        layer = layer if exact else trim(layer, size)
        layer = torch.where(layer < threshold, 0, layer).clamp_(0, 1).mul_(255)
        layer = layer if exact else layer.floor_()
        paths = motion_paths(radius, sigma, [-135 + 90 * u for u in draws["angle"].tolist()])
        layer = motion_blur(layer, paths.inside(layer.shape) if exact else paths)
        layer = layer.round_() if exact else layer.add_(Q16_HALF)
        return layer[..., : size[0], : size[1]].to(torch.uint8)


Bytes = npt.NDArray[np.uint8]
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")
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

    Raises ValueError for an unknown texture; `apply` FileNotFoundError or OSError where a photograph is missing or
    unreadable: see `find_photographs`.
    """

    photographs: str | None = None
    texture: str = "photographs"

    name, category = "frost", "weather"

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
            top, left = int(row * (photograph.shape[1] - height)), int(column * (photograph.shape[2] - width))
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
        size = (math.ceil(width * growth), math.ceil(height * growth))
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC), dtype=np.uint8)
    return torch.from_numpy(pixels).to(device).permute(2, 0, 1).contiguous()


def own_textures() -> tuple[Path, ...]:
    """Return the paths of the six textures that stand in for the photographs; as there, the sixth is never drawn.

    Returns:
        Files of this package.

    Example:
        >>> [path.name for path in own_textures()][:2]
        ['ice1.png', 'ice2.png']
    """
    return tuple(Path(__file__).with_name("ice") / f"ice{number}.png" for number in range(1, len(PHOTOGRAPHS) + 1))


def find_photographs(folder: str | Path | None = None) -> tuple[Path, ...]:
    """Return the paths of the six photographs: from a folder, else from an installed imagecorruptions.

    That package is located, not imported: its import fails with today's libraries.

    Args:
        folder: where the six files are; None: in imagecorruptions.

    Returns:
        Six files, of which the sixth is never drawn.

    Raises:
        FileNotFoundError: neither a folder nor such a package, or one of the files is missing.

    Example:
        >>> find_photographs("no/such/folder")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    if folder is None:
        package = find_spec("imagecorruptions")
        if package is None or not package.submodule_search_locations:
            raise FileNotFoundError(
                "frost needs its six photographs: `pip install --no-deps imagecorruptions` (only files of it are "
                "read), or name a folder that has them: --frost-dir on the command line, frost_dir in Python; or use "
                "our own textures:"
                " frost(texture=own), texture='own' in Python"
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


WATER = (175, 238, 238)
MUD = (63, 42, 20)
SHADING = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])  # light from the upper left


class Spatter(Corruption):
    """Smoothed noise (Draws: `normal` (H, W)) above a threshold is liquid: water that lights up its edges, or mud.

    Where noise leaves no water at all, as on small images, the image stays as it is; the reference divides by zero.
    """

    name, category = "spatter", "extra"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"normal": rng.normal(shape[-2:], "normal")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        mean, deviation, sigma, threshold, strength, is_mud = self.constants(draws.severity)
        noise = draws["normal"].double().mul(deviation).add_(mean)
        layer = smooth(noise[:, None], sigma)[:, 0]
        liquid = layer.masked_fill_(layer < threshold, 0)
        pixels = from_bytes(images, torch.float32)
        # float32 in hendrycks, float64 for the mud of bethgelab
        dtype = torch.float64 if is_mud and self.variant == "bethgelab" else torch.float32
        color = torch.tensor([level / 255 for level in (MUD if is_mud else WATER)], dtype=dtype, device=images.device)
        if is_mud:
            cover = _stain(liquid > threshold, strength)[:, None]
            return to_bytes(pixels.mul_(1 - cover) + color[:, None, None] * cover)
        return to_bytes(pixels.add_(_gloss(liquid).mul_(strength)[:, None] * color[:, None, None]))


def _stain(muddy: Tensor, sigma: float) -> Tensor:
    """Return how much mud covers, (B, H, W) float32, 0 where it is less than 0.8."""
    # float32 also between the two directions, as scipy does for float32 images.
    down = smooth(muddy.double()[:, None], (sigma, 0)).float().double()
    cover = smooth(down, (0, sigma))[:, 0].float()
    return cover.masked_fill_(cover < 0.8, 0)


def _gloss(liquid: Tensor) -> Tensor:
    """Return how thick liquid shines near its edges, (B, H, W) float32 in [0, 1]. On the CPU, image by image."""
    # Large images have values above 1; they wrap around, as numpy's conversion does.
    levels = (liquid * 255).to(torch.int32).to(torch.uint8).cpu().numpy()
    shine = np.stack([plane * _shading(plane) for plane in levels])
    brightest = shine.max((1, 2), keepdims=True)
    shine /= np.where(brightest > 0, brightest, np.float32(1))
    return torch.from_numpy(shine).to(liquid.device)


def _shading(levels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the distance to the liquid's edges as a relief lit from one side, (H, W) float32."""
    distance = cv2.distanceTransform(255 - cv2.Canny(levels, 50, 150), cv2.DIST_L2, 5)
    distance = np.minimum(distance, np.float32(20))
    relief = cv2.equalizeHist(cv2.blur(distance, (3, 3)).astype(np.uint8))
    lit = cv2.filter2D(relief, cv2.CV_8U, SHADING)
    return cv2.blur(lit, (3, 3)).astype(np.float32)
