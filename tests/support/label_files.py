"""Label maps as files, in trees of folders, and the refusal of what holds no numbers."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from robustkit.data.scenes import LabelledScenes, open_scenes
from robustkit.errors import DataError

Pixels = np.ndarray[Any, Any]
NUMBERS = np.array([[0, 1, 2, 3], [3, 0, 0, 1]], np.uint8)
PALETTE = [255, 255, 255, 0, 0, 0, 9, 200, 9, 1, 1, 1]


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def indexed(numbers: Pixels) -> Image.Image:
    image = Image.fromarray(numbers).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette(PALETTE)
    return image


def packed(numbers: Pixels, depth: int) -> list[bytes]:
    """Rows of numbers of `depth` bits each."""
    text = [f"{int(''.join(f'{n:0{depth}b}' for n in row).ljust(8, '0'), 2):x}" for row in numbers]
    return [bytes.fromhex(row.zfill(len(row) + len(row) % 2)) for row in text]


def grey_tiff(numbers: Pixels, depth: int, photometric: int = 1) -> bytes:
    height, width = numbers.shape
    rows = numbers.tobytes() if depth == 8 else b"".join(packed(numbers, depth))
    tags = {256: width, 257: height, 258: depth, 259: 1, 262: photometric, 273: 8, 277: 1, 278: height, 279: len(rows)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return struct.pack("<2sHI", b"II", 42, 8 + len(rows)) + rows + directory


GREY = Image.fromarray(NUMBERS)
REMEDY = "save it as a palette or index PNG"
NO_NUMBERS = {
    "RGB": (encoded(GREY.convert("RGB")), f"a mask in mode RGB, expected one label number per pixel; {REMEDY}"),
    "RGBA": (encoded(GREY.convert("RGBA")), f"a mask in mode RGBA, expected one label number per pixel; {REMEDY}"),
    "LA": (encoded(GREY.convert("LA")), f"a mask in mode LA, expected one label number per pixel; {REMEDY}"),
    "F": (encoded(GREY.convert("F"), "TIFF"), f"a mask in mode F, expected one label number per pixel; {REMEDY}"),
    "JPEG": (encoded(GREY, "JPEG"), f"a mask in JPEG, expected PNG, GIF or TIFF; {REMEDY}"),
    "PGM": (encoded(GREY, "PPM"), f"a mask in PPM, expected PNG, GIF or TIFF; {REMEDY}"),
    "2 bits": (grey_tiff(NUMBERS, 2), f"a TIFF of 2 bits; {REMEDY}"),
    "4 bits": (grey_tiff(NUMBERS, 4), f"a TIFF of 4 bits; {REMEDY}"),
    "inverted": (grey_tiff(NUMBERS, 8, 0), f"a TIFF of 8 bits, white is zero; {REMEDY}"),
    "text": (
        b"no image",
        "not an image of a supported format (starts with b'no image'); expected JPEG, PNG, WEBP, BMP, TIFF, GIF, "
        "PPM or AVIF",
    ),
    "empty": (b"", "the file is empty (0 bytes); expected an image"),
    "cut off": (encoded(indexed(np.tile(NUMBERS, (90, 90))))[:-40], "broken image: "),
}


def tree(root: Path, files: Mapping[str, Pixels | bytes | None]) -> Path:
    """Files by path: numbers as a grey PNG, None as a picture of 4x2, bytes as they are."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            Image.new("RGB", (4, 2), (90, 120, 40)).save(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else encoded(Image.fromarray(content)))
    return root


def maps(scenes: LabelledScenes) -> dict[str, Any]:
    return {sample.id: scenes.labels(sample, (2, 4)).tolist() for sample in scenes.dataset.samples}


def refuse(message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(DataError) as refused:
        open_scenes(*args, **options)
    assert str(refused.value) == message


def ade(root: Path, *splits: str) -> Path:
    for split in splits:
        name = f"ADE_{split[:3]}_00000001"
        mask = NUMBERS if split == "validation" else NUMBERS + 147
        tree(root, {f"images/{split}/{name}.jpg": None, f"annotations/{split}/{name}.png": mask})
    return root
