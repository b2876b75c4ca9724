"""Blurs, snow and elastic transform against slow replicas and outside implementations, and on every size."""

from collections.abc import Callable

import corruption_oracles as slow
import numpy as np
import pytest
import torch
from torch import Tensor

from corruptions.base import Corruption, Draws
from corruptions.blur import DefocusBlur, GaussianBlur, GlassBlur, MotionBlur, ZoomBlur, disk, glass_walk
from corruptions.digital import ElasticTransform, pixels_at
from corruptions.filters import smooth
from corruptions.weather import Snow
from robustkit.common.determinism import SampleRng

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS: tuple[type[Corruption], ...] = (
    *(GaussianBlur, DefocusBlur, GlassBlur, MotionBlur, ZoomBlur),
    *(Snow, ElasticTransform),
)
PAIRS = (("imagenet", "hendrycks"), ("imagenet", "bethgelab"), ("cifar", "hendrycks"))


def pictures(count: int, height: int, width: int, flat: bool = True) -> Tensor:
    """Noise; `flat`: also an edge, a gradient, and flat white and grey areas, where truncation is a matter of bits."""
    images = np.random.default_rng(7).integers(0, 256, (count, 3, height, width))
    if not flat:
        return torch.from_numpy(images.astype(np.uint8))
    images[:, :, : height // 2] = np.linspace(0, 255, width).astype(int)
    images[:, :, 2 : height // 2, : width // 3] = 255
    images[:, 1:, height // 2 :, width // 2 :] = 117
    return torch.from_numpy(images.astype(np.uint8))


def ids(count: int) -> SampleRng:
    return SampleRng.of([str(i) for i in range(count)], seed=3, condition="test", device="cpu")


def agree(
    kind: Corruption,
    severity: int,
    replica: Callable[..., np.ndarray],
    size: tuple[int, int] = (20, 28),
    flat: bool = True,
    ties: float = 0,
) -> None:
    """What `kind` makes of two images is what `replica` (image, numbers by name) does.

    ties: the share of values that may differ by one level, where the last bit of a weight decides; 0: byte for byte.
    """
    images = pictures(2, *size, flat=flat)
    drawn = kind.draw(images.shape[1:], severity, ids(2))
    numbers = {name: value.double() for name, value in drawn.numbers.items()}
    ours = kind.apply(images, Draws(severity, numbers)).permute(0, 2, 3, 1).numpy()
    theirs = [
        replica(image.numpy(), {name: value[i].numpy() for name, value in numbers.items()})
        for i, image in enumerate(images.permute(0, 2, 3, 1))
    ]
    gap = np.abs(ours.astype(int) - np.stack(theirs))
    assert gap.max() <= (ties > 0) and gap.mean() <= ties


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
@pytest.mark.parametrize("severity", [1, 2, 5])
def test_gaussian_blur_is_scikit_images(preset: str, severity: int) -> None:
    kind = GaussianBlur(preset)
    sigma = kind.constants(severity)
    agree(kind, severity, lambda image, _: slow.gaussian_blur(image, sigma))


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_gaussian_blur_takes_a_level_off_the_flat_areas_that_scipy_does(severity: int) -> None:
    levels = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(256, 3, 40, 16)
    sigma = GaussianBlur().constants(severity)
    expected = [slow.gaussian_blur(np.full((2, 2, 3), level, np.uint8), sigma)[0, 0, 0] for level in range(256)]
    blurred = GaussianBlur()(levels, severity)
    assert (blurred == blurred[:, :1, :1, :1]).all()
    assert blurred[:, 0, 0, 0].tolist() == expected


@pytest.mark.parametrize("sigma", [0.5, 2.0, 30.0])
def test_smoothing_mirrors_as_often_as_a_wide_kernel_needs(sigma: float) -> None:
    planes = torch.rand(2, 2, 12, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = slow.gaussian(planes.numpy(), (0, 0, sigma, sigma / 3), mode="reflect", truncate=3)
    np.testing.assert_allclose(smooth(planes, (sigma, sigma / 3), "reflect", 3).numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_defocus_blur_is_opencvs_filter(preset: str, severity: int) -> None:
    kind = DefocusBlur(preset)
    agree(kind, severity, lambda image, _: slow.defocus_blur(image, *kind.constants(severity)), (24, 32), ties=1e-3)


def test_the_disk_of_radius_8_is_brighter_than_the_image() -> None:
    assert disk(6, 0.5).sum() == pytest.approx(1, abs=1e-6)
    assert disk(8, 0.5).sum() == pytest.approx(1.0129754, abs=1e-6)
    grey = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    assert (DefocusBlur()(grey, 4) == 101).all()


@pytest.mark.parametrize(("preset", "severity"), [("imagenet", 1), ("imagenet", 3), ("imagenet", 5), ("cifar", 4)])
def test_glass_blur_walks_from_pixel_to_pixel(preset: str, severity: int) -> None:
    kind = GlassBlur(preset)
    sigma, reach, _ = kind.constants(severity)
    agree(kind, severity, lambda image, numbers: slow.glass_blur(image, numbers["offsets"], sigma, reach))


def test_a_value_can_run_through_the_whole_walk() -> None:
    right, down = torch.tensor([3 / 4, 2 / 4]), torch.tensor([2 / 4, 3 / 4])  # (1, 0) and (0, 1) at reach 2
    offsets = torch.stack([right.expand(12, 36, 2), down.expand(12, 36, 2)])[None]
    place = torch.arange(16 * 40).view(16, 40)
    expected = place.clone()
    expected[3:15, 3:39] = expected[3:15, 39:]  # all copy the one that is never visited, at the right
    expected[3:15, 3:39] = expected[15:, 3:39].clone()
    assert torch.equal(glass_walk(offsets, 2, (16, 40)).view(16, 40), expected)
    once = place.clone()
    once[3:15, 3:39] = once[3:15, 39:]
    assert torch.equal(glass_walk(offsets[:, :1], 2, (16, 40)).view(16, 40), once)


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize(("preset", "variant"), PAIRS)
def test_motion_blur_one_pixel_at_a_time(preset: str, variant: str, severity: int) -> None:
    kind = MotionBlur(preset, variant)
    radius, sigma = kind.constants(severity)
    hendrycks = variant == "hendrycks"

    def replica(image: np.ndarray, numbers: dict[str, np.ndarray]) -> np.ndarray:
        degrees = -45 + 90 * float(numbers["angle"])
        planes = [slow.along_line(plane, radius, sigma, degrees, not hendrycks) for plane in np.moveaxis(image, -1, 0)]
        return slow.sixteen_bits(np.stack(planes, -1)) if hendrycks else np.stack(planes, -1).astype(np.uint8)

    agree(kind, severity, replica, (18, 24), flat=hendrycks)  # severity 5 reaches beyond the image


def test_zoom_layers_stay_white() -> None:
    for size in (16, 26, 37, 64):
        white = torch.full((1, 3, size, size + 5), 255, dtype=torch.uint8)
        for severity in (1, 3, 5):
            assert torch.equal(ZoomBlur()(white, severity), white)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
def test_zoom_blur_is_scipys_zoom(preset: str, severity: int) -> None:
    kind = ZoomBlur(preset)
    for size in ((28, 41), (36, 28)):  # enlarging 36 by 1.2, scipy's rounding leaves the last row black
        agree(kind, severity, lambda image, _: slow.zoom_blur(image, *kind.constants(severity)), size)


@pytest.mark.parametrize("severity", [1, 4, 5])
@pytest.mark.parametrize(("preset", "variant"), PAIRS)
def test_snow_step_by_step(preset: str, variant: str, severity: int) -> None:
    kind = Snow(preset, variant)

    def replica(image: np.ndarray, numbers: dict[str, np.ndarray]) -> np.ndarray:
        return slow.snow(image, numbers["normal"], float(numbers["angle"]), kind.constants(severity), variant)

    agree(kind, severity, replica)


STRENGTHS = (12.5, 16.25, 21.25, 25.0, 30.0)


@pytest.mark.parametrize("severity", [1, 2, 5])
@pytest.mark.parametrize(("preset", "variant"), PAIRS)
def test_elastic_transform_one_pixel_at_a_time(preset: str, variant: str, severity: int) -> None:
    kind = ElasticTransform(preset, variant)
    constants = kind.constants(severity) if variant == "hendrycks" else (STRENGTHS[severity - 1], None)
    agree(kind, severity, lambda image, numbers: slow.elastic_transform(image, numbers, constants, variant))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("preset", "variant"), PAIRS)
def test_images_do_not_know_of_each_other(kind: type[Corruption], preset: str, variant: str) -> None:
    for size, severity in (((16, 16), 5), ((17, 40), 2), ((90, 70), 3)):  # 90x70: parts of 10 images
        images = pictures(12, *size)
        together = kind(preset, variant)(images, severity, ids(12))
        assert together.shape == images.shape
        assert not torch.equal(together, images)
        for count in (1, 2, 5):
            assert torch.equal(kind(preset, variant)(images[:count], severity, ids(count)), together[:count])


@pytest.mark.parametrize("kind", [GlassBlur, MotionBlur, Snow, ElasticTransform], ids=lambda kind: kind.name)
def test_single_precision_draws_change_next_to_nothing(kind: type[Corruption]) -> None:
    images = pictures(2, 40, 48)
    for severity in (1, 5):
        draws = kind().draw(images.shape[1:], severity, ids(2))
        assert all(value.dtype == torch.float32 for value in draws.numbers.values())
        exact = Draws(severity, {name: value.double() for name, value in draws.numbers.items()})
        ours, theirs = (kind().apply(images, numbers).int() for numbers in (draws, exact))
        assert (ours - theirs).abs().max() <= 1
        assert (ours != theirs).float().mean() < 1e-3


def test_a_picture_of_more_pixels_than_float32_counts_is_left_where_it_is() -> None:
    height, width = 4100, 4098  # just above 2 to the 24th
    picture = (torch.arange(height * width, dtype=torch.int32) % 251).to(torch.uint8).view(1, 1, height, width)
    rows, columns = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    found = pixels_at(picture.expand(1, 3, -1, -1), rows[None], columns[None])
    assert torch.equal(found[:, :1], picture)
