"""Open pictures of a few formats with Pillow, within bounds that are checked before a pixel is decoded.

Pillow knows some forty formats. One of them starts a program (Ghostscript, for EPS), others are decoded in Python, and
the content decides which one a file is, whatever its name. Only the formats of `FORMATS` are tried here.
"""

from __future__ import annotations

import io
import math
import struct
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image, features

from ..common.files import bytes_of

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
"""AVIF where Pillow was built with it. JPEG includes the several pictures of MPO, PPM also PGM, PBM and PFM."""
MAX_PIXELS = 80_000_000  # 0.3 GB in Pillow, twice that while it is turned; Pillow itself warns from 89 million on
MAX_SIDE = 65_535  # JPEG's own bound
_MAX_BYTES = 1 << 28  # bytes of a file that is opened by its path
_EXPENSIVE = 40_000_000
"""Pixels where the decoder, or what is computed of the pixels, takes more memory: WebP, AVIF, progressive JPEG, modes
of more than 8 bits. Chosen by measuring, so that no picture takes more than 0.7 GB."""
_TOO_MANY = "it has too many parts, or parts that stand for each other; save it again, as PNG"
_SEGMENTS = 100_000  # segments of a JPEG before its pixels, or bytes between them
_ENTRIES = 65_535  # entries of a directory, as many as the older kind of TIFF can have
_READS = 500_000  # parts of a file, each some steps of Python: a few seconds
_NUMBERS = 1 << 19  # numbers in a TIFF entry: the strips or tiles of the largest picture
_SCANNED = 4_000_000_000  # pixels that the scans of a progressive JPEG may go over, together
_IN_PYTHON = ("bmp_rle", "ppm", "ppm_plain")  # decoders of Pillow: compressed BMP, PPM of odd levels or in decimals
_FEW = 2_000_000  # pixels that these decode within seconds
_COMMENTS = 1000  # in a PPM of decimal numbers, each of which copies a megabyte
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_PARTS = (34665, 34853, 40965)  # directories of a TIFF that Pillow reads, too: EXIF, GPS, interoperability

_lock = threading.Lock()


class Refused(Exception):  # noqa: N818 - what became of the picture
    """A picture that would take too much memory or time; the text says why, without the file's name."""


