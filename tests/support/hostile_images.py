"""Pictures that mean harm, each made by a function: other formats, claims, bombs, loops."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from PIL import Image

SIDE, DEAR = 8_944, 6_324  # whose squares are just below the largest pictures that are read


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


EPS = saved(Image.new("RGB", (9, 9)), "EPS")


def plain(mode: str, width: int, height: int, kind: str, **options: Any) -> Callable[[], bytes]:
    return lambda: saved(Image.new(mode, (width, height)), kind, **options)


# --- PNG -------------------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def zeros(count: int) -> bytes:
    """A zlib stream of that many zero bytes, without holding them."""
    made, block = zlib.compressobj(1), bytes(1 << 20)
    parts = [made.compress(block) for _ in range(count >> 20)]
    return b"".join([*parts, made.compress(bytes(count & ((1 << 20) - 1))), made.flush()])


def png(
    width: int, height: int, bits: int = 8, colour: int = 0, extra: bytes = b"", pixels: bytes | None = None
) -> bytes:
    """A PNG of zeros. colour: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = 1 + (width * bits * channels + 7) // 8
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    table = chunk(b"PLTE", bytes(range(256)) * 3) + chunk(b"tRNS", bytes(256)) if colour == 3 else b""
    body = zeros(row * height) if pixels is None else pixels
    return b"\x89PNG\r\n\x1a\n" + head + extra + table + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def claimed(width: int, height: int) -> bytes:
    return png(width, height, 1, pixels=zlib.compress(bytes(1000)))


# --- EXIF and TIFF ---------------------------------------------------------------------------------------------------

Entries = Iterable[tuple[int, int, int, int]]


def tiff(entries: Entries, rest: bytes = b"", after: int = 0) -> bytes:
    """A little-endian TIFF header, its directory at 8, and `rest` behind it."""
    packed = [struct.pack("<HHLL", *entry) for entry in entries]
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(packed)) + b"".join(packed) + struct.pack("<L", after) + rest


def amplified(count: int, size: int) -> bytes:
    """A directory whose entries all name the same bytes."""
    return tiff(((1000 + tag, 7, size, 8) for tag in range(count)), bytes(size))


def picture_tags(width: int, height: int, **other: int) -> list[tuple[int, int, int, int]]:
    """The entries of a grey TIFF of one strip. other: t322=16 adds or changes a tag, of type LONG."""
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: 99}
    tags |= {int(name[1:]): value for name, value in other.items()}
    return [(tag, 4, 1, value) for tag, value in sorted(tags.items())]


def many_strips(count: int) -> bytes:
    tags = [tag for tag in picture_tags(1, 65_000, t278=1) if tag[0] not in (273, 279)]
    start = 8 + 2 + 12 * (len(tags) + 2) + 4
    entries = sorted([*tags, (273, 4, count, start), (279, 4, count, start)])
    return tiff(entries, struct.pack("<L", 8) * count)


def big_tiff(count: int) -> bytes:
    entry = struct.pack("<HHQQ", 273, 16, 1 << 60, 16)
    return b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, count) + entry


def exif_of_jpeg(exif: bytes) -> bytes:
    """A JPEG without JFIF header, so that Pillow looks up its resolution in the EXIF data on opening it."""
    image = saved(Image.new("RGB", (8, 8)), "JPEG")
    jfif = 4 + int.from_bytes(image[4:6], "big")
    parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts]
    return image[:2] + b"".join(segments) + image[jfif:]


def raw_profile() -> bytes:
    text = "\nexif\n   100\n" + amplified(20_000, 200_000).hex()
    return png(4, 4, extra=chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text.encode())))


# --- JPEG, GIF, WebP, BMP, PPM ---------------------------------------------------------------------------------------


