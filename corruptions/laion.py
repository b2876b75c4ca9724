"""The six corruptions of LAION-C (Li et al. 2025, arXiv:2506.16950), far from what models saw on the web.

They are defined on images of 224x224 and have sizes in pixels, so smaller images are corrupted more. The benchmark's
files are JPEGs of quality 100; these pixels are not compressed. Draws are made in [0, 1).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, UnidentifiedImageError
from scipy.spatial import KDTree
from torch import Tensor
from torch.nn import functional

from .base import TEXTURES, Corruption, Draws, Rng

TILE_SIDES = (4, 6, 8, 16, 28)
MOST_TILES = 100_000
STICKER, _FIELD = 16, 14
_THINNEST = 20  # sides: a tile is of the middle square of an image that is enlarged whole
_SUFFIXES = (".jpg", ".jpeg", ".png")
Tiles = NDArray[np.uint8]


class VerticalLines(Corruption):
    """Zigzag lines downwards on black, pushed aside by dark pixels and in the image's colours. No draws."""

    name, category = "vertical_lines", "laion"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        count, step = self.constants(draws.severity)
        height, width = images.shape[2:]
        starts = [number / count * width for number in range(count)]
        columns = [(int(start), max(min(int(start + width / count), width), int(start))) for start in starts]
        rows = torch.arange(0, height, step, device=images.device)
        red, green, blue = images.long().unbind(1)
        grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
        means = _means(torch.cat([images.long(), grey[:, None]], dim=1), columns, rows, step)
        # (B, lines, rows): where the pen is after each row; it comes from the line's start.
        start = torch.tensor(starts, dtype=torch.float64, device=images.device)[:, None]
        pen = start + (1 - means[:, 3].double() / 255) * -40
        before = torch.cat([start.expand(len(images), -1, 1), pen[:, :, :-1]], dim=2)
        above = torch.cat([rows[:1], rows[:-1]])
        return _drawn(images, before.trunc().long(), pen.trunc().long(), above, rows, means[:, :3])


def _means(values: Tensor, columns: Sequence[tuple[int, int]], rows: Tensor, step: int) -> Tensor:
    """Return whole means of (B, C, H, W) over cells, (B, C, cells across, cells down); 0 over none."""
    sums = functional.pad(values.cumsum(2).cumsum(3), (1, 0, 1, 0))
    left, right = (torch.tensor(ends, device=values.device) for ends in zip(*columns, strict=True))
    bottom = (rows + step).clamp_max(values.shape[2])
    bands = sums[:, :, bottom] - sums[:, :, rows]
    totals = (bands[..., right] - bands[..., left]).transpose(2, 3)
    areas = (right - left)[:, None] * (bottom - rows)
    return totals // areas.clamp_min(1)


def _drawn(images: Tensor, x1: Tensor, x2: Tensor, y1: Tensor, y2: Tensor, colours: Tensor) -> Tensor:
    """Return black (B, 3, H, W) with segments (B, L, R) drawn one after the other, as Pillow draws lines.

    x1, x2: (B, L, R). y1, y2: (R,). colours: (B, 3, L, R).
    """
    height, width = images.shape[2:]
    count = x1.shape[1] * x1.shape[2]
    across, down = (x2 - x1).abs(), (y2 - y1).expand_as(x1)
    longest = torch.maximum(across, down)
    order = torch.arange(1, count + 1, device=images.device).view(1, *x1.shape[1:]).expand_as(x1)
    last = torch.zeros(len(images), height * width, dtype=torch.long, device=images.device)
    for place in range(int(longest.max()) + 1):
        # Bresenham's: the shorter axis steps where twice its share passes an odd number.
        share = torch.minimum(across, down) * place * 2 + longest
        short = share // (2 * longest).clamp_min(1)
        is_flat = across > down
        x = x1 + (x2 - x1).sign() * torch.where(is_flat, place, short)
        y = y1 + torch.where(is_flat, short, place)
        inside = (place <= longest) & (x >= 0) & (x < width) & (y < height)
        last.scatter_reduce_(1, (y * width + x).where(inside, 0).flatten(1), order.where(inside, 0).flatten(1), "amax")
    painted: Tensor = functional.pad(colours.flatten(2), (1, 0))
    return painted.gather(2, last[:, None].expand(-1, 3, -1)).view_as(images).to(torch.uint8)


