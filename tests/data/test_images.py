"""Reading images: the pixels equal timm's wherever timm is right, and broken files are refused by name."""

from __future__ import annotations

import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from places import SHARED
from small_audit import audit, furnish
from timm.data import create_transform
from torch.utils._python_dispatch import TorchDispatchMode

from corruptions.base import Corruption
from robustkit.common.preprocessing import Preprocessing
from robustkit.data.images import (
    encode_png,
    has_broken_exif,
    image_sizes,
    object_mask,
    read_image,
    to_pixels,
    to_unit_range,
)
from robustkit.errors import BadImageError, DataError
from robustkit.evaluations.subject import ImageSubject, Settings

VAL = SHARED / "data" / "imagenet-val" / "val"


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def timm_tensor(image: Image.Image, p: Preprocessing) -> torch.Tensor:
    return create_transform(
        input_size=(3, *p.input_size),
        interpolation=p.interpolation,
        mean=p.mean,
        std=p.std,
        crop_pct=p.crop_pct,
        crop_mode=p.crop_mode,
    )(image)


def normalised(pixels: torch.Tensor, p: Preprocessing) -> torch.Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (p.mean, p.std))
    return (pixels.float() / 255 - mean) / std


class Divisors(TorchDispatchMode):
    """Collects what is divided by. CUDA multiplies by the reciprocal of a number and of a tensor on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[object] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "div" in str(func):
            self.found.append(getattr(args[1], "device", args[1]))
        return func(*args, **(kwargs or {}))


class Same(Corruption):
    name = "pixelate"

    def apply(self, images: torch.Tensor, draws: Any) -> torch.Tensor:
        return images


def test_grey_levels_have_the_same_bits_on_every_device() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    exact = np.arange(256, dtype=np.float64) / 255
    assert to_unit_range(levels).numpy().tobytes() == exact.astype(np.float32).tobytes()
    assert torch.equal(to_unit_range(levels.float() - 255), -to_unit_range(levels).flip(0))  # of differences, too
    assert not torch.equal(to_unit_range(levels), levels * torch.tensor(1 / 255))  # so the divisor's device matters
    elsewhere = torch.device("meta")
    subject: Any = SimpleNamespace(
        settings=Settings(device=elsewhere),
        card=SimpleNamespace(space="pixels"),
        classifier=SimpleNamespace(identity=SimpleNamespace(attention="softmax")),
    )
    shown = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    with Divisors() as divisors:
        assert ImageSubject.inputs(subject, levels.view(1, 1, 16, 16)).is_meta
        made = Same()(shown, 1)
    assert divisors.found == [elsewhere, torch.device("cpu")]
    assert torch.equal(made, shown.mul(255).round() / 255)


CONFIGS = [
    Preprocessing(),
    Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bilinear", crop_pct=0.9),
    Preprocessing(crop_pct=1.0, crop_mode="squash"),
    Preprocessing(crop_mode="border", crop_pct=0.95),
    Preprocessing(input_size=(32, 32), crop_pct=1.0),
    Preprocessing(input_size=(160, 224), crop_pct=0.9, interpolation="lanczos"),
    Preprocessing(input_size=(64, 48), crop_pct=1.0, interpolation="nearest"),
]


@pytest.mark.parametrize("p", CONFIGS, ids=lambda p: f"{p.input_size}-{p.crop_mode}-{p.interpolation}-{p.crop_pct}")
def test_pixels_equal_timm_bit_for_bit(p: Preprocessing) -> None:
    for size in ((300, 300), (500, 333), (90, 400), (20, 15), (32, 32), (1, 1)):
        image = noise(*size)
        pixels = to_pixels(image, p)
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (3, *p.input_size)
        assert torch.equal(normalised(pixels, p), timm_tensor(image, p)), size


@pytest.mark.shared
@pytest.mark.skipif(not VAL.is_dir(), reason="needs the ImageNet validation images next to the checkout")
def test_real_photographs_equal_timm() -> None:
    for path in sorted(VAL.glob("*/*.JPEG"))[::10]:
        with Image.open(path) as image:
            expected = timm_tensor(image.convert("RGB"), CONFIGS[0])
        assert torch.equal(
            normalised(to_pixels(read_image(path.read_bytes(), path.name), CONFIGS[0]), CONFIGS[0]), expected
        )


def test_unknown_interpolation_is_an_error() -> None:
    with pytest.raises(DataError, match=r"interpolation 'cubic': expected one of bicubic, bilinear, nearest"):
        to_pixels(noise(9, 9), Preprocessing(interpolation="cubic"))


def palette_with_alpha() -> bytes:
    image = noise(8, 8).quantize(16)
    return saved(image, transparency=bytes(range(16)))


@pytest.mark.parametrize(
    "data",
    [
        saved(noise(8, 6).convert("L")),
        saved(noise(8, 6).convert("1")),
        saved(noise(8, 6).convert("LA")),
        saved(Image.merge("RGBA", (*noise(8, 6).split(), noise(8, 6, 1).getchannel(0)))),
        saved(noise(8, 6).convert("CMYK"), "JPEG", quality=95),
        saved(noise(8, 6).convert("CMYK"), "TIFF"),
        saved(noise(8, 6).quantize(16)),
        palette_with_alpha(),
        saved(noise(8, 6).quantize(16), "GIF", save_all=True, append_images=[noise(8, 6, 1).quantize(16)]),
    ],
    ids=["grey", "1-bit", "grey+alpha", "alpha", "cmyk-jpeg", "cmyk-tiff", "palette", "palette+alpha", "animation"],
)
@pytest.mark.filterwarnings("ignore:Palette images with Transparency")  # of the expectation, not of read_image
def test_colours_are_those_of_timm(data: bytes) -> None:
    image = read_image(data, "x")
    assert image.mode == "RGB"
    assert np.array_equal(image, Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(("kind", "dtype"), [("PNG", "<u2"), ("TIFF", "<u2"), ("TIFF", ">u2")])
def test_sixteen_bit_grey_is_scaled_not_clipped(kind: str, dtype: str) -> None:
    values = np.array([[0, 255, 256], [32768, 65279, 65535]], np.uint16)
    data = saved(Image.frombytes("I;16B" if dtype == ">u2" else "I;16", (3, 2), values.astype(dtype).tobytes()), kind)
    expected = np.array([[0, 0, 1], [128, 254, 255]])
    assert np.array_equal(np.asarray(read_image(data, "x"))[..., 0], expected)


def test_float_pixels_between_0_and_1_are_scaled() -> None:
    data = saved(Image.fromarray(np.array([[0, 0.5], [0.25, 1]], np.float32)), "TIFF")
    assert np.asarray(read_image(data, "x"))[..., 1].tolist() == [[0, 128], [64, 255]]


# The stored picture for every EXIF orientation whose upright form is [[1, 2, 3], [4, 5, 6]].
STORED = {
    1: [[1, 2, 3], [4, 5, 6]],
    2: [[3, 2, 1], [6, 5, 4]],
    3: [[6, 5, 4], [3, 2, 1]],
    4: [[4, 5, 6], [1, 2, 3]],
    5: [[1, 4], [2, 5], [3, 6]],
    6: [[3, 6], [2, 5], [1, 4]],
    7: [[6, 3], [5, 2], [4, 1]],
    8: [[4, 1], [5, 2], [6, 3]],
}


@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(Image.fromarray(np.array(STORED[orientation], np.uint8)), exif=exif)
    assert np.asarray(read_image(data, "x"))[..., 0].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_broken_exif_is_no_reason_to_refuse_or_warn() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0" + struct.pack("<HHII", 0x010E, 2, 9999, 9999)
    data = saved(noise(16, 16), "JPEG", exif=exif)
    assert read_image(data, "x").size == (16, 16)


def exif_of(order: str, *entries: tuple[int, int, int, int], rest: bytes = b"", many: int | None = None) -> bytes:
    """The EXIF data of one directory; order: `<` or `>`. many: how many entries it claims to have."""
    packed = []
    for tag, kind, count, value in entries:
        short = kind == 3 and count == 1
        packed.append(
            struct.pack(f"{order}HHL", tag, kind, count)
            + struct.pack(f"{order}HH" if short else f"{order}L", *((value, 0) if short else (value,)))
        )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(
        f"{order}LH", 8, len(entries) if many is None else many
    )
    return head + b"".join(packed) + bytes(4) + rest


HUGE, TURNED = (0x9286, 3, 1 << 30, 40), (0x0112, 3, 1, 6)
SUB = struct.pack("<HHHLL", 1, 0x9209, 3, 1 << 30, 8)  # of ECSSD's 0916.jpg: in the directory that another names
BROKEN_EXIF = {
    "huge, then turned": (exif_of("<", HUGE, TURNED), True),
    "turned, then huge": (exif_of(">", TURNED, HUGE), True),
    "huge in the part for EXIF": (exif_of("<", TURNED, (34665, 4, 1, 38), rest=SUB), True),
    "of two segments": (exif_of("<", HUGE, TURNED, rest=bytes(70_000)), True),
    "huge alone": (exif_of("<", HUGE), False),
    "no number is turned": (exif_of("<", HUGE, (0x0112, 3, 2, 6)), False),
    "huge, and no such turn": (exif_of("<", HUGE, (0x0112, 3, 1, 9)), False),
    "a text that is not there": (exif_of(">", (0x010E, 2, 9, 999)), False),
    "of fewer entries than it says": (exif_of("<", (0x011A, 3, 1, 1), many=9), False),
    "no directory": (b"nothing of this kind", False),
    "a directory far away": (b"II*\0" + struct.pack("<L", 99) + bytes(9), False),
}


@pytest.mark.parametrize(("exif", "turned"), BROKEN_EXIF.values(), ids=list(BROKEN_EXIF))
def test_broken_exif_of_a_jpeg_is_ignored_but_for_its_orientation(exif: bytes, turned: bool) -> None:
    plain = saved(noise(24, 16), "JPEG", quality=90)
    parts = [exif[start : start + 60_000] for start in range(0, len(exif), 60_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts]
    data = plain[:20] + b"".join(segments) + plain[20:]  # after the JFIF header
    expected = read_image(plain, "x")
    upright = expected.transpose(Image.Transpose.ROTATE_270) if turned else expected
    assert np.array_equal(np.asarray(read_image(data, "x")), np.asarray(upright))
    sizes = image_sizes(data)
    assert sizes is not None and sizes.upright == upright.size and sizes.stored == (24, 16)
    assert has_broken_exif(data) and not has_broken_exif(plain)


def test_sound_exif_is_no_broken_one() -> None:
    text = (0x010E, 2, 9, 38)
    for order in "<>":
        sound = exif_of(order, TURNED, text, rest=b"a picture")
        assert not has_broken_exif(saved(noise(9, 9), "JPEG", exif=b"Exif\0\0" + sound))
        assert has_broken_exif(saved(noise(9, 9), "JPEG", exif=b"Exif\0\0" + sound[:-1]))  # a byte is missing
    assert not has_broken_exif(saved(noise(9, 9))) and not has_broken_exif(b"") and not has_broken_exif(b"\xff\xd8")


def test_broken_exif_of_a_png_keeps_its_orientation() -> None:
    image = Image.fromarray(np.array(STORED[6], np.uint8))
    data = saved(image, exif=b"Exif\0\0" + exif_of("<", HUGE, TURNED))
    assert np.asarray(read_image(data, "x"))[..., 0].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_broken_exif_is_said_once_and_counted(tmp_path: Path) -> None:
    furnish(tmp_path)
    broken = b"Exif\0\0" + exif_of("<", HUGE)
    for name in ("00", "01", "02"):
        (stored,) = (tmp_path / "images").rglob(f"{name}.png")
        Image.open(stored).save(stored.with_suffix(".jpg"), exif=b"" if name == "02" else broken)
        stored.unlink()
    options: dict[str, Any] = {"attacks": "none", "setup_check": False}
    why = "of 30 images have broken EXIF data, which are ignored, except for an orientation that can be read"
    for _ in range(2):  # at first, and of a finished run
        lines = list[str]()
        run = audit(tmp_path, tmp_path / "run", say=lines.append, **options)
        note = f"2 {why}: a/00.jpg, b/01.jpg"
        assert [line for line in lines if "EXIF" in line] == [note] and run.manifest.data.notes[-1] == note
    assert run.table("net", "clean")["error"].null_count == 30 and note in (run.path / "report.html").read_text()
    (tmp_path / "ids.txt").write_text("02.jpg\n03.png\n")
    part = audit(tmp_path, tmp_path / "part", ids=tmp_path / "ids.txt", **options)
    assert not any("EXIF" in note for note in part.manifest.data.notes)


def claims(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its data does not have."""
    data = encode_png(np.zeros((4, 4, 3), np.uint8))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]


