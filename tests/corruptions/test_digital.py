"""Brightness, contrast, saturation, pixelation and JPEG against scikit-image, Pillow and arithmetic by hand."""

from io import BytesIO
from itertools import product
from math import fsum

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.color import hsv2rgb, rgb2hsv
from torch import Tensor
from weather_oracles import assert_each_image_stands_alone, byte, photographs, pixels

from corruptions.base import Corruption, Draws
from corruptions.digital import Brightness, Contrast, JpegCompression, Pixelate, Saturate

KINDS = [Brightness, Contrast, Saturate, Pixelate, JpegCompression]


def palette() -> Tensor:
    """(1, 3, 36, 48): every colour of twelve levels: greys, black, white, two or three largest channels."""
    levels = (0, 1, 2, 50, 51, 76, 77, 127, 128, 200, 254, 255)
    return torch.tensor(list(product(levels, repeat=3)), dtype=torch.uint8).T.reshape(1, 3, 36, 48)


@pytest.mark.parametrize("preset", ["imagenet", "cifar"])
@pytest.mark.parametrize("severity", range(1, 6))
def test_brightness_and_saturate_equal_scikit_image(preset: str, severity: int) -> None:
    images = palette()
    hsv = rgb2hsv(images[0].permute(1, 2, 0).numpy() / 255.0)
    brighter, richer = hsv.copy(), hsv.copy()
    brighter[..., 2] = np.clip(hsv[..., 2] + Brightness(preset).constants(severity), 0, 1)
    factor, addend = Saturate(preset).constants(severity)
    richer[..., 1] = np.clip(hsv[..., 1] * factor + addend, 0, 1)
    for kind, changed in ((Brightness, brighter), (Saturate, richer)):
        expected = np.trunc(np.clip(hsv2rgb(changed), 0, 1) * 255)
        assert np.array_equal(kind(preset).apply(images, Draws(severity))[0].permute(1, 2, 0).numpy(), expected)


def test_saturate_turns_greys_red() -> None:
    grey = torch.full((1, 3, 16, 16), 100, dtype=torch.uint8)
    # Severity 5 adds 0.2: green and blue become 100 * (1 - 0.2).
    assert Saturate().apply(grey, Draws(5))[0, :, 0, 0].tolist() == [100, 80, 80]


@pytest.mark.parametrize("severity", [1, 5])
def test_contrast_one_value_at_a_time(severity: int) -> None:
    images = photographs(2, 17, 20)
    factor = (0.4, 0.3, 0.2, 0.1, 0.05)[severity - 1]
    result = Contrast().apply(images, Draws(severity))
    means = [[fsum(v / 255 for v in plane.flatten().tolist()) / 340 for plane in image] for image in images]
    for (b, channel, y, x), (level,) in pixels(images):
        exact = (level / 255 - means[b][channel]) * factor + means[b][channel]
        assert result[b, channel, y, x].item() in {byte(exact - 1e-12), byte(exact + 1e-12)}


def test_contrast_leaves_a_flat_image_exactly() -> None:
    flat = torch.arange(256, dtype=torch.uint8).reshape(256, 1, 1, 1).expand(-1, 3, 17, 19)
    for severity in range(1, 6):
        assert torch.equal(Contrast().apply(flat, Draws(severity)), flat)


def test_pixelate_averages_squares_by_hand() -> None:
    images = photographs(1, 16, 24)
    # Severity 5 is a quarter of the size; Pillow averages rows, rounds, then averages columns, and rounds.
    rows = images.double().reshape(1, 3, 4, 4, 6, 4).mean(5).add(0.5).floor()
    squares = rows.mean(3).add(0.5).floor().to(torch.uint8)
    expected = squares.repeat_interleave(4, 2).repeat_interleave(4, 3)
    for variant in ("hendrycks", "bethgelab"):
        assert torch.equal(Pixelate(variant=variant).apply(images, Draws(5)), expected)


def test_pixelate_enlarges_as_the_variant_does() -> None:
    images = photographs(1, 17, 40)
    small = Image.fromarray(images[0].permute(1, 2, 0).numpy()).resize((16, 6), Image.Resampling.BOX)  # 40 and 17 x 0.4
    results = {}
    for variant, enlarge in (("hendrycks", Image.Resampling.BOX), ("bethgelab", Image.Resampling.NEAREST)):
        results[variant] = Pixelate(variant=variant).apply(images, Draws(3))
        expected = np.asarray(small.resize((40, 17), enlarge))
        assert np.array_equal(results[variant][0].permute(1, 2, 0).numpy(), expected)
    assert not torch.equal(results["hendrycks"], results["bethgelab"])


@pytest.mark.parametrize(("preset", "severity", "quality"), [("imagenet", 1, 25), ("imagenet", 5, 7), ("cifar", 2, 65)])
def test_jpeg_compression_is_a_save_in_that_quality(preset: str, severity: int, quality: int) -> None:
    images = photographs(1, 17, 40)
    file = BytesIO()
    Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(file, format="jpeg", quality=quality)
    expected = np.asarray(Image.open(file))
    result = JpegCompression(preset).apply(images, Draws(severity))
    assert np.array_equal(result[0].permute(1, 2, 0).numpy(), expected)
    assert result.is_contiguous()


def test_threads_change_nothing() -> None:
    images, before = photographs(6, 32, 32), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append((Pixelate().apply(images, Draws(2)), JpegCompression().apply(images, Draws(2))))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(alone, together) for alone, together in zip(*results, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_digital_corruption_of_an_image_does_not_depend_on_the_batch(kind: type[Corruption]) -> None:
    for preset in ("imagenet", "cifar"):
        assert_each_image_stands_alone(kind(preset))


def test_a_corruption_of_ones_own_without_constants_is_told_where_they_go() -> None:
    class Tint(Contrast):
        name = "tint"

    text = (
        r"corruptions/constants.py has none of tint for preset cifar; override `constants` in Tint, or add them there"
    )
    with pytest.raises(NotImplementedError, match=text):
        Tint("cifar")(photographs(1, 32, 32), 3)