class GeometricShapes(Corruption):
    """Small triangles, squares, stars and circles in any colour. Draws: `shapes` (N, 8): kind, column, row, side,
    red, green, blue, rotation."""

    name, category = "geometric_shapes", "laion"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"shapes": rng.uniform((self.constants(severity), 8), "shapes")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = images.shape[2:]
        ranges = torch.tensor((4, width, height, 10, 256, 256, 256, 360), device=images.device)
        shapes = (draws["shapes"].double() * ranges).long().cpu()
        made = [_with_shapes(*each) for each in zip(images.permute(0, 2, 3, 1).cpu().numpy(), shapes, strict=True)]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous().to(images.device)


def _with_shapes(pixels: Tiles, shapes: Tensor) -> Tiles:
    image = Image.fromarray(pixels)
    pen = ImageDraw.Draw(image)
    for kind, x, y, more, *colour, rotation in shapes.tolist():
        side, fill = 6 + more, tuple(colour)
        if kind == 0:
            pen.polygon([(x, y), (side + x, y), (side / 2 + x, side + y)], fill=fill)
        elif kind == 2:
            radii = (side / 1.2, side / 1.2 / 2)
            angles = [math.radians(point * 36 + rotation) for point in range(10)]
            star = [(x + radii[n % 2] * math.sin(a), y + radii[n % 2] * math.cos(a)) for n, a in enumerate(angles)]
            pen.polygon(star, fill=fill)
        else:
            (pen.rectangle if kind == 1 else pen.ellipse)([(x, y), (x + side, y + side)], fill=fill)
    return np.asarray(image)


