"""Maps to look at: a row a sample, with its image, truth, and an overlay for each checkpoint and method."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .contact_sheet import FAINT, INK, PAPER, RULE, fitted, font
from .records import write_whole

Pixels = NDArray[np.uint8]

TILE = 224
STRENGTH = 0.6  # of a map's colour over its image, where the map is 1
OUTLINE = (255, 255, 255)
_NEAREST, _LANCZOS = Image.Resampling.NEAREST, Image.Resampling.LANCZOS


@dataclass(frozen=True)
class Tile:
    """One overlay. heading: checkpoint and method. map: (H, W) in [0, 1]. lines: what stands under it."""

    heading: str
    map: NDArray[np.float32]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One sample. image: (H, W, 3) uint8 as the model sees it. truth: (H, W) bool where known. name: of its class."""

    sample_id: str
    name: str
    image: Pixels
    tiles: tuple[Tile, ...]
    truth: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Gallery:
    """Rows with the same headings of tiles. title and lines stand at the top."""

    title: str
    rows: tuple[Row, ...]
    lines: tuple[str, ...] = field(default_factory=tuple)


def overlay(image: Pixels, heat: NDArray[np.float32]) -> Pixels:
    """The image as a tile, in grey under its map in cividis, which reads the same for colour-blind people.

    The higher the map, the more of its colour shows, so a low map leaves the image to be seen.
    """
    image = _tile(image)
    heat = np.asarray(cv2.resize(heat, image.shape[1::-1], interpolation=cv2.INTER_LINEAR), dtype=np.float32)
    levels = (heat.clip(0, 1) * 255).round().astype(np.uint8)
    colours = cv2.cvtColor(cv2.applyColorMap(levels, cv2.COLORMAP_CIVIDIS), cv2.COLOR_BGR2RGB).astype(np.float32)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32)
    share = STRENGTH * (0.35 + 0.65 * heat.clip(0, 1)[..., None])
    return ((1 - share) * grey + share * colours).round().astype(np.uint8)


def outlined(image: Pixels, truth: NDArray[np.bool_] | None) -> Pixels:
    """The image as a tile, with the outline of its object in white on black, so that it shows on any ground."""
    shown = _tile(image)
    if truth is None:
        return shown
    mask = cv2.resize(truth.astype(np.uint8), shown.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    for colour, width in ((0, 0, 0), 4), (OUTLINE, 2):
        cv2.drawContours(shown, contours, -1, colour, width)
    return shown


def _tile(pixels: Pixels) -> Pixels:
    """Enlarged pixel by pixel, or shrunk, to a width of TILE."""
    size = (TILE, max(1, round(TILE * pixels.shape[0] / pixels.shape[1])))
    small = pixels.shape[1] < TILE
    return np.array(Image.fromarray(pixels).resize(size, _NEAREST if small else _LANCZOS))


def draw(gallery: Gallery) -> Image.Image:
    """The contact sheet as an RGB image."""
    margin, gap, head, line = 36, 12, 160, 24
    columns = 1 + max(len(row.tiles) for row in gallery.rows)
    width = 2 * margin + columns * TILE + (columns - 1) * gap
    under = line * max(2, 2, *(len(tile.lines) for row in gallery.rows for tile in row.tiles)) + 24
    tall = [_tile(row.image).shape[0] for row in gallery.rows]
    canvas = Image.new("RGB", (width, head + sum(tall) + len(tall) * under + margin), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((margin, 28), fitted(gallery.title, 30, width - 2 * margin), INK, font(30))
    for index, text in enumerate(gallery.lines[:1]):
        pen.text((margin, 70 + line * index), fitted(text, 17, width - 2 * margin), FAINT, font(17))
    top = head
    for index, (row, height) in enumerate(zip(gallery.rows, tall, strict=True)):
        if index:
            pen.line((margin, top - 10, width - margin, top - 10), RULE, 1)
        tiles: list[tuple[str, Pixels, tuple[str, ...]]] = [
            ("", outlined(row.image, row.truth), (row.name, row.sample_id))
        ]
        tiles += [(tile.heading, overlay(row.image, tile.map), tile.lines) for tile in row.tiles]
        for column, (heading, pixels, lines) in enumerate(tiles):
            x = margin + column * (TILE + gap)
            if index == 0:
                for place, part in enumerate(heading.split(", ", 1)):
                    pen.text((x, head - 46 + 20 * place), fitted(part, 16, TILE), (INK, FAINT)[place], font(16))
            canvas.paste(Image.fromarray(pixels), (x, top))
            for place, text in enumerate(lines):
                colour = INK if place == 0 else FAINT
                pen.text((x, top + height + 4 + line * place), fitted(text, 16, TILE), colour, font(16))
        top += height + under
    return canvas


def write_sheet(gallery: Gallery, path: Path) -> None:
    """The contact sheet as a PNG. RunError where it cannot be written."""
    write_whole(path, _png(draw(gallery)))


def write_page(gallery: Gallery, path: Path) -> None:
    """The gallery as one self-contained HTML page, all text escaped. RunError where it cannot be written."""
    from jinja2 import Environment, StrictUndefined

    source = (resources.files("robustkit") / "templates" / "gallery.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    rows = [
        {
            "row": row,
            "image": _uri(outlined(row.image, row.truth)),
            "tiles": [(tile, _uri(overlay(row.image, tile.map))) for tile in row.tiles],
        }
        for row in gallery.rows
    ]
    write_whole(path, environment.from_string(source).render(gallery=gallery, rows=rows).encode())


def _uri(pixels: Pixels) -> str:
    return "data:image/png;base64," + base64.b64encode(_png(Image.fromarray(pixels))).decode()


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def pick(scores: Mapping[str, Sequence[float]], how: str, count: int, order: Sequence[str]) -> list[str]:
    """`count` sample ids by what the checkpoints scored on each (nan: unknown, left out).

    how: `best` or `worst` mean over the checkpoints, `disagreement` for the widest spread between them, or `random`.
    order: the ids in a random order, which also decides between equals.
    """
    if how == "random":
        return list(order[:count])
    keys: dict[str, Callable[[Sequence[float]], float]] = {
        "best": lambda values: -sum(values) / len(values),
        "worst": lambda values: sum(values) / len(values),
        "disagreement": lambda values: min(values) - max(values),
    }
    known = [sample for sample in order if all(map(math.isfinite, scores.get(sample, (math.nan,))))]
    return sorted(known, key=lambda sample: keys[how](scores[sample]))[:count]
