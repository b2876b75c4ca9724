"""Fog, frost and spatter: per-pixel replicas, the photographs of frost, and independence of the batch."""

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from weather_oracles import (
    assert_each_image_stands_alone,
    byte,
    diamond_square,
    photographs,
    pixels,
    rng,
    spatter,
    write_frost,
)

from corruptions.base import Draws
from corruptions.weather import PHOTOGRAPHS, Fog, Frost, Spatter, _stain, find_photographs


@pytest.fixture(scope="module")
def ice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of different sizes, so that no two can be mistaken."""
    sizes = ((70, 90), (71, 80), (60, 100), (65, 92), (90, 90), (66, 67))
    return write_frost(tmp_path_factory.mktemp("ice") / "frost", sizes)


# --- fog -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width", "size"), [(16, 16, 16), (17, 24, 32)])
@pytest.mark.parametrize(("preset", "severity"), [("imagenet", 3), ("cifar", 5)])
def test_fog_one_point_at_a_time(height: int, width: int, size: int, preset: str, severity: int) -> None:
    images = photographs(2, height, width)
    images[1] //= 2  # what is brightest there stays what it is
    corruption = Fog(preset)
    draws = corruption.draw((3, height, width), severity, rng("ab", severity))
    assert draws["uniform"].shape == (2, size * size - 1)
    weight, decay = corruption.constants(severity)
    result = corruption.apply(images, draws)
    for image, numbers, fogged in zip(images, draws["uniform"], result, strict=True):
        heights = diamond_square(numbers.double().tolist(), size, decay)
        top = image.max().item() / 255
        for (channel, y, x), (level,) in pixels(image):
            value = (level / 255 + weight * heights[y][x]) * top / (top + weight)
            assert fogged[channel, y, x] == byte(value)


def test_fog_leaves_black_images_black() -> None:
    black = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    assert torch.equal(Fog()(black, 5, rng("a", 5)), black)


# --- frost -----------------------------------------------------------------------------------------------------------


def replica(images: torch.Tensor, photos: list[np.ndarray], draws: Draws, own: float, weight: float) -> torch.Tensor:
    """Frost, one value at a time; photos: BGR as OpenCV reads them, after scaling."""
    out = images.clone()
    height, width = images.shape[2:]
    for image, result, (u, v, w) in zip(images, out, draws["uniform"].tolist(), strict=True):
        photo = photos[int(u * 5)]
        top, left = int(v * (photo.shape[0] - height)), int(w * (photo.shape[1] - width))
        for (channel, y, x), (level,) in pixels(image):
            value = own * level + weight * float(photo[top + y, left + x, 2 - channel])
            result[channel, y, x] = int(min(max(value, 0), 255))
    return out


SPREAD = torch.tensor([[0.0, 0.0, 0.999], [0.21, 0.5, 0.3], [0.5, 0.999, 0.0], [0.7, 0.3, 0.6], [0.999, 0.9, 0.9]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frost_of_the_benchmark_takes_a_part_as_it_is(ice: Path, dtype: torch.dtype) -> None:
    images, draws = photographs(5, 17, 20), Draws(2, {"uniform": SPREAD.to(dtype)})
    photos = [cv2.imread(str(ice / name)) for name in PHOTOGRAPHS]
    result = Frost(photographs=str(ice)).apply(images, draws)
    assert torch.equal(result, replica(images, photos, draws, 0.8, 0.6))


def test_frost_of_bethgelab_enlarges_first(ice: Path) -> None:
    images, draws = photographs(5, 64, 95), Draws(5, {"uniform": SPREAD})
    decoded = [cv2.imread(str(ice / name)) for name in PHOTOGRAPHS[:5]]

    def enlarged(*sizes: tuple[int, int]) -> list[np.ndarray]:
        pairs = zip(decoded, sizes, strict=True)
        return [cv2.resize(photo, size, interpolation=cv2.INTER_CUBIC) for photo, size in pairs]

    # (width, height), worked out by hand: 1.1 x max(1, 64 / height, 95 / width) of each, rounded up
    photos = enlarged((105, 82), (105, 93), (118, 71), (105, 74), (105, 105))
    expected = replica(images, photos, draws, 0.6, 0.75)
    assert torch.equal(Frost(variant="bethgelab", photographs=str(ice)).apply(images, draws), expected)
    # None of the five has both 65 rows and 96 columns, so the benchmark's variant has to enlarge as well.
    assert torch.equal(Frost(photographs=str(ice)).apply(images, draws), expected)

    images = images[..., :20, :30].contiguous()  # fits: 1.1 x, and in floats 90 x 1.1 is more than 99
    photos = enlarged((100, 77), (88, 79), (111, 66), (102, 72), (100, 100))
    expected = replica(images, photos, draws, 0.6, 0.75)
    assert torch.equal(Frost(variant="bethgelab", photographs=str(ice)).apply(images, draws), expected)


def test_frost_of_small_images_shrinks_the_photographs(tmp_path: Path) -> None:
    ice = write_frost(tmp_path / "frost", ((160, 150),) * 5 + ((150, 160),))
    images, draws = photographs(5, 20, 20), Draws(1, {"uniform": SPREAD})
    photos = [cv2.resize(cv2.imread(str(ice / name)), (30, 32)) for name in PHOTOGRAPHS[:5]]
    result = Frost("cifar", photographs=str(ice)).apply(images, draws)
    assert torch.equal(result, replica(images, photos, draws, 1, 0.2))


def test_frost_of_images_that_do_not_fit(ice: Path) -> None:
    for preset in ("imagenet", "cifar"):
        images = photographs(2, 100, 300)
        assert not torch.equal(Frost(preset, photographs=str(ice))(images, 1, rng("ab", 1)), images)


def test_photographs_are_those_of_the_package_which_is_not_imported(
    tmp_path: Path, ice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frost = write_frost(tmp_path / "imagecorruptions" / "frost")
    (tmp_path / "imagecorruptions" / "__init__.py").write_text("raise ImportError('as it is today')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_photographs() == tuple(frost / name for name in PHOTOGRAPHS)
    assert "imagecorruptions" not in sys.modules
    assert find_photographs(ice) == tuple(ice / name for name in PHOTOGRAPHS)  # a given folder comes first
    images = photographs(1, 32, 32)
    assert torch.equal(Frost()(images, 1, rng("a", 1)), Frost(photographs=str(frost))(images, 1, rng("a", 1)))


def test_without_photographs_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corruptions.weather.find_spec", lambda name: None)
    message = (
        "frost needs its six photographs: `pip install --no-deps imagecorruptions` (only files of it are read), "
        "or name a folder that has them: --frost-dir on the command line, frost_dir in Python; "
        "or use our own textures: frost(texture=own), texture='own' in Python"
    )
    with pytest.raises(FileNotFoundError, match=f"^{re.escape(message)}$"):
        Frost()(photographs(1, 16, 16), 1)


def test_a_missing_or_unreadable_photograph_is_named(tmp_path: Path) -> None:
    folder = write_frost(tmp_path / "frost")
    for name in PHOTOGRAPHS:
        (folder / name).write_bytes(b"not an image")
    corruption = Frost(photographs=str(folder))
    with pytest.raises(OSError, match=r"frost photograph .*frost5\.jpg is not a readable image; copy the six"):
        corruption.apply(photographs(1, 16, 16), Draws(1, {"uniform": SPREAD[4:]}))
    (folder / "frost4.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"frost photograph .*frost4\.jpg is missing; expected frost1\.png, "):
        corruption(photographs(1, 16, 16), 1)


# --- spatter ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "variant"), [("imagenet", "hendrycks"), ("imagenet", "bethgelab"), ("cifar", "hendrycks")]
)
@pytest.mark.parametrize("severity", [2, 3, 4, 5])
def test_spatter_one_pixel_at_a_time(preset: str, variant: str, severity: int) -> None:
    images, corruption = photographs(1, 24, 37), Spatter(preset, variant)
    draws = corruption.draw((3, 24, 37), severity, rng("a", severity))
    result = corruption.apply(images, draws)
    assert result[0].tolist() == spatter(corruption, images[0], draws)
    assert (result != images).float().mean() > 0.02


def test_mud_is_float64_in_bethgelab() -> None:
    # What made the two differ in the reference: the colour of mud takes the type of the image, float32 or uint8.
    images = photographs(1, 64, 64)
    draws = Spatter().draw((3, 64, 64), 5, rng("a", 5))
    results = [Spatter(variant=variant).apply(images, draws).int() for variant in ("hendrycks", "bethgelab")]
    assert (results[0] - results[1]).abs().max() == 1


@pytest.mark.parametrize("sigma", [0.6, 1.5])
def test_mud_covers_as_scipy_smooths_float32(sigma: float) -> None:
    muddy = torch.rand(1, 100, 120, generator=torch.Generator().manual_seed(0)) < 0.9
    expected = gaussian_filter(muddy[0].numpy().astype(np.float32), sigma, mode="nearest")
    expected[expected < 0.8] = 0
    assert np.array_equal(_stain(muddy, sigma)[0].numpy(), expected)


def test_spatter_without_water_changes_nothing() -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(1, 3, 16, 16)
    dry = torch.full((1, 16, 16), -3.0)
    for severity in range(1, 6):
        assert torch.equal(Spatter().apply(levels, Draws(severity, {"normal": dry})), levels)


def test_water_above_full_brightness_wraps_around() -> None:
    images = photographs(1, 24, 24)
    normal = torch.zeros(1, 24, 24)
    normal[0, 4:20, 4:20] = 3.0  # 0.65 + 0.3 * 3 is 1.55
    result = Spatter().apply(images, Draws(3, {"normal": normal}))
    assert result[0].tolist() == spatter(Spatter(), images[0], Draws(3, {"normal": normal}))


# --- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
def test_weather_of_an_image_does_not_depend_on_the_batch(preset: str, ice: Path) -> None:
    for corruption in (Fog(preset), Spatter(preset), Frost(preset, photographs=str(ice))):
        assert_each_image_stands_alone(corruption)
        assert_each_image_stands_alone(corruption, 33, 20)