class LuminanceCheckerboard(Corruption):
    """Fields of 14x14 pixels, in turns brighter and darker. Draws: `fields` (rows, columns)."""

    name, category = "luminance_checkerboard", "laion"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"fields": rng.uniform([-(-size // _FIELD) for size in shape[-2:]], "fields")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        low, high = self.constants(draws.severity)
        amounts = low + (high - low) * draws["fields"].double()
        rows, columns = (torch.arange(size, device=images.device) for size in amounts.shape[1:])
        amounts = (amounts * (1 - 2 * ((rows[:, None] + columns) % 2)) / 255).float()
        spread = amounts.repeat_interleave(_FIELD, 1).repeat_interleave(_FIELD, 2)
        values = images.float() / 255 + spread[:, None, : images.shape[2], : images.shape[3]]
        made: Tensor = values.clamp(0, 1).mul(255).to(torch.uint8)
        return made


class Glitched(Corruption):
    """Bands that slid aside, one channel out of place, every other row black: the package glitch_this. No draws: the
    authors seed it with 1 for each image."""

    name, category = "glitched", "laion"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        amount, (height, width) = self.constants(draws.severity), images.shape[2:]
        furthest, glitched = int(amount**2 / 100 * width), images.clone()
        for number in range(2 * amount):
            source = random.Random(1 + number)
            offset, top = source.randint(-furthest, furthest), source.randint(0, height)
            if offset:
                bottom = top + source.randint(1, height // 4)
                glitched[:, :, top:bottom] = images[:, :, top:bottom].roll(offset, 3)
        source = random.Random(1)
        channel = source.randint(0, 2)
        columns, rows = (source.randint(-2 * amount, 2 * amount) for _ in range(2))
        moved = images[:, channel].roll(rows, 1)
        moved[:, rows % height] = moved[:, rows % height].roll(columns, 1)
        glitched[:, channel] = moved
        glitched[:, :, ::2] = 0
        return glitched


@dataclass(frozen=True)
class _Tiled(Corruption):
    """Takes small pictures of other images.

    tiles: a folder of images (JPEG, PNG; also in folders of it), of which each gives one: the benchmark's are
        ImageNet's training images. At most the first 100 000 by path are read.
    texture: `photographs`, or `own`: waves in 4096 colours, made by a formula. Errors are not the benchmark's.

    Raises ValueError for an unknown texture; `apply` FileNotFoundError without a folder or images in it, OSError where
    one cannot be read.
    """

    tiles: str | None = None
    texture: str = "photographs"

    category = "laion"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.texture not in TEXTURES:
            raise ValueError(f"texture {self.texture!r}: expected {' or '.join(TEXTURES)}")

    def of_side(self, side: int) -> Tiles:
        """Return tiles (N, side, side, 3)."""
        return own_tiles(side) if self.texture == "own" else read_tiles(self.tiles)[side]


class Mosaic(_Tiled):
    """The image of tiles, each the one whose mean colour is nearest. No draws.

    Where tiles do not fit, those at the borders are cut, as many pixels on either side; the image goes on as it ends.
    """

    name = "mosaic"

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side = self.constants(draws.severity)
        tiles, tree = self.of_side(side), _tree_of(self.of_side, side)
        (above, below), (left, right) = (_margins(size, side) for size in images.shape[2:])
        large = np.pad(
            images.permute(0, 2, 3, 1).cpu().numpy(), ((0, 0), (above, below), (left, right), (0, 0)), "edge"
        )
        height, width = large.shape[1:3]
        size = width // side, height // side
        small: Tiles = np.stack([np.asarray(Image.fromarray(each).resize(size)) for each in large])
        nearest = tree.query(small.reshape(-1, 3).astype(np.float32) / np.float32(255))[1].reshape(small.shape[:3])
        made = tiles[nearest].transpose(0, 1, 3, 2, 4, 5).reshape(large.shape)
        made = made[:, above : height - below, left : width - right]
        return torch.from_numpy(np.ascontiguousarray(made)).permute(0, 3, 1, 2).contiguous().to(images.device)


@lru_cache(maxsize=8)
def _tree_of(tiles_of: Callable[[int], Tiles], side: int) -> KDTree:
    """Return the mean colours of tiles in [0, 1], to be searched. They are rounded as the reference's."""
    tiles = tiles_of(side).transpose(0, 3, 1, 2)
    parts = (tiles[start : start + 4096] for start in range(0, len(tiles), 4096))
    return KDTree(np.concatenate([(part / np.float32(255)).astype(float).mean((2, 3)) for part in parts]))


def _margins(size: int, side: int) -> tuple[int, int]:
    lacking = -size % side
    return lacking // 2, lacking - lacking // 2


class Stickers(_Tiled):
    """Tiles of 16x16 pixels pasted at random. Draws: `stickers` (N, 2): which tile, and where."""

    name = "stickers"

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"stickers": rng.uniform((self.constants(severity), 2), "stickers")})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        tiles = torch.from_numpy(self.of_side(STICKER)).to(images.device).permute(0, 3, 1, 2)
        height, width = (size - STICKER for size in images.shape[2:])
        if min(height, width) < 1:
            raise ValueError(f"images of {images.shape[3]}x{images.shape[2]}; stickers have {STICKER} pixels")
        which, places = (
            (draws["stickers"][..., each].double() * count).long()
            for each, count in ((0, len(tiles)), (1, height * width))
        )
        top, left = places // width, places % width
        order = torch.arange(1, which.shape[1] + 1, device=images.device).expand_as(which)
        last = torch.zeros(len(images), *images.shape[2:], dtype=torch.long, device=images.device).flatten(1)
        for place in range(STICKER**2):
            down, along = divmod(place, STICKER)
            last.scatter_reduce_(1, (top + down) * images.shape[3] + left + along, order, "amax")
        number = (last - 1).clamp_min(0)
        pixel = torch.arange(last.shape[1], device=images.device)
        row, column = pixel // images.shape[3] - top.gather(1, number), pixel % images.shape[3] - left.gather(1, number)
        covered = last > 0
        row, column = row.where(covered, 0), column.where(covered, 0)
        pasted = tiles[which.gather(1, number), :, row, column].transpose(1, 2).reshape_as(images)
        return torch.where(covered.view(len(images), 1, *images.shape[2:]), pasted, images)


@lru_cache(maxsize=8)
def own_tiles(side: int) -> Tiles:
    """Return 4096 tiles (4096, side, side, 3) uint8: a colour each of 16 levels a channel, with a faint wave."""
    number = np.arange(4096)
    level = np.stack([number // 256, number // 16 % 16, number % 16], axis=1) * 16
    base = level + number[:, None] * (5, 7, 11) % 16  # irregular, so that few tiles are equally near
    place = (np.arange(side) + 0.5) / side
    turns = number[:, None, None] % 5 * place[:, None] + number[:, None, None] % 3 * place
    wave = 40 * np.sin(2 * math.pi * turns + number[:, None, None] % 7)
    tiles: Tiles = (base[:, None, None] + wave[..., None]).round().clip(0, 255).astype(np.uint8)
    return tiles


def find_tiles(folder: str | Path | None) -> tuple[Path, ...]:
    """Return the paths of the images that give tiles, at most 100 000.

    Args:
        folder: where they are, also in folders of it.

    Returns:
        JPEG and PNG files in the order of their paths.

    Raises:
        FileNotFoundError: no folder, or no images in it.

    Example:
        >>> find_tiles("no/such/folder")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        FileNotFoundError: ...
    """
    remedy = "name a folder of images: --tiles-dir on the command line, tiles_dir in Python; or use texture=own"
    if folder is None:
        raise FileNotFoundError(f"mosaic and stickers need tiles of photographs; {remedy}")
    every = (path for path in Path(folder).absolute().rglob("*") if path.suffix.lower() in _SUFFIXES)
    paths = sorted(filter(Path.is_file, every))
    if not paths:
        raise FileNotFoundError(f"{folder} has no JPEG or PNG to make tiles of; {remedy}")
    return tuple(paths[:MOST_TILES])


@lru_cache(maxsize=1)
def read_tiles(folder: str | None) -> dict[int, Tiles]:
    """Return tiles (N, side, side, 3) uint8 of all sides: of each image the middle square, shrunk as the authors do.

    Raises FileNotFoundError as `find_tiles`, OSError for a file that is not an image.
    """
    paths, made = find_tiles(folder), dict[int, list[Tiles]]()
    with ThreadPoolExecutor() as pool:
        for tiles in pool.map(_tiles_of, paths):
            for side, tile in tiles.items():
                made.setdefault(side, []).append(tile)
    return {side: np.stack(tiles) for side, tiles in made.items()}


def _tiles_of(path: Path) -> dict[int, Tiles]:
    try:
        with Image.open(path, formats=("PNG", "JPEG")) as opened:
            image = opened.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as fault:
        raise OSError(f"tile {path} is not a readable image ({fault}); take it out of the folder") from None
    if max(image.size) > _THINNEST * min(image.size):
        size = f"{image.width}x{image.height} pixels"
        raise OSError(f"tile {path} has {size}, which is too thin; take it out of the folder")
    scale = 256 / min(image.size)
    shrunk = image.resize([max(int(size * scale), 256) for size in image.size], Image.Resampling.BILINEAR)
    left, top = (round((size - 224) / 2) for size in shrunk.size)
    square = shrunk.crop((left, top, left + 224, top + 224))
    return {side: np.asarray(square.resize((side, side), Image.Resampling.BILINEAR)) for side in TILE_SIDES}
