"""Label maps are numbers: read as they are stored, in every encoding, and refused where there are none."""

from __future__ import annotations

import re
import struct
import zlib

import numpy as np
import pytest
from label_files import (
    NO_NUMBERS,
    NUMBERS,
    Pixels,
    encoded,
    grey_tiff,
    indexed,
    packed,
)
from PIL import Image

from robustkit.data.images import read_image, read_index_mask
from robustkit.errors import BadImageError


def grey_png(numbers: Pixels, depth: int) -> bytes:
    height, width = numbers.shape
    rows = b"".join(b"\0" + row for row in packed(numbers, depth))
    header = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


ENCODINGS = {
    "palette": encoded(indexed(NUMBERS)),
    "palette of 2 bits": encoded(indexed(NUMBERS), bits=2),
    "palette with transparency": encoded(indexed(NUMBERS), transparency=0),
    "GIF": encoded(indexed(NUMBERS), "GIF"),
    "palette TIFF": encoded(indexed(NUMBERS), "TIFF"),
    "grey": encoded(Image.fromarray(NUMBERS)),
    "grey with transparency": encoded(Image.fromarray(NUMBERS), transparency=0),
    "grey TIFF": grey_tiff(NUMBERS, 8),
    "grey of 4 bits": grey_png(NUMBERS, 4),
    "grey of 2 bits": grey_png(NUMBERS, 2),
    "16 bits": encoded(Image.fromarray(NUMBERS.astype(np.uint16))),
    "TIFF of 16 bits": encoded(Image.fromarray(NUMBERS.astype(np.uint16)), "TIFF"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_numbers_are_read_as_they_are_stored(encoding: str) -> None:
    read = read_index_mask(ENCODINGS[encoding], "a")
    assert (read.dtype, read.tolist()) == (np.int32, NUMBERS.tolist())


def test_numbers_of_1_and_of_16_bits() -> None:
    bits = Image.fromarray((NUMBERS > 0).astype(np.uint8) * 255).convert("1")
    assert read_index_mask(encoded(bits), "a").tolist() == [[0, 1, 1, 1], [1, 0, 0, 1]]
    large = NUMBERS.astype(np.uint16) * 20000
    for data in (encoded(Image.fromarray(large)), encoded(Image.fromarray(large), "TIFF")):
        assert read_index_mask(data, "a").tolist() == [[0, 20000, 40000, 60000], [60000, 0, 0, 20000]]
    sixteen = np.arange(16, dtype=np.uint8).reshape(8, 2)
    assert read_index_mask(grey_png(sixteen, 4), "a").tolist() == sixteen.tolist()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_masks_are_turned_as_images_are(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = np.asarray(read_image(encoded(Image.fromarray(NUMBERS), exif=exif), "a"))[..., 0].tolist()
    assert upright != NUMBERS.tolist() or orientation == 1
    for image in (indexed(NUMBERS), Image.fromarray(NUMBERS), Image.fromarray(NUMBERS.astype(np.uint16))):
        assert read_index_mask(encoded(image, exif=exif), "a").tolist() == upright


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_holds_no_numbers_is_refused(kind: str) -> None:
    data, message = NO_NUMBERS[kind]
    with pytest.raises(BadImageError, match=f"^masks/a: {re.escape(message)}" + "$" * (kind != "cut off")):
        read_index_mask(data, "masks/a")