def scans(side: int, count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    data = saved(Image.new("L", (side, side)), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + b"\xff\xd9"


def segments(count: int) -> bytes:
    data = saved(Image.new("L", (8, 8)), "JPEG")
    return data[:2] + b"\xff\xfe\0\x02" * count + data[2:]


def gif(width: int, height: int, blocks: bytes = b"") -> bytes:
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\0;"
    return head + blocks + frame


def frames(kind: str, count: int, side: int) -> Callable[[], bytes]:
    def make() -> bytes:
        first, *rest = (Image.new("RGB", (side, side), (place % 256, place // 256 % 256, 0)) for place in range(count))
        return saved(first, kind, save_all=True, append_images=rest)

    return make


def webp_claim() -> bytes:
    """An extended WebP of 16384 x 16384 without frames."""
    body = b"WEBPVP8X" + struct.pack("<L", 10) + b"\x02\0\0\0" + b"\xff\x3f\0" * 2
    return b"RIFF" + struct.pack("<L", len(body)) + body


def webp_with(exif: bytes) -> bytes:
    return saved(Image.new("RGB", (8, 8)), "WEBP", exif=b"Exif\0\0" + exif)


def bmp(width: int, height: int, bits: int, compression: int, pixels: bytes) -> bytes:
    head = struct.pack("<LllHHLLllLL", 40, width, height, 1, bits, compression, len(pixels), 0, 0, 256, 0)
    table = bytes(1024)
    return b"BM" + struct.pack("<LHHL", 14 + 40 + 1024 + len(pixels), 0, 0, 14 + 40 + 1024) + head + table + pixels


def avif(width: int, height: int, **options: Any) -> Callable[[], bytes]:
    return plain("RGB", width, height, "AVIF", **options)


REFUSED = "not an image of a supported format"
TOO_LARGE = "million are supported; shrink it"
TOO_MANY = "it has too many or self-referencing parts"
SHARED = r"TIFF entries of \d+ MB in \d+ kB"
BROKEN = "broken image: "
FINE = "fine: "
"""What a picture becomes that is odd and no harm."""
Case = tuple[Callable[[], bytes], str]

IMAGES: dict[str, Case] = {
    # other formats under the name of a JPEG
    "eps": (lambda: EPS, REFUSED),
    "eps in a DOS file": (lambda: struct.pack("<4sLL20x", b"\xc5\xd0\xd3\xc6", 32, len(EPS)) + EPS, REFUSED),
    "pdf": (plain("RGB", 8, 8, "PDF"), REFUSED),
    "jpeg 2000": (plain("RGB", 8, 8, "JPEG2000"), REFUSED),
    "ico": (plain("RGB", 8, 8, "ICO"), REFUSED),
    "icns": (plain("RGB", 16, 16, "ICNS"), REFUSED),
    "dds": (plain("RGB", 8, 8, "DDS"), REFUSED),
    "tga": (plain("RGB", 8, 8, "TGA"), REFUSED),
    "sgi": (plain("RGB", 8, 8, "SGI"), REFUSED),
    "pcx": (plain("RGB", 8, 8, "PCX"), REFUSED),
    "psd": (lambda: b"8BPS\0\x01" + bytes(6) + struct.pack(">HLLHH", 3, 9, 9, 8, 3) + bytes(99), REFUSED),
    "wmf": (lambda: b"\xd7\xcd\xc6\x9a" + bytes(99), REFUSED),
    "fits": (lambda: b"SIMPLE  =                    T".ljust(2880), REFUSED),
    "xbm": (plain("1", 8, 8, "XBM"), REFUSED),
    "svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><image href='/etc/passwd'/></svg>", REFUSED),
    # more pixels than are read
    "png claims 10^10": (lambda: claimed(100_000, 100_000), TOO_LARGE),
    "png claims 2^31 a side": (lambda: claimed(2**31 - 1, 2**31 - 1), TOO_LARGE),
    "gif claims 65535 a side": (lambda: gif(65_535, 65_535), TOO_LARGE),
    "webp claims 16384 a side": (webp_claim, f"{TOO_LARGE}|{BROKEN}|{REFUSED}"),
    "bmp claims 2^31": (lambda: bmp(2**31 - 1, 1, 8, 0, b""), TOO_LARGE),
    "tiff claims 2^32": (lambda: tiff(picture_tags(2**32 - 1, 2)), f"{TOO_LARGE}|{BROKEN}"),
    "ppm claims 10^12": (lambda: b"P6 1000000 1000000 255\n" + bytes(99), TOO_LARGE),
    "pfm claims 10^12": (lambda: b"Pf\n1000000 1000000\n-1.0\n" + bytes(99), TOO_LARGE),
    "png just above": (lambda: claimed(SIDE, SIDE + 1), TOO_LARGE),
    "grey of 16 bits just above": (lambda: png(6_400, 6_400, 16, pixels=zlib.compress(b"")), TOO_LARGE),
    # thin
    "thin, 1 x 300000": (lambda: png(1, 300_000), "1 x 300000 pixels; a side has at most 65535; cut it"),
    "thin, 1 x 100 million": (lambda: png(1, 100_000_000, 1), TOO_LARGE),
    "thin, 1 x 65535": (
        lambda: png(1, 65_535),
        "1 x 65535 pixels: too narrow, since resized it would be 256 x 16776960",
    ),
    "flat, 65535 x 1": (
        lambda: png(65_535, 1),
        "65535 x 1 pixels: too narrow, since resized it would be 16776960 x 256",
    ),
    # texts, profiles, parts
    "png, text of 50 MB": (lambda: png(4, 4, extra=chunk(b"zTXt", b"k\0\0" + zeros(50 << 20))), "too large"),
    "png, profile of 50 MB": (lambda: png(4, 4, extra=chunk(b"iCCP", b"k\0\0" + zeros(50 << 20))), "too large"),
    "png, a hundred texts": (
        lambda: png(4, 4, extra=b"".join(chunk(b"zTXt", b"%d\0\0" % k + zeros(1 << 20)) for k in range(100))),
        "Too much memory|too large",
    ),
    "png, 300 000 chunks": (lambda: png(4, 4, extra=chunk(b"teSt", b"") * 300_000), TOO_MANY),
    "jpeg, 600 000 segments": (lambda: segments(600_000), TOO_MANY),
    "gif, 600 000 blocks": (lambda: gif(4, 4, b"!\xfe" + b"\x01a" * 600_000 + b"\0"), TOO_MANY),
    "gif, 3000 frames": (frames("GIF", 3000, 1), FINE),
    "webp, 500 frames": (frames("WEBP", 500, 16), FINE),
    "apng, 2000 frames": (frames("PNG", 2000, 2), FINE),
    "jpeg, 3000 scans": (lambda: scans(2000, 3000), "in 3[0-9]{3} scans"),
    "ppm, a comment of 5 MB": (lambda: b"P6 #" + b"c" * (5 << 20) + b"\n4 4 255\n" + bytes(48), TOO_MANY),
    "ppm, a million comments": (lambda: b"P3 4 4 255\n" + b"#\n" * 1_000_000, "too many comments"),
    "ppm of odd levels": (lambda: b"P6 4000 3000 254\n" + bytes(36_000_000), TOO_LARGE),
    "ppm of odd levels, a million": (lambda: b"P6 1000 1000 254\n" + bytes(3_000_000), TOO_MANY),
    "pgm of decimal numbers": (lambda: b"P2 3000 3000 255\n" + b"0 " * 9_000_000, TOO_LARGE),
    "bmp, runs of one": (lambda: bmp(1400, 1400, 8, 1, b"\x01\x05" * 2_000_000), TOO_MANY),
    "bmp, ends of lines": (
        lambda: bmp(60_000, 33, 8, 1, b"\x01\x05\0\0" * 99),
        "too narrow, since resized it would be",
    ),
    "bmp, jumps": (lambda: bmp(60_000, 1_600, 8, 1, b"\0\x02\0\xff" * 99), TOO_LARGE),
    # EXIF and TIFF
    "jpeg, exif of 30 GB": (lambda: exif_of_jpeg(amplified(30_000, 1 << 20)), FINE),
    "png, exif of 30 GB": (lambda: png(4, 4, extra=chunk(b"eXIf", amplified(30_000, 1 << 20))), FINE),
    "webp, exif of 30 GB": (lambda: webp_with(amplified(30_000, 1 << 20)), FINE),
    "png, exif as text of 4 GB": (raw_profile, FINE),
    "exif that points at itself": (lambda: exif_of_jpeg(tiff([(0x8769, 4, 1, 8), (0x0112, 3, 1, 6)], after=8)), FINE),
    "exif turned 9 times": (lambda: exif_of_jpeg(tiff([(0x0112, 3, 1, 9)])), FINE),
    "exif turned by a text": (lambda: exif_of_jpeg(tiff([(0x0112, 2, 4, 0x36363636)])), FINE),
    "tiff of 60 GB": (lambda: amplified(60_000, 1 << 20), SHARED),
    "tiff, exif of 60 GB": (
        lambda: tiff([*picture_tags(4, 4), (34665, 4, 1, 8 + 2 + 12 * 10 + 4)], amplified(60_000, 1 << 20)[8:]),
        SHARED,
    ),
    "tiff, two million strips": (lambda: many_strips(2_000_000), "2000000 numbers in a TIFF entry"),
    "tiff, a tile of 60000 a side": (
        lambda: tiff(picture_tags(16, 16, t322=60_000, t323=60_000, t324=8, t325=64, t259=8)),
        "tiles of 60000 x 60000 pixels",
    ),
    "tiff, a directory 60 000 times in another": (lambda: tiff([(34665, 4, 1, 8)] * 60_000), f"{BROKEN}|{REFUSED}"),
    "tiff of 3 bits": (lambda: tiff(picture_tags(4, 4, t258=3), bytes(99)), f"{BROKEN}|{REFUSED}"),
    "tiff of complex numbers": (lambda: tiff(picture_tags(4, 4, t258=64, t339=6), bytes(999)), f"{BROKEN}|{REFUSED}"),
    "tiff of unknown compression": (lambda: tiff(picture_tags(4, 4, t259=31_337), bytes(99)), f"{BROKEN}|{REFUSED}"),
    "tiff whose directory is itself": (lambda: tiff(picture_tags(4, 4), bytes(99), after=8), FINE),
    "big tiff, 2^60 numbers": (lambda: big_tiff(1), "1152921504606846976 numbers in a TIFF entry"),
    "big tiff, 2^62 entries": (lambda: big_tiff(1 << 62), "a TIFF directory of 4611686018427387904 entries"),
    "avif, exif of 600 MB": (avif(8, 8, exif=b"Exif\0\0" + amplified(2_000, 300_000)), "an AVIF of .* with EXIF data"),
    # cut short
    "nothing": (lambda: b"", "the file is empty"),
    "jpeg cut short": (lambda: saved(Image.new("RGB", (99, 99)), "JPEG")[:300], BROKEN),
    "png cut short": (lambda: png(99, 99)[:60], BROKEN),
    "two megabytes of ff": (lambda: b"\xff\xd8" + b"\xff" * (2 << 20), f"{BROKEN}|{REFUSED}|{TOO_MANY}"),
}

LARGE: dict[str, Case] = {  # as large as is read, of every decoder and mode
    "png of 1 bit": (lambda: png(SIDE, SIDE, 1), FINE),
    "png, RGB": (lambda: png(SIDE, SIDE, 8, 2), FINE),
    "png, RGBA of 16 bits": (lambda: png(SIDE, SIDE, 16, 6), FINE),
    "png, palette and alpha": (lambda: png(SIDE, SIDE, 8, 3), FINE),
    "png, grey of 16 bits": (lambda: png(DEAR, DEAR, 16), FINE),
    "png, turned": (lambda: png(SIDE, SIDE, 8, 2, chunk(b"eXIf", tiff([(0x0112, 3, 1, 6)]))), FINE),
    "jpeg": (plain("RGB", SIDE, SIDE, "JPEG"), FINE),
    "jpeg, progressive": (plain("RGB", DEAR, DEAR, "JPEG", progressive=True), FINE),
    "jpeg, CMYK, progressive": (plain("CMYK", DEAR, DEAR, "JPEG", progressive=True), FINE),
    "jpeg, 90 scans": (lambda: scans(DEAR, 84), FINE),
    "jpeg, CMYK": (plain("CMYK", SIDE, SIDE, "JPEG"), FINE),
    "gif": (plain("P", SIDE, SIDE, "GIF"), FINE),
    "bmp": (plain("1", SIDE, SIDE, "BMP"), FINE),
    "ppm of decimals": (lambda: b"P3 1400 1400 255\n" + b"255 " * (3 * 1400**2), FINE),
    "ppm": (lambda: b"P4 %d %d\n" % (SIDE, SIDE) + bytes((SIDE + 7) // 8 * SIDE), FINE),
    "tiff, RGB": (plain("RGB", SIDE, SIDE, "TIFF", compression="tiff_deflate"), FINE),
    "tiff, CMYK, one strip": (
        plain("CMYK", SIDE, SIDE, "TIFF", compression="tiff_lzw", tiffinfo={278: SIDE}),
        FINE,
    ),
    "tiff, floats": (plain("F", DEAR, DEAR, "TIFF", compression="tiff_deflate"), FINE),
    "tiff, 32 bits": (plain("I", DEAR, DEAR, "TIFF", compression="tiff_deflate"), FINE),
    "tiff, turned": (
        plain("RGB", SIDE, SIDE, "TIFF", compression="tiff_deflate", tiffinfo={0x0112: 6}),
        FINE,
    ),
    "webp, lossless": (plain("RGBA", DEAR, DEAR, "WEBP", lossless=True, quality=0, method=0), FINE),
    "webp": (plain("RGB", DEAR, DEAR, "WEBP", quality=1, method=0), FINE),
    "avif": (avif(DEAR, DEAR, quality=1, speed=10), FINE),
}
