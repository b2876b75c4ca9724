"""Noise: per-value replicas, the quantiles of scipy's Poisson distribution, and independence of the batch."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import poisson
from weather_oracles import assert_each_image_stands_alone, byte, photographs, pixels

from corruptions.base import Corruption, Draws
from corruptions.constants import PRESETS
from corruptions.noise import GaussianNoise, ImpulseNoise, ShotNoise, SpeckleNoise

LEVELS = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(1, 3, 16, 16)


@pytest.mark.parametrize("kind", [GaussianNoise, SpeckleNoise])
def test_gaussian_and_speckle_noise_one_value_at_a_time(kind: type[Corruption]) -> None:
    images = photographs(2, 16, 18)
    normal = torch.randn(images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sigma = {GaussianNoise: 0.38, SpeckleNoise: 0.6}[kind]
    result = kind().apply(images, Draws(5, {"normal": normal}))
    for index, (level, z) in pixels(images, normal):
        x = level / 255
        expected = byte(x + sigma * z) if kind is GaussianNoise else byte(x + x * (sigma * z))
        assert result[index] == expected
    in_float32 = kind().apply(images, Draws(5, {"normal": normal.float()}))
    assert (in_float32.int() - result.int()).abs().max() <= 1


@pytest.mark.parametrize("kind", [GaussianNoise, SpeckleNoise])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_every_level_stays(kind: type[Corruption], dtype: torch.dtype) -> None:
    # v / 255 * 255 must not fall below v, which would be cut off to v - 1.
    result = kind().apply(LEVELS, Draws(3, {"normal": torch.zeros(1, 3, 16, 16, dtype=dtype)}))
    assert torch.equal(result, LEVELS)


def test_impulse_noise_is_pepper_then_salt_at_the_shares() -> None:
    images = photographs(1, 16, 16)
    share = 0.09
    uniform = torch.full(images.shape, 0.9, dtype=torch.float64)
    edges = (0.0, np.nextafter(share / 2, 0), share / 2, np.nextafter(share, 0), share)
    uniform[0, 1, 3, :5] = torch.tensor(edges)
    expected = images.clone()
    expected[0, 1, 3, :4] = torch.tensor([0, 0, 255, 255])
    assert torch.equal(ImpulseNoise().apply(images, Draws(3, {"uniform": uniform})), expected)


EXTREME = (0.0, 2.0**-53, 2.0**-24, 1e-3, 1 / 256, 0.25, 0.5, 0.731, 1 - 2.0**-10, 1 - 2.0**-24)


@pytest.mark.parametrize(("preset", "severity"), [(preset, s) for preset in PRESETS for s in range(1, 6)])
def test_shot_noise_is_the_poisson_quantile_for_every_level(preset: str, severity: int) -> None:
    corruption = ShotNoise(preset)
    photons = corruption.constants(severity)
    mean = np.arange(256) / 255 * photons
    for u in EXTREME:
        for dtype in (torch.float32, torch.float64):
            draws = Draws(severity, {"uniform": torch.full((1, 3, 16, 16), u, dtype=dtype)})
            count = np.where((mean > 0) & (u > 0), poisson.ppf(u, mean), 0)
            expected = np.trunc(np.minimum(count, photons) / photons * 255)
            assert corruption.apply(LEVELS, draws)[0, 2].flatten().tolist() == expected.tolist(), u


def test_shot_noise_at_the_largest_number_below_one() -> None:
    # There the distribution function itself is rounded: between 2^-53 and 2^-54 of the upper tail both are right.
    mean = np.arange(256) / 255 * 60
    result = ShotNoise().apply(
        LEVELS, Draws(1, {"uniform": torch.full((1, 3, 16, 16), 1 - 2.0**-53, dtype=torch.float64)})
    )
    tail = poisson.sf(np.arange(61)[:, None], mean)
    first, last = ((tail > bound).sum(0).clip(max=60) for bound in (2.0**-53 * 1.001, 2.0**-54 * 0.999))
    got = result[0, 0].flatten().numpy()
    assert (np.trunc(first / 60 * 255) <= got).all() and (got <= np.trunc(last / 60 * 255)).all()
    assert got[0] == 0 and got[1] > 40


def test_shot_noise_of_random_numbers() -> None:
    images = photographs(2, 40, 40)
    uniform = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    counts = poisson.ppf(uniform.double().numpy(), images.numpy() / 255 * 500)
    expected = np.trunc(counts.clip(0, 500) / 500 * 255)
    result = ShotNoise("cifar").apply(images, Draws(1, {"uniform": uniform}))
    assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize("kind", [GaussianNoise, ShotNoise, ImpulseNoise, SpeckleNoise])
@pytest.mark.parametrize("preset", list(PRESETS))
def test_noise_of_an_image_does_not_depend_on_the_batch(kind: type[Corruption], preset: str) -> None:
    assert_each_image_stands_alone(kind(preset))


class Stripes(GaussianNoise):
    """A corruption with strengths of its own."""

    def constants(self, severity: int) -> float:
        return (0.1, 0.2, 0.3, 0.4, 0.5)[severity - 1]


@pytest.mark.parametrize("severity", [0, 6, True, 2.0])
def test_a_severity_is_checked_also_with_constants_of_one_s_own(severity: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number from 1 to 5"):
        Stripes()(torch.zeros(1, 3, 16, 16), severity)