JPEG = saved(noise(200, 200), "JPEG")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"a/b\.jpg: the file is empty \(0 bytes\); expected an image"),
        (b"hello, I am text", r"a/b\.jpg: not an image of a supported format \(starts with b'hello, I'\)"),
        *((JPEG[: len(JPEG) * part // 100], r"a/b\.jpg: broken image: .*truncated") for part in (10, 50, 99)),
        (saved(noise(50, 50))[:-4000], r"a/b\.jpg: broken image: .*truncated"),
        (claims(20_000, 20_000), r"a/b\.jpg: 20000 x 20000 pixels; at most 80 million are supported"),
        (claims(300, 300), r"a/b\.jpg: broken image"),
        (saved(Image.fromarray(np.array([[1.5]], np.float32)), "TIFF"), r"a/b\.jpg: float pixels outside \[0, 1\]"),
        (saved(Image.fromarray(np.array([[np.nan]], np.float32)), "TIFF"), r"a/b\.jpg: float pixels outside"),
        (saved(Image.fromarray(np.array([[70_000]], np.int32)), "TIFF"), r"a/b\.jpg: 32-bit integer pixels outside"),
    ],
)
def test_what_is_not_one_whole_image_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(BadImageError, match=message) as caught:
        read_image(data, "a/b.jpg")
    assert "\n" not in str(caught.value)


def test_no_half_grey_picture_even_if_a_library_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(BadImageError):
        read_image(JPEG[: len(JPEG) // 2], "x")


def test_reading_in_many_threads_gives_the_same() -> None:
    files = [saved(noise(60, 40, i), "JPEG") for i in range(40)] + [palette_with_alpha(), JPEG[:500]] * 5

    def attempt(data: bytes) -> bytes:
        try:
            return read_image(data, "x").tobytes()
        except BadImageError as error:
            return str(error).encode()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(attempt, files)) == [attempt(data) for data in files]


@pytest.mark.parametrize("size", [(1, 1), (64, 64), (300, 200)])  # the last needs three blocks
def test_png_encoder_is_exact(size: tuple[int, int]) -> None:
    image = noise(*size)
    data = encode_png(np.asarray(image))
    assert np.array_equal(read_image(data, "x"), image)
    assert data == encode_png(np.asarray(image))


def test_a_mask_with_blue_or_transparent_pixels_is_refused() -> None:
    for mode, pixel in (("RGB", (9, 9, 8)), ("RGB", (9, 8, 9)), ("RGBA", (9, 9, 9, 0))):
        image = Image.new(mode, (4, 4), (9, 9, 9, 255)[: len(mode)])
        image.putpixel((1, 2), pixel)
        file = io.BytesIO()
        image.save(file, "PNG")
        with pytest.raises(BadImageError, match=r"x: a mask of colours or transparency \(mode RGB"):
            object_mask(file.getvalue(), "x")
