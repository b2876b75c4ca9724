"""LAION-C: the authors' own pixels from the authors' own draws, tiles of a folder, set and textures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from legacy_draws import write_frost_photographs
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from places import ROOT

import robustkit
from corruptions import CATEGORIES, corrupt, corruption, laion
from corruptions.base import Draws
from corruptions.laion import TILE_SIDES, own_tiles, read_tiles
from robustkit.common.determinism import SampleRng
from robustkit.errors import DataError, ProtocolError, RobustkitError
from robustkit.evaluations.corruptions.tree import CorruptedTree

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = CATEGORIES["laion"]
GOLDEN = np.load(ROOT / "tests" / "golden" / "laion_c.npz")
"""Images of 48x40 pixels, tiles, and what the authors' code makes of them at severity 1 to 5 from seed 1 to 5."""
SHAPES = ["triangle", "square", "star", "circle"]


@pytest.fixture
def golden_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden file's tiles in place of a folder's."""
    small = GOLDEN["tiles"]
    sides = {4: small, 16: small.repeat(4, axis=1).repeat(4, axis=2)}
    monkeypatch.setattr(laion, "read_tiles", lambda folder: sides)


def authors_draws(kind: str, severity: int, height: int, width: int) -> dict[str, Any]:
    """What the authors' code draws, in its order, in [0, 1)."""
    generator, constants = np.random.RandomState(severity), corruption(kind, texture="own").constants(severity)
    if kind == "geometric_shapes":
        rows = []
        for _ in range(constants):
            shape = SHAPES.index(generator.choice(SHAPES))
            x, y, side = generator.randint(0, width), generator.randint(0, height), generator.randint(6, 16)
            colour, rotation = generator.randint(0, 256, size=3), generator.randint(0, 360)
            ours = [shape / 4, x / width, y / height, (side - 6) / 10, *(colour / 256), rotation / 360]
            rows.append(np.array(ours) + 1e-6)
        return {"shapes": np.array(rows)}
    if kind == "luminance_checkerboard":
        low, high = constants
        fields = generator.uniform(low, high, size=(-(-height // 14), -(-width // 14)))
        return {"fields": (fields - low) / (high - low)}
    if kind == "stickers":
        tiles = generator.choice(len(GOLDEN["tiles"]), (1, constants))[0]
        generator.choice(height - 16, size=(1, constants, 2))  # which they do not use
        places = (height - 16) * (width - 16)
        drawn = [generator.randint(0, places) for _ in range(constants)]
        return {"stickers": np.stack([tiles / len(GOLDEN["tiles"]), np.array(drawn) / places], axis=1) + 1e-6}
    return {}


def pixels(array: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)[None].contiguous()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("golden_tiles")
def test_the_authors_draws_give_the_authors_pixels(kind: str) -> None:
    assert len(GOLDEN[kind]) == (1 if kind == "mosaic" else 5)
    for severity, expected in enumerate(GOLDEN[kind], start=1):
        image, made = GOLDEN["images"][severity - 1], corruption(kind)
        numbers = authors_draws(kind, severity, 48, 40)
        drawn = Draws(severity, {name: torch.as_tensor(value)[None] for name, value in numbers.items()})
        assert torch.equal(made.apply(pixels(image), drawn), pixels(expected)), severity
        assert (expected != image).mean() > 0.1


def slow_lines(image: Image.Image, count: int, step: int) -> Image.Image:
    """Lines downwards with Pillow: each cell in its mean colour, up to where its mean grey level pushes the pen."""
    (width, height), made = image.size, Image.new("RGB", image.size)
    pen, grey = ImageDraw.Draw(made), image.convert("L")
    for number in range(count):
        start = number / count * width
        x, y = start, 0
        for row in range(0, height, step):
            box = (int(start), row, min(int(start + width / count), width), min(row + step, height))
            size = max(box[2] - box[0], 0) * (box[3] - box[1])
            cell, level = np.asarray(image.crop(box)).reshape(-1, 3), np.asarray(grey.crop(box))
            colour = tuple(int(each) // size for each in cell.sum(axis=0)) if size else (0, 0, 0)
            shift = -40 * (1 - (int(level.sum()) // size if size else 0) / 255)
            pen.line((x, y, start + shift, row), fill=colour)
            x, y = start + shift, row
    return made


@pytest.mark.parametrize("severity", range(1, 6))
def test_lines_are_those_that_pillow_draws(severity: int) -> None:
    """Also of single colours, on both sides of where the grey level steps."""
    generator = np.random.default_rng(severity)
    colours = generator.integers(0, 256, (6, 3), dtype=np.uint8)
    for array in (generator.integers(0, 256, (48, 300, 3), dtype=np.uint8), np.tile(colours, (24, 50, 1))):
        expected = slow_lines(Image.fromarray(array), *corruption("vertical_lines").constants(severity))
        made = corruption("vertical_lines").apply(pixels(array), Draws(severity))
        assert torch.equal(made, pixels(np.asarray(expected)))


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_has_its_own_draws_whatever_else_is_in_the_batch(kind: str) -> None:
    images = torch.randint(0, 256, (3, 3, 32, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rng, made = SampleRng.of(["a", "b", "c"], seed=0, condition=kind, device="cpu"), corruption(kind, texture="own")
    together = made(images, severity=3, rng=rng)
    alone = made(images[1:2], severity=3, rng=rng.take(torch.tensor([1])))
    assert torch.equal(together[1], alone[0]) and together.shape == images.shape and together.dtype == torch.uint8
    same = made(images[:1].expand(3, -1, -1, -1).contiguous(), severity=5, rng=rng)
    without_draws = ("vertical_lines", "glitched", "mosaic")
    assert torch.equal(same[0], same[1]) == (kind in without_draws)


@pytest.mark.parametrize("side", TILE_SIDES)
def test_a_mosaic_is_of_the_nearest_tiles_with_equal_borders(side: int) -> None:
    image = GOLDEN["images"][1]
    made = corruption("mosaic", texture="own").apply(
        pixels(image), Draws(TILE_SIDES.index(side) + 1 if side != 16 else 4)
    )
    margins = [(-size % side // 2, -size % side - -size % side // 2) for size in image.shape[:2]]
    large = np.pad(image, (*margins, (0, 0)), mode="edge")
    small = np.asarray(Image.fromarray(large).resize((large.shape[1] // side, large.shape[0] // side))) / 255
    tiles = own_tiles(side)
    means = tiles.mean(axis=(1, 2)) / 255
    for (row, column), _ in np.ndenumerate(small[..., 0]):
        near = ((means - small[row, column]) ** 2).sum(axis=1)
        top, left = row * side - margins[0][0], column * side - margins[1][0]
        part = made[0, :, max(top, 0) : top + side, max(left, 0) : left + side].permute(1, 2, 0).numpy()
        inside = (
            slice(max(-top, 0), max(-top, 0) + part.shape[0]),
            slice(max(-left, 0), max(-left, 0) + part.shape[1]),
        )
        assert any(np.array_equal(part, tiles[each][inside]) for each in np.flatnonzero(near <= near.min() + 1e-6))


def test_tiles_are_middle_squares_of_all_images_in_a_folder(tmp_path: Path) -> None:
    wide = np.zeros((300, 600, 3), np.uint8)
    wide[:, 150:450] = (10, 200, 30)
    (tmp_path / "b" / "c").mkdir(parents=True)
    Image.fromarray(wide).save(tmp_path / "b" / "c" / "one.png")
    Image.fromarray(np.full((20, 30), 77, np.uint8)).save(tmp_path / "a.JPEG")  # grey, and enlarged
    (tmp_path / "notes.txt").write_text("no image")
    tiles = read_tiles(str(tmp_path))
    assert {side: each.shape for side, each in tiles.items()} == {side: (2, side, side, 3) for side in TILE_SIDES}
    assert (tiles[16][0] == 77).all() and (tiles[16][1] == (10, 200, 30)).all()
    image = torch.full((1, 3, 32, 32), 90, dtype=torch.uint8)
    assert (corrupt(image, "mosaic", severity=5, tiles_dir=str(tmp_path)) == 77).all()


@pytest.mark.parametrize(
    ("content", "fault", "words"),
    [
        (
            None,
            FileNotFoundError,
            "mosaic and stickers need tiles of photographs; name a folder of images: --tiles-dir",
        ),
        ({}, FileNotFoundError, "has no JPEG or PNG to make tiles of; name a folder"),
        ({"a.png": b"text"}, OSError, "a.png is not a readable image"),
    ],
)
def test_bad_tiles_are_one_line(
    tmp_path: Path, content: dict[str, bytes] | None, fault: type[Exception], words: str
) -> None:
    for name, data in (content or {}).items():
        (tmp_path / name).write_bytes(data)
    folder = None if content is None else str(tmp_path)
    with pytest.raises(fault, match=words):
        corrupt(torch.zeros(1, 3, 32, 32), "stickers", severity=1, tiles_dir=folder)
    with pytest.raises(ValueError, match="texture 'wood': expected photographs or own"):
        corruption("mosaic", texture="wood")


def test_images_as_small_as_a_sticker_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="images of 16x16; stickers have 16 pixels"):
        corrupt(torch.zeros(1, 3, 16, 16), "stickers", severity=1, texture="own")
    assert corrupt(torch.zeros(1, 3, 17, 17), "stickers", severity=1, texture="own").any()
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 2, "attacks": "none", "setup_check": False}
    with pytest.raises(ProtocolError, match="stickers: as large as the model's images of 16x16; leave them out"):
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 10))
        robustkit.audit(network, pixels=True, img_size=16, corruptions="stickers", out=tmp_path / "no", **options)


def test_folders_and_thin_images_among_tiles(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    Image.new("RGB", (400, 20)).save(tmp_path / "wide.png")  # 20 times as wide as high
    assert len(read_tiles(str(tmp_path))[4]) == 1
    Image.new("RGB", (421, 20)).save(tmp_path / "wider.png")
    read_tiles.cache_clear()
    with pytest.raises(OSError, match=r"wider\.png has 421x20 pixels, which is too thin; take it out"):
        read_tiles(str(tmp_path))


def photographs(folder: Path, count: int, seed: int = 0) -> Path:
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(generator.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def test_an_audit_takes_our_tiles_or_a_folders_and_says_which(tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 4, "attacks": "none", "setup_check": False}

    def audited(name: str, corruptions: str = "laion-c(severity=2),frost(severity=2)", **more: Any) -> Any:
        checkpoint = "zoo:shapes-vit-standard"
        return robustkit.audit(checkpoint, out=tmp_path / name, corruptions=corruptions, **options, **more)

    ours = audited("ours", frost_dir=str(ice(tmp_path / "ice")))
    texts = [text for text in ours.manifest.conditions if "corruption" in text]
    assert "corruption(mosaic,severity=2,texture=own)" in texts and "corruption(frost,severity=2)" in texts
    codes = {row.condition: {finding.code for finding in row.findings} for row in ours.summary()}
    assert "corruptions/own-tiles" in codes["laion-c(severity=2,texture=own)"]
    assert not any(code.startswith("corruptions/own") for code in codes["corruption(glitched,severity=2)"])
    theirs = audited("theirs", tiles_dir=photographs(tmp_path / "one", 3))
    assert "laion-c(severity=2)" in {row.condition for row in theirs.summary()}
    assert "corruption(mosaic,severity=2)" in theirs.manifest.conditions
    with pytest.raises(RobustkitError, match=r"what corruption\(mosaic,severity=2\) takes is "):
        audited("theirs", tiles_dir=photographs(tmp_path / "two", 3, seed=1))
    with pytest.raises(ProtocolError, match=r"mosaic\(texture=own\) and --tiles-dir .*: leave one of the two out"):
        audited("no", "mosaic(texture=own)", tiles_dir=tmp_path / "one")
    with pytest.raises(DataError, match="mosaic and stickers need tiles of photographs"):
        audited("no", "mosaic(texture=photographs)")
    with pytest.raises(ProtocolError, match="both textures of mosaic and stickers"):
        audited("no", "mosaic(texture=own),stickers(texture=photographs)")


def ice(folder: Path) -> Path:
    folder.mkdir()
    write_frost_photographs(folder)
    return folder


def test_the_sets_folders_of_severities_are_read(tmp_path: Path) -> None:
    for severity in (1, 3):
        place = tmp_path / "luminance_checkerboard" / f"intensity_level_{severity}" / "dog"
        place.mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(place / f"a_luminance_{severity}.JPEG")
    assert CorruptedTree.open(tmp_path).present == {"luminance_checkerboard": (1, 3)}
