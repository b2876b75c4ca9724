"""Turn kept pictures into URIs for a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..data.picture_files import Refused, open_picture
from ..runs.folder import RunFolder
from ..runs.pictures import Picture, read_pictures

_HELD = 64_000_000  # bytes of pictures in memory; the page, where they are smaller, takes about a fifth of that
_PICTURE = 1 << 22  # pixels of a kept picture

Overlay = Callable[[NDArray[np.uint8], NDArray[np.float32]], NDArray[np.uint8]]


def held_pictures(
    run: RunFolder, checkpoints: Sequence[str], texts: Sequence[str], ids: Sequence[str]
) -> tuple[list[str], dict[tuple[str, str], dict[str, Picture]]]:
    """Return the first samples, as many as fit in memory, and their pictures by checkpoint and condition."""
    sizes = dict.fromkeys(ids, 0)
    by_unit: dict[tuple[str, str], dict[str, Picture]] = {}
    for checkpoint in checkpoints if ids else ():
        for text in texts:
            by_unit[checkpoint, text] = pictures = read_pictures(run, checkpoint, text)
            for name in sizes.keys() & pictures.keys():
                sizes[name] += sum(len(part or b"") for part in (pictures[name].image, pictures[name].difference))
            total, fit = 0, dict[str, int]()
            for name, size in sizes.items():
                total += size
                if total > _HELD and fit:
                    break
                fit[name] = size
            sizes = fit
            for other in by_unit.values():
                for name in other.keys() - sizes.keys():
                    del other[name]
    return list(sizes), by_unit


def uri_of(image: bytes) -> str:
    """Return a WebP as a data URI."""
    return f"data:image/webp;base64,{base64.b64encode(image).decode()}"


def _opened(image: bytes) -> Image.Image:
    """Return a kept picture; an untrusted run folder may hold a larger one. Raises what `open_picture` raises."""
    opened = open_picture(image)
    if opened.width * opened.height > _PICTURE:
        raise Refused(f"a kept picture of {opened.width} x {opened.height} pixels")
    return opened


def shrunk(image: bytes, side: int) -> bytes:
    """Return a picture whose longest side is at most `side`, as WebP."""
    with _opened(image) as opened:
        small = opened.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _webp(small)


def side_of(image: bytes) -> int:
    """Return the longest side of a picture, in pixels."""
    with _opened(image) as opened:
        return max(opened.size)


def _webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=2)
    return buffer.getvalue()


def uri_of_map(image: bytes, heat: bytes, overlay: Overlay) -> str:
    """Return a map over its image as a URI. overlay: draws the map over the image."""
    with _opened(image) as opened, _opened(heat) as levels:
        drawn = overlay(np.array(opened.convert("RGB")), np.array(levels.convert("L"), np.float32) / np.float32(255))
    small = Image.fromarray(drawn)
    small.thumbnail((160, 160), Image.Resampling.LANCZOS)
    return uri_of(_webp(small))