def open_picture(source: bytes | Path) -> Image.Image:
    """Open the bytes of a picture, or a file by its path, without decoding it. Safe to call from many threads.

    Raises Refused for one that is too large or that would take too much memory or time, OSError for what is not a plain
    file, PIL.UnidentifiedImageError for another format; and whatever Pillow raises for a broken header.
    """
    data = bytes_of(source, _MAX_BYTES) if isinstance(source, Path) else source
    _check_head(data)
    file = _Frugal(data)
    with _lock:  # ours is checked instead of Pillow's own size limit
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(file, formats=_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = before
    file.bytes_left = math.inf  # each of many strips is read in larger blocks
    try:
        _check_image(image, data)
    except BaseException:
        image.close()
        raise
    return image


def check_exif(image: Image.Image) -> None:
    """Raise Refused where Pillow would read many times more EXIF data than the file holds."""
    exif = image.info.get("exif")
    if exif is None and "Raw profile type exif" in image.info:
        exif = bytes.fromhex("".join(str(image.info["Raw profile type exif"]).split("\n")[3:]))
    if isinstance(exif, bytes):
        _check_directory(exif[6:] if exif.startswith(b"Exif\0\0") else exif)


@lru_cache(maxsize=1)
def _formats() -> tuple[str, ...]:
    return FORMATS if "avif" in features.get_supported_modules() else FORMATS[:-1]


class _Frugal(io.BytesIO):
    """Bytes that may not be read more often than a picture needs: Pillow follows headers, blocks and runs in Python."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.left, self.bytes_left = _READS, 3.0 * len(data) + (64 << 20)

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.left -= 1
        self.bytes_left -= len(data)
        if self.left < 0 or self.bytes_left < 0:
            raise Refused(_TOO_MANY)
        return data


def _check_head(data: bytes) -> None:
    """Check what Pillow reads on opening."""
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_directory(data)
    elif data[:2] == b"\xff\xd8":
        _check_directory(b"".join(_exif_segments(data)))
    elif data[4:8] == b"ftyp" and b"Exif" in data and len(data) > 1 << 16:
        raise Refused(f"an AVIF of {len(data) >> 10} kB with EXIF data; expected 64 kB at most; save it as PNG")
    elif data[:2] in (b"P1", b"P2", b"P3") and data.count(b"#") > _COMMENTS:
        raise Refused("a PPM of too many comments; save it as PNG")


def _exif_segments(data: bytes) -> Iterator[bytes]:
    """Yield the EXIF data of a JPEG, which may be split among segments. Only the order of segments is read."""
    at, left = 2, _SEGMENTS
    while data[at : at + 1] == b"\xff":
        left -= 1
        if left < 0:
            raise Refused(_TOO_MANY)
        kind = data[at + 1 : at + 2]
        if kind == b"\xff":  # padding
            at += 1
            continue
        if kind == b"\xda" or len(data) < at + 4:  # the picture itself begins
            return
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if kind == b"\xe1" and data[at + 4 : at + 10] == b"Exif\0\0":
            yield data[at + 10 : at + 2 + length]
        at += 2 + length


def _check_directory(data: bytes) -> None:
    """Raise Refused where the entries of a TIFF header claim more than the file can hold: each may name the same bytes,
    so that a megabyte becomes a hundred gigabytes where Pillow is too old to notice.
    """
    claimed, tile = 0, {_TILE_WIDTH: 1, _TILE_LENGTH: 1}
    entries = list(_directory(data))
    parts = {tag: value for tag, *_, value in entries if tag in _PARTS}
    for part in parts.values():
        entries += _directory(data, part)
    for tag, kind, count, value in entries:
        size = _SIZES.get(kind, 0)
        if count > _NUMBERS and kind not in (1, 2, 6, 7):
            raise Refused(f"{count} numbers in a TIFF entry; expected {_NUMBERS} at most; save it again, as PNG")
        claimed += size * count
        if tag in tile:
            tile[tag] = value
    if claimed > 2 * len(data) + (1 << 20):
        raise Refused(f"TIFF entries of {claimed >> 20} MB in {len(data) >> 10} kB; save it again, as PNG")
    if tile[_TILE_WIDTH] * tile[_TILE_LENGTH] > MAX_PIXELS:
        raise Refused(f"tiles of {tile[_TILE_WIDTH]} x {tile[_TILE_LENGTH]} pixels; save it again, as PNG")


def _directory(data: bytes, start: int | None = None) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, type, count, value where it stands in the entry) of a TIFF's directory at `start`, or its first."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 8:
        return
    big = struct.unpack_from(f"{order}H", data, 2)[0] == 43
    entry, head = (struct.Struct(f"{order}HHQ8s"), "Q") if big else (struct.Struct(f"{order}HHL4s"), "H")
    try:
        (at,) = struct.unpack_from(f"{order}Q" if big else f"{order}L", data, 8 if big else 4)
        at = at if start is None else start
        (count,) = struct.unpack_from(order + head, data, at)
        if count > _ENTRIES:
            raise Refused(f"a TIFF directory of {count} entries; save it again, as PNG")
        at += struct.calcsize(order + head)
        for place in range(count):
            tag, kind, numbers, raw = entry.unpack_from(data, at + place * entry.size)
            short = struct.unpack(f"{order}H", raw[:2])[0]
            yield tag, kind, numbers, short if kind == 3 else struct.unpack(f"{order}L", raw[:4])[0]
    except (struct.error, OverflowError):  # it ends early, which Pillow will report
        return


def _check_image(image: Image.Image, data: bytes) -> None:
    width, height = image.size
    expensive = image.format in ("WEBP", "AVIF") or image.info.get("progressive") or image.mode[0] in "IF"
    most = min(MAX_PIXELS, _EXPENSIVE) if expensive else MAX_PIXELS
    tiles: Any = getattr(image, "tile", ())
    if tiles and tiles[0][0] in _IN_PYTHON:
        most = min(most, _FEW)
    if width * height > most:
        raise Refused(f"{width} x {height} pixels; at most {most / 1e6:g} million are read; shrink it")
    if max(width, height) > MAX_SIDE:
        raise Refused(f"{width} x {height} pixels; a side has at most {MAX_SIDE}; cut it")
    scans = data.count(b"\xff\xda") if image.info.get("progressive") else 1
    if scans * width * height > _SCANNED:
        raise Refused(f"a JPEG of {width} x {height} pixels in {scans} scans; save it again")
