"""Open image files within bounds, and turn them into 8-bit RGB, masks, and the pixels that a model takes.

Colours are read as timm (and so every published ImageNet number) reads them: Pillow's plain conversion to RGB. That
drops an alpha channel without compositing, repeats grey three times, and takes the first frame of an animation. Where
that conversion would go wrong, this module differs on purpose: the EXIF orientation is applied, 16-bit grey is scaled
instead of clipped, float pixels in [0, 1] are scaled, and a picture that is cut off is refused instead of half grey.

Pillow knows some forty formats. One of them starts a program (Ghostscript, for EPS), others are decoded in Python, and
the content decides which one a file is, whatever its name. Only the formats of `FORMATS` are tried here.
"""

from __future__ import annotations

import io
import math
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image, ImageFile, ImageFont, TiffImagePlugin, UnidentifiedImageError, features

from ..common.files import bytes_of
from ..common.preprocessing import INTERPOLATIONS, Preprocessing
from ..errors import BadImageError, DataError
from .class_names import first_names

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from torch import Tensor

T = TypeVar("T")
MAX_RESIZED = 64_000_000  # most pixels of a resized picture; a thin one would grow without bound

_TURNS: dict[object, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_SWAP_SIDES = tuple(_TURNS[tag] for tag in (5, 6, 7, 8))
_TURNED_PNG = (b"eXIf", b"exif", b"adobe.xmp")  # a PNG's entry for its orientation
_SMALL = 40 / 255  # share of the range up to which grey levels of a mask are labels: VOC has 20, Cityscapes 33
_MOST_LABELS = 40
_BLURRED = 0.1  # share of pixels in between, from which on a JPEG was no mask of black and white

_quiet: list[object] = []  # the warning filter that this module keeps installed


def read_image(data: bytes, name: str) -> Image.Image:
    """Decode one image file to 8-bit RGB, upright.

    data: the whole file. name: what to call it in errors.
    Raises BadImageError, with the name, for anything but one whole image in a supported format, of at most 80 million
    pixels (40 million of WebP, AVIF, progressive JPEG, floats and 16 bits of grey). Safe to call from many threads.
    Pillow's own warnings about odd files are silenced from the first call on.
    """
    return decoded(data, name, to_rgb)


@dataclass(frozen=True)
class ImageSizes:
    """(width, height) of an image as its file stores it, and upright. turn: how to get there; None for no turn."""

    stored: tuple[int, int]
    upright: tuple[int, int]
    turn: Image.Transpose | None = None

    def turned(self, box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        """Return where a box of the stored pixels lies in the upright image."""
        (x0, y0, x1, y1), (width, height) = box, self.stored
        if self.turn in (_TURNS[2], _TURNS[3], _TURNS[7], _TURNS[8]):
            x0, x1 = width - x1, width - x0
        if self.turn in (_TURNS[3], _TURNS[4], _TURNS[6], _TURNS[7]):
            y0, y1 = height - y1, height - y0
        return (y0, x0, y1, x1) if self.turn in _SWAP_SIDES else (x0, y0, x1, y1)


def image_sizes(data: bytes) -> ImageSizes | None:
    """Return the sizes of an image as `read_image` decodes it; None if its header cannot be read."""
    _quiet_pillow()
    try:
        with open_picture(data) as image:
            size, turn = image.size, None
            # Pillow has already applied a TIFF's to its size, and decodes the whole of a PNG, in case that it is last.
            if any(mark in data for mark in _TURNED_PNG) if image.format == "PNG" else image.format != "TIFF":
                turn = turn_of(image)
            return ImageSizes(size, size[::-1] if turn in _SWAP_SIDES else size, turn)
    except Exception:  # reading the whole image will report what is wrong
        return None


def check_turn(image: ImageSizes | None, mask: ImageSizes | None, name: str) -> None:
    """Raise BadImageError for a mask that fits the stored image as well as the upright one. name: of the image."""
    turned = image is not None and image.turn is not None and image.stored == image.upright
    if turned and image is not None and (mask is None or mask.turn != image.turn):
        why = "EXIF data rotate the image, and it is unclear whether the mask matches the stored or the upright image"
        raise BadImageError(f"{name}: {why}; save the image upright")


@dataclass(frozen=True)
class ObjectMask:
    """Which pixels of an upright image are the object, (H, W) bool. values: the numbers that count as object, none
    where half of a soft range decides. void: the number that counts as neither, here 255 or 65535; None without one.
    """

    pixels: npt.NDArray[np.bool_]
    values: tuple[int, ...] = ()
    void: int | None = None


def object_mask(data: bytes, name: str, void: bool = False) -> ObjectMask:
    """Decode one mask of an object, upright. void: whether the largest number is void, whatever else is in this mask.
    Each pixel has one number: a palette's index, or grey (also a black, white or grey palette, and three equal
    channels). The object is what is not 0 where there is one other number, or where numbers are labels: those of a
    palette, or up to 40. 255 (65535 of 16 bits) next to smaller labels is void, as in Pascal VOC. Where grey levels are
    soft, on both sides of half of the range, it is the upper half. BadImageError for colours, transparency, floats, and
    numbers that may mean several things.
    """
    numbers, labels = decoded(data, name, _to_numbers)
    if not labels and data.startswith(b"\x89PNG"):
        numbers //= _stretched(data)
    values: list[int] = np.unique(numbers).tolist()
    largest = 65535 if values[-1] > 255 else 255
    others = [value for value in values if 0 < value < largest]
    small = not others or labels or others[-1] <= _SMALL * largest
    examples = first_names([str(value) for value in values])
    if void and values[-1] == largest and small:
        return ObjectMask(np.isin(numbers, others), tuple(others), largest)
    if len(values) == 1 and (values[0] < 2 or values[0] > largest // 2):
        return ObjectMask(numbers > 0, tuple(values[:1] if values[0] else ()))
    if values[0] == 0 and len(values) == 2:
        return ObjectMask(numbers > 0, (values[1],))
    if (values[0] == 0 or labels) and small and (labels or len(others) <= _MOST_LABELS):
        return ObjectMask(np.isin(numbers, others), tuple(others), largest if values[-1] == largest else None)
    if not labels and len(values) > 1 and values[-1] > largest // 2 and (len(others) > 1 or values[0] > 0):
        blurred = data[:2] == b"\xff\xd8" and ((numbers > 3) & (numbers < 252)).mean() > _BLURRED
        if not blurred and not (values[-1] == largest and others and others[-1] <= largest // 2):
            return ObjectMask(numbers > largest // 2)
    raise BadImageError(
        f"{name}: a mask of the numbers {examples}, which is ambiguous; expected 0 for the background and one "
        f"number for the object, or labels up to {int(_SMALL * largest)} with {largest} as void, as PNG"
    )


def _to_numbers(image: Image.Image, name: str) -> tuple[npt.NDArray[Any], bool]:
    """Return the numbers of a mask, upright, in 8 or 16 bits, and whether they are labels: those of a palette."""
    image = upright(image)
    if image.mode.startswith("I"):
        numbers: npt.NDArray[Any] = np.asarray(image)
        if numbers.min() < 0 or numbers.max() > 65535:
            raise BadImageError(f"{name}: mask values outside 0 … 65535; save it with 8 or 16 bits")
        return numbers.astype(np.uint16), False
    if image.mode in ("1", "L"):
        return np.array(image.convert("L")), False
    rgb = image if image.mode in ("RGB", "RGBA") else image.convert("RGB")  # no copy of a large picture
    levels: npt.NDArray[Any] = np.array(rgb.getchannel("R"))
    grey = all(np.array_equal(levels, np.asarray(rgb.getchannel(channel))) for channel in "GB")
    if image.mode == "P":
        indices: npt.NDArray[Any] = np.array(image)
        if grey and (np.unique(levels).tolist() == [0, 255] or np.array_equal(levels, indices)):
            return levels, False
        return indices, True
    opaque = image.mode in ("RGB", "YCbCr", "CMYK")
    if image.mode == "F" or not grey or not (opaque or _evenly_opaque(image)):
        kind = f"{'floats' if image.mode == 'F' else 'colours or transparency'} (mode {image.mode})"
        expected = "one number per pixel; save it as a grey or palette PNG"
        raise BadImageError(f"{name}: a mask of {kind}, expected {expected}")
    return levels, False


def _evenly_opaque(image: Image.Image) -> bool:
    """Whether all pixels are equally opaque."""
    low, high = (image if image.mode == "RGBA" else image.convert("RGBA")).getchannel("A").getextrema()
    return low == high


def _stretched(data: bytes) -> int:
    """Return by what Pillow multiplies the grey levels of a PNG, to stretch 2 or 4 bits over 0 … 255."""
    depth, colour = data[24:26]  # the header, which comes first
    return 255 // (2**depth - 1) if colour == 0 and depth in (2, 4) else 1


def read_index_mask(data: bytes, name: str) -> npt.NDArray[np.int32]:
    """Decode one mask of label numbers, upright: (H, W) int32, the numbers as the file stores them.

    They are the indices of a palette, whatever its colours, or grey of 1 to 16 bits; Pillow would stretch grey of 2 or
    4 bits over 0 … 255. Raises BadImageError as `read_image` does, and for pixels of more than one number (colours, an
    alpha channel) and floats, and for files whose numbers Pillow does not give (JPEG, PGM, some TIFF).
    """
    values = decoded(data, name, _to_indices)
    if data.startswith(b"\x89PNG"):
        values //= _stretched(data)
    return values


def to_pixels(image: Image.Image, preprocessing: Preprocessing, name: str = "the image") -> Tensor:
    """Resize and crop an RGB image as timm's evaluation transform does, bit for bit: (3, H, W) uint8. Raises
    BadImageError, with the name, for a picture so thin that its long side would become too long.
    """
    height, width = _resized(image.height, image.width, preprocessing)
    if height * width > MAX_RESIZED or min(height, width) < 1:
        thin = f"{image.width} x {image.height} pixels: too narrow, since resized it would be {width} x {height}"
        raise BadImageError(f"{name}: {thin}, at most {MAX_RESIZED // 1_000_000} million pixels are supported; crop it")
    return _transform(preprocessing)(image)


def unit_pixels(pixels: Tensor) -> Tensor:
    """Return what a model takes of an image in float32 on [0, 1]: of 8 bits scaled, floats as they are."""
    return pixels if pixels.is_floating_point() else to_unit_range(pixels)


def to_unit_range(levels: Tensor) -> Tensor:
    """Return grey levels of 0 … 255, or differences of them, in float32 on [0, 1]: the same bits on every device."""
    values = levels.float()
    return values / values.new_full((), 255.0)


def _resized(height: int, width: int, p: Preprocessing) -> tuple[int, int]:
    """Return (height, width) after the resize, before the crop, to a pixel."""
    target = [math.floor(side / p.crop_pct) for side in p.input_size]
    if p.crop_mode == "squash":
        return target[0], target[1]
    scale = (min if p.crop_mode == "border" else max)(target[0] / height, target[1] / width)
    return round(height * scale), round(width * scale)


@lru_cache(maxsize=32)
def _transform(p: Preprocessing) -> Callable[[Image.Image], Tensor]:
    from timm.data.transforms_factory import create_transform

    if p.interpolation not in INTERPOLATIONS:
        raise DataError(f"interpolation {p.interpolation!r}: expected one of {', '.join(INTERPOLATIONS)}")
    names = ("interpolation", "mean", "std", "crop_pct", "crop_mode")
    options: dict[str, Any] = {name: getattr(p, name) for name in names} | {"is_training": False, "normalize": False}
    options |= {"crop_mode": "center"} if p.crop_mode == "center-floor" else {}
    transform: Callable[[Image.Image], Tensor] = create_transform(input_size=(3, *p.input_size), **options)
    if p.crop_mode == "center-floor":
        steps = transform.transforms  # type: ignore[attr-defined]
        floored = partial(_crop_floor, p.input_size)  # half a pixel rounded down
        steps[:] = [floored if type(step).__name__ == "CenterCrop" else step for step in steps]
    return transform


def _crop_floor(size: tuple[int, int], image: Image.Image) -> Image.Image:
    left, top = (image.width - size[1]) // 2, (image.height - size[0]) // 2
    return image.crop((left, top, left + size[1], top + size[0]))


def encode_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode (H, W, 3) uint8 as an uncompressed PNG whose bytes are the same with every version of every library."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + width * 3), np.uint8)  # each row starts with filter type 0
    rows[:, 1:] = pixels.reshape(height, -1)
    raw = rows.tobytes()
    blocks = [raw[i : i + 65535] for i in range(0, len(raw), 65535)]
    heads = (struct.pack("<BHH", i == len(blocks) - 1, len(b), len(b) ^ 0xFFFF) for i, b in enumerate(blocks))
    stored = b"".join(head + block for head, block in zip(heads, blocks, strict=True))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    body = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(raw))
    for kind, data in ((b"IHDR", header), (b"IDAT", body), (b"IEND", b"")):
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png


def decoded(data: bytes, name: str, use: Callable[[Image.Image, str], T]) -> T:
    if not data:
        raise BadImageError(f"{name}: the file is empty (0 bytes); expected an image")
    _quiet_pillow()
    try:
        with open_picture(data) as image:
            image.load()
            return use(image, name)
    except BadImageError:
        raise
    except Refused as fault:
        raise BadImageError(f"{name}: {fault}") from None
    except UnidentifiedImageError:
        kinds, begin = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}", repr(data[:8])
        why = f"not an image of a supported format (starts with {begin})"
        raise BadImageError(f"{name}: {why}; expected {kinds}") from None
    except MemoryError:
        raise BadImageError(f"{name}: too large for this machine's memory") from None
    except Exception as error:  # Pillow's decoders may raise anything for a broken file
        message = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadImageError(f"{name}: broken image: {message}") from None


def upright(image: Image.Image) -> Image.Image:
    turn = turn_of(image)
    return image if turn is None else image.transpose(turn)


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """Return how to turn a picture upright, as its EXIF data say; None for no turn."""
    try:
        check_exif(image)
        return _TURNS.get(image.getexif().get(_ORIENTATION))
    except Refused:  # for another entry
        entries = ((tag, value) for tag, _, count, value in _directory(_exif_of(image)) if count == 1)
        return _TURNS.get(dict(entries).get(_ORIENTATION))
    except Exception:  # EXIF that cannot be parsed says nothing about the orientation
        return None


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    image = upright(image)
    if image.mode.startswith("I"):  # I;16, I;16B, I;16L, I
        values: npt.NDArray[Any] = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BadImageError(f"{name}: 32-bit integer pixels outside 0 … 65535; save it with 8 or 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")  # as Pillow does for 16-bit colour
    if image.mode == "F":
        values = np.asarray(image)
        if not (values.min() >= 0 and values.max() <= 1):  # also true for NaN
            raise BadImageError(f"{name}: float pixels outside [0, 1]; save it with 8 or 16 bits")
        return Image.fromarray((values * 255).round().astype(np.uint8)).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_indices(image: Image.Image, name: str) -> npt.NDArray[np.int32]:
    remedy = "save it as a palette or index PNG"
    if image.format not in ("PNG", "GIF", "TIFF"):
        raise BadImageError(f"{name}: a mask in {image.format}, expected PNG, GIF or TIFF; {remedy}")
    if image.mode not in ("1", "L", "P") and not image.mode.startswith("I"):
        raise BadImageError(f"{name}: a mask in mode {image.mode}, expected one label number per pixel; {remedy}")
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        inverted, bits = image.tag_v2.get(262) == 0, image.tag_v2.get(258, (1,))[0]  # white is zero; bits per sample
        if inverted or bits in (2, 4):
            raise BadImageError(f"{name}: a TIFF of {bits} bits{', white is zero' * inverted}; {remedy}")
    return np.asarray(upright(image)).astype(np.int32)


def _quiet_pillow() -> None:
    """Silence Pillow's warnings by a filter (`catch_warnings` is not safe among threads); accept no cut-off picture."""
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    if not _quiet or _quiet[0] not in warnings.filters:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        _quiet[:] = warnings.filters[:1]


FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF")
"""AVIF where Pillow was built with it. JPEG includes the several pictures of MPO, PPM also PGM, PBM and PFM."""
MAX_PIXELS = 80_000_000  # 0.3 GB in Pillow, twice that while it is turned; Pillow itself warns from 89 million on
MAX_SIDE = 65_535  # JPEG's own bound
_MAX_BYTES = 1 << 28  # bytes of a file that is opened by its path
_EXPENSIVE = 40_000_000
"""Pixels where the decoder, or what is computed of the pixels, takes more memory: WebP, AVIF, progressive JPEG, modes
of more than 8 bits. Chosen by measuring, so that no picture takes more than 0.7 GB."""
_TOO_MANY = "it has too many or self-referencing parts; save it as PNG"
_SEGMENTS = 100_000  # segments of a JPEG before its pixels, or bytes between them
_ENTRIES = 65_535  # entries of a directory, as many as the older kind of TIFF can have
_READS = 500_000  # parts of a file, each some steps of Python: a few seconds
_NUMBERS = 1 << 19  # numbers in a TIFF entry: the strips or tiles of the largest picture
_SCANNED = 4_000_000_000  # pixels that the scans of a progressive JPEG may go over, together
_IN_PYTHON = ("bmp_rle", "ppm", "ppm_plain")  # decoders of Pillow: compressed BMP, PPM of odd levels or in decimals
_FEW = 2_000_000  # pixels that these decode within seconds
_COMMENTS = 1000  # in a PPM of decimal numbers, each of which copies a megabyte
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TILE_WIDTH, _TILE_LENGTH, _ORIENTATION = 322, 323, 0x0112
_PARTS = (34665, 34853, 40965)  # directories of a TIFF that Pillow reads, too: EXIF, GPS, interoperability

_HEAD = 10  # bytes of a JPEG's segment before its EXIF data

_lock = threading.Lock()


class Refused(Exception):  # noqa: N818 - what became of the picture
    """A picture that would take too much memory or time; the text says why, without the file's name."""


def open_picture(source: bytes | Path) -> Image.Image:
    """Open a picture without decoding it; safe among threads. Refused for too much memory or time; else OSError."""
    data = bytes_of(source, _MAX_BYTES) if isinstance(source, Path) else source
    ignored = b""
    if data[:2] == b"\xff\xd8":
        data, ignored = _without_huge_exif(data)
    else:
        _check_head(data)
    file = _Frugal(data)
    with _lock:  # ours is checked instead of Pillow's own size limit
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            image = Image.open(file, formats=_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = before
    if ignored:  # Pillow is not asked for it again: `check_exif` comes first
        image.info["exif"] = ignored
    file.bytes_left = math.inf  # each of many strips is read in larger blocks
    try:
        _check_image(image, data)
    except BaseException:
        image.close()
        raise
    return image


def check_exif(image: Image.Image) -> None:
    """Raise Refused where Pillow would read many times more EXIF data than the file holds."""
    _check_directory(_exif_of(image))


def _exif_of(image: Image.Image) -> bytes:
    exif = image.info.get("exif")
    if exif is None and "Raw profile type exif" in image.info:
        exif = bytes.fromhex("".join(str(image.info["Raw profile type exif"]).split("\n")[3:]))
    return exif.removeprefix(b"Exif\0\0") if isinstance(exif, bytes) else b""


def has_broken_exif(data: bytes) -> bool:
    """Whether a file is a JPEG some of whose EXIF data cannot be read. Such data are ignored, except for the
    orientation where that can be read.
    """
    try:
        exif = b"".join(data[start:end] for start, end in _exif_segments(data)) if data[:2] == b"\xff\xd8" else b""
        _check_directory(exif)
        entries = list(_directory(exif, strict=True))
    except (Refused, struct.error):
        return True
    lengths = ((_SIZES.get(kind, 0) * count, value) for _, kind, count, value in entries)
    return bool(exif) and any(length > 4 and place + length > len(exif) for length, place in lengths)


def _without_huge_exif(data: bytes) -> tuple[bytes, bytes]:
    """Return a JPEG without the EXIF data that `_check_directory` refuses, and these, empty where there are none."""
    segments = list(_exif_segments(data))
    exif = b"".join(data[start:end] for start, end in segments)
    try:
        _check_directory(exif)
    except Refused:
        ends = [2, *(end for _, end in segments)]
        starts = [*(start - _HEAD for start, _ in segments), len(data)]
        parts = [data[start:end] for start, end in zip(ends, starts, strict=True)]
        return b"".join((data[:2], *parts)), exif
    return data, b""


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
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        _check_directory(data)
    elif data[4:8] == b"ftyp" and b"Exif" in data and len(data) > 1 << 16:
        raise Refused(f"an AVIF of {len(data) >> 10} kB with EXIF data; expected 64 kB at most; save it as PNG")
    elif data[:2] in (b"P1", b"P2", b"P3") and data.count(b"#") > _COMMENTS:
        raise Refused("a PPM with too many comments; save it as PNG")


def _exif_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where EXIF data of a JPEG begin and end, after `_HEAD` bytes. Only the order of segments is read."""
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
            yield at + _HEAD, at + 2 + length
        at += 2 + length


def _check_directory(data: bytes) -> None:
    """Refuse TIFF entries that claim more than the file holds: old Pillows make gigabytes of a megabyte."""
    claimed, tile = 0, {_TILE_WIDTH: 1, _TILE_LENGTH: 1}
    entries = list(_directory(data))
    parts = {tag: value for tag, *_, value in entries if tag in _PARTS}
    for part in parts.values():
        entries += _directory(data, part)
    for tag, kind, count, value in entries:
        size = _SIZES.get(kind, 0)
        if count > _NUMBERS and kind not in (1, 2, 6, 7):
            raise Refused(f"{count} numbers in a TIFF entry; expected {_NUMBERS} at most; save it as PNG")
        claimed += size * count
        if tag in tile:
            tile[tag] = value
    if claimed > 2 * len(data) + (1 << 20):
        raise Refused(f"TIFF entries of {claimed >> 20} MB in {len(data) >> 10} kB; save it as PNG")
    if tile[_TILE_WIDTH] * tile[_TILE_LENGTH] > MAX_PIXELS:
        raise Refused(f"tiles of {tile[_TILE_WIDTH]} x {tile[_TILE_LENGTH]} pixels; save it as PNG")


def _directory(data: bytes, start: int | None = None, strict: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Yield (tag, type, count, value where it stands in the entry) of a TIFF's directory at `start`, or its first.
    strict: raise struct.error where it ends early, or does not begin, if there are data at all.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 8:
        if strict and data:
            raise struct.error("no directory")
        return
    big = struct.unpack_from(f"{order}H", data, 2)[0] == 43
    entry, head = (struct.Struct(f"{order}HHQ8s"), "Q") if big else (struct.Struct(f"{order}HHL4s"), "H")
    try:
        (at,) = struct.unpack_from(f"{order}Q" if big else f"{order}L", data, 8 if big else 4)
        at = at if start is None else start
        (count,) = struct.unpack_from(order + head, data, at)
        if count > _ENTRIES:
            raise Refused(f"a TIFF directory of {count} entries; save it as PNG")
        at += struct.calcsize(order + head)
        for place in range(count):
            tag, kind, numbers, raw = entry.unpack_from(data, at + place * entry.size)
            short = struct.unpack(f"{order}H", raw[:2])[0]
            yield tag, kind, numbers, short if kind == 3 else struct.unpack(f"{order}L", raw[:4])[0]
    except (struct.error, OverflowError) as fault:  # it ends early, which Pillow will report
        if strict:
            raise struct.error("it ends early") from fault


def _check_image(image: Image.Image, data: bytes) -> None:
    width, height = image.size
    expensive = image.format in ("WEBP", "AVIF") or image.info.get("progressive") or image.mode[0] in "IF"
    most = min(MAX_PIXELS, _EXPENSIVE) if expensive else MAX_PIXELS
    tiles: Any = getattr(image, "tile", ())
    if tiles and tiles[0][0] in _IN_PYTHON:
        most = min(most, _FEW)
    if width * height > most:
        raise Refused(f"{width} x {height} pixels; at most {most / 1e6:g} million are supported; shrink it")
    if max(width, height) > MAX_SIDE:
        raise Refused(f"{width} x {height} pixels; a side has at most {MAX_SIDE}; cut it")
    scans = data.count(b"\xff\xda") if image.info.get("progressive") else 1
    if scans * width * height > _SCANNED:
        raise Refused(f"a JPEG of {width} x {height} pixels in {scans} scans; save it again")


# Sheets of pictures: colours, fonts

PAPER, INK, FAINT, RULE = (255, 255, 255), (24, 27, 33), (110, 116, 126), (216, 219, 224)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return letters for pictures, matplotlib's: Pillow's own lack `−`, `×`, `ε` and arrows."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def fit_text(text: str, size: int, width: int) -> str:
    """Return the text, with its middle left out where it would be wider."""
    face = font(size)
    keep = len(text)
    short = text
    while face.getlength(short) > width and keep > 8:
        keep -= 1
        short = f"{text[: keep // 2]}...{text[len(text) - (keep - keep // 2) :]}"
    return short
