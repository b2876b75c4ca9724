"""ImageNet-C-bar: the authors' own pixels from the authors' own draws, oblong images, distributions of draws.

`tests/golden/c_bar.npz` has the numbers that the authors' code drew and the pixels that it made, of each kind at five
severities. Their generator is asked here as they ask it.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from places import ROOT
from scipy.ndimage import gaussian_filter

from corruptions import CATEGORIES, CORRUPTIONS, corrupt, corruption
from corruptions.bar import RAYS, _softened
from corruptions.base import Corruption, Draws
from corruptions.constants import PRESETS
from robustkit.common.determinism import SampleRng
from robustkit.errors import ProtocolError, RobustkitError
from robustkit.evaluations.corruptions import SETS, expand, possible_means

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS, SMALL = CATEGORIES["c-bar"], CATEGORIES["cifar-bar"]
BOTH = (*KINDS, *SMALL)
BENT = ("caustic_refraction", "pinch_and_twirl", "ripple")
"""Which take pixels from elsewhere, and black from outside of an oblong image."""
GOLDEN = np.load(ROOT / "tests" / "golden" / "c_bar.npz")
SEVERITIES = range(1, 6)
PI = math.pi
Floats = NDArray[np.float64]


def share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def rows_of(seed: float) -> np.random.RandomState:
    return np.random.RandomState(seed=int(seed))


def single_frequency_greyscale(row: Floats, side: int) -> dict[str, Any]:
    one, other, phase = row
    first, second, order = (one, other, 0.0) if abs(one) >= abs(other) else (other, one, 0.5)
    named = {"first": share(first, -PI, PI), "second": share(second / abs(first), -1, 1)}
    return named | {"order": order, "phase": phase / (2 * PI)}


def cocentric_sine_waves(row: Floats, side: int) -> dict[str, Any]:
    named = {"frequency": row[2] / 10, "amplitude": row[3] / side * 10, "width": row[4] / side * 10}
    return named | {"offset": row[:2] / side}


def plasma_noise(row: Floats, side: int) -> dict[str, Any]:
    time, turns, sharpness, scale = row
    named = {"time": time / (6 * PI), "turns": (turns - 3.5) / 3, "sharpness": share(sharpness, 0.5, 1)}
    return named | {"scale": share(scale / side, 0.075, 0.2)}


def sparkles(row: Floats, side: int) -> dict[str, Any]:
    drawn, lengths = rows_of(row[10]), np.zeros((5, RAYS))
    for number, rays in enumerate(row[11:].astype(int)):
        lengths[number, :rays] = [drawn.randn() for _ in range(rays)]
    return {"centres": row[:10].reshape(5, 2) / side, "rays": share(row[11:] + 0.5, 50, 200), "lengths": lengths}


def inverse_sparkles(row: Floats, side: int) -> dict[str, Any]:
    drawn, lengths, rays = rows_of(row[2]), np.zeros(RAYS), int(row[3])
    lengths[:rays] = [drawn.randn() for _ in range(rays)]
    return {"centre": share(row[:2] / side, 0.25, 0.75), "rays": share(rays + 0.5, 50, 200), "lengths": lengths}


def perlin_noise(row: Floats, side: int) -> dict[str, Any]:
    drawn, swaps = rows_of(row[0]), np.zeros(256)
    slopes = np.array([drawn.randint(low=0, high=2**31, size=2) % 512 for _ in range(514)])[:256]
    for place in range(255, -1, -1):
        swaps[place] = drawn.randint(low=0, high=2**31) % 256
    return {"swaps": (swaps + 0.5) / 256, "slopes": (slopes + 0.5) / 512}


def spectral(row: Floats, side: int, channels: int = 1) -> dict[str, Any]:
    drawn, parts = rows_of(row[0]), list[tuple[Floats, Floats]]()
    for _ in range(channels):
        phases = drawn.uniform(size=(side, side // 2))
        parts.append((phases, drawn.uniform(size=side // 2) if side % 2 else np.zeros(side // 2)))
    phases, middle = zip(*parts, strict=True)
    return {"phases": np.stack(phases), "middle": np.stack(middle)}


def checkerboard_cutout(row: Floats, side: int) -> dict[str, Any]:
    angle, scale, _, seed = row
    cells, fields = int(4 * side // scale), np.full((40, 40), 0.5)
    fields[:cells, :cells] = rows_of(seed).uniform(size=(cells, cells))
    return {"angle": angle / (2 * PI), "scale": share(scale / side, 0.1, 0.25), "fields": fields}


def caustic_refraction(row: Floats, side: int) -> dict[str, Any]:
    return {"time": share(row[0], 0.5, 2), "size": share(row[1] / side, 0.75, 1.25)}


OURS = {
    **{make.__name__: make for make in (single_frequency_greyscale, cocentric_sine_waves, plasma_noise, sparkles)},
    **{make.__name__: make for make in (inverse_sparkles, perlin_noise, checkerboard_cutout, caustic_refraction)},
    "blue_noise_sample": spectral,
    "brownish_noise": lambda row, side: spectral(row, side, 3),
}


def small_draws(kind: str, generator: np.random.RandomState) -> dict[str, Any]:
    """What the authors' code draws from a generator for 24x24 pixels, in its order."""
    if kind == "pinch_and_twirl":
        signs = np.zeros((5, 5))
        signs[:3, :3] = [[0.25 if generator.choice([1, -1]) == 1 else 0.75 for _ in range(3)] for _ in range(3)]
        return {"signs": signs}
    if kind == "ripple":
        return {"wavelengths": generator.uniform(size=2), "phases": generator.uniform(size=2)}
    if kind == "lines":
        named = {"angle": generator.uniform(), "variation": generator.uniform()}
        return named | {"lines": rows_of(generator.randint(0, 2**32)).uniform(size=(256, 3))}
    if kind == "transverse_chromatic_abberation":
        orders = list(itertools.permutations(range(3)))
        return {"order": (orders.index(tuple(generator.permutation(3))) + 0.5) / 6}
    return {}


def made_of(kind: str) -> Corruption:
    return corruption(kind, preset="cifar" if kind in SMALL else "imagenet")


def draws(kind: str, severity: int, side: int) -> Draws:
    """The authors' numbers as ours."""
    if kind in SMALL:
        drawn = small_draws(kind, np.random.RandomState(severity))
        return Draws(severity, {name: torch.as_tensor(np.asarray(value))[None] for name, value in drawn.items()})
    (key,) = (name for name in GOLDEN.files if name.startswith(f"{kind} {side} "))
    numbers = OURS[kind](GOLDEN[key][severity - 1], side)
    return Draws(severity, {name: torch.as_tensor(np.asarray(value))[None] for name, value in numbers.items()})


def pixels(array: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)[None].contiguous()


@pytest.mark.parametrize("kind", BOTH)
def test_the_authors_draws_give_the_authors_pixels(kind: str) -> None:
    sides = [side for side in (24, 17) if f"{kind} {side}" in GOLDEN.files]
    assert sides == ([24, 17] if kind in ("blue_noise_sample", "brownish_noise") else [24])
    for side in sides:
        for severity in SEVERITIES:
            image, expected = GOLDEN[f"images {side}"][severity - 1], GOLDEN[f"{kind} {side}"][severity - 1]
            result = made_of(kind).apply(pixels(image), draws(kind, severity, side))
            gap = (result.int() - pixels(expected).int()).abs()
            assert gap.max() <= 1 and (gap > 0).float().mean() < 1e-3, severity
            assert (result != pixels(image)).float().mean() > 0.01


@pytest.mark.parametrize("kind", ["lines", *(kind for kind in KINDS if kind not in BENT)])
def test_an_oblong_image_is_the_middle_of_a_square(kind: str) -> None:
    side, severity = 24, 3
    drawn, square = draws(kind, severity, side), pixels(GOLDEN[f"images {side}"][0])
    whole = made_of(kind).apply(square, drawn)
    for part in (
        (slice(None), slice(4, 20)),
        (slice(3, 20), slice(None)),
    ):  # of 17 rows the first of seven is the third
        cut = square[..., part[0], part[1]].contiguous()
        assert torch.equal(made_of(kind).apply(cut, drawn), whole[..., part[0], part[1]]), part


@pytest.mark.parametrize("kind", BENT)
@pytest.mark.parametrize("first", [4, 8])  # of 24 rows; a cell of pinch_and_twirl has 8
def test_around_an_oblong_image_is_black(kind: str, first: int) -> None:
    side, severity = 24, 4
    drawn, square = draws(kind, severity, side), pixels(GOLDEN[f"images {side}"][0])
    last = side - first - (first == 8)  # of an odd number of rows one more is below
    square[..., :first, :], square[..., last:, :] = 0, 0
    for rows, columns, whole in (
        (slice(first, last), slice(None), square),
        (slice(None), slice(first, last), square.transpose(2, 3).contiguous()),
    ):
        expected = made_of(kind).apply(whole, drawn)[..., rows, columns]
        cut = made_of(kind).apply(whole[..., rows, columns].contiguous(), drawn)
        assert (cut.int() - expected.int()).abs().max() <= 1, rows


@pytest.mark.parametrize("kind", BOTH)
def test_each_image_has_its_own_draws_whatever_else_is_in_the_batch(kind: str) -> None:
    images = torch.randint(0, 256, (3, 3, 32, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rng = SampleRng.of(["a", "b", "c"], seed=0, condition=kind, device="cpu")
    together = made_of(kind)(images, severity=3, rng=rng)
    alone = made_of(kind)(images[1:2], severity=3, rng=rng.take(torch.tensor([1])))
    assert torch.equal(together[1], alone[0]) and together.shape == images.shape
    same = made_of(kind)(images[:1].expand(3, -1, -1, -1).contiguous(), severity=5, rng=rng)
    assert torch.equal(same[0], same[1]) == (kind == "circular_motion_blur")


def test_stronger_severities_change_more() -> None:
    image = pixels(GOLDEN["images 24"][2])
    rng = SampleRng.of([str(number) for number in range(20)], seed=1, condition="c-bar", device="cpu")
    images = image.expand(20, -1, -1, -1).contiguous()
    for kind in BOTH:
        changes = [(made_of(kind)(images, s, rng).float() - images.float()).abs().mean() for s in (1, 3, 5)]
        assert changes[0] < changes[1] < changes[2], kind


def test_the_set_is_its_own_and_enters_no_other() -> None:
    assert expand("in-c-bar") == dict.fromkeys(KINDS, (1, 2, 3, 4, 5)) and len(KINDS) == 10
    assert [*CORRUPTIONS][19:34] == [*BOTH]
    others = [name for name in SETS if "-c-bar" not in name]
    assert not any(set(SETS[name]) & set(KINDS) for name in others)
    texts = [f"corruption({kind},severity={severity})" for kind in KINDS for severity in SEVERITIES]
    assert [mean for mean in possible_means(texts) if mean in SETS] == ["in-c-bar"]
    with pytest.raises(ValueError, match="corruption_number is 19; expected 0 to 18"):
        corrupt(torch.zeros(1, 3, 32, 32), severity=1, corruption_number=19)


def test_levels_of_small_images_are_the_authors() -> None:
    """`cifar10_c_bar.csv` of their code: the kinds that it has in common with ImageNet-C-bar."""
    assert {name: PRESETS["cifar"][name] for name in BOTH if name in PRESETS["cifar"]} == {
        "blue_noise_sample": (0.7, 1.4, 2.1, 3.5, 4.2),
        "checkerboard_cutout": (1.0, 2.0, 3.0, 4.0, 5.0),
        "inverse_sparkles": (1.0, 1.5, 2.5, 4.5, 5.0),
        "brownish_noise": (2.5, 4.0, 5.5, 6.5, 7.0),
        "sparkles": (0.7, 3.5, 5.6, 6.3, 7.0),
        "pinch_and_twirl": (5.5, 6.0, 6.5, 8.5, 10.0),
        "ripple": (5.5, 6.0, 6.5, 7.5, 8.0),
        "circular_motion_blur": (2.8, 3.6, 4.4, 5.2, 6.0),
        "lines": (0.5, 1.0, 1.5, 2.0, 2.5),
        "transverse_chromatic_abberation": (1.0, 2.0, 5.0, 9.0, 10.0),
    }
    assert set(SETS["cifar-c-bar"]) == {name for name in BOTH if name in PRESETS["cifar"]}


def test_kinds_without_constants_for_small_images_are_refused_before_the_run(tmp_path: Path) -> None:
    import robustkit

    options: dict[str, Any] = {"data_dir": "embedded:shapes", "limit": 4, "attacks": "none", "setup_check": False}
    with pytest.raises(ProtocolError) as raised:
        robustkit.audit(
            "zoo:shapes-vit-standard", out=tmp_path / "run", corruptions="in-c-bar", constants="cifar", **options
        )
    lacking = "caustic_refraction, perlin_noise, plasma_noise, cocentric_sine_waves, single_frequency_greyscale"
    assert f"{lacking}: no constants for images of 32x32 (--constants cifar); leave them out (-caustic" in str(
        raised.value
    )
    run = robustkit.audit(
        "zoo:shapes-vit-standard", out=tmp_path / "run", corruptions="in-c-bar(severity=3)", **options
    )
    (row,) = (row for row in run.summary() if row.condition.startswith("in-c-bar") and row.metric == "mean_error")
    assert row.condition == "in-c-bar(severity=3)" and 0 <= row.value <= 1
    assert not any(row.metric == "mce" for row in run.summary())
    with pytest.raises(RobustkitError):
        robustkit.audit("zoo:shapes-vit-standard", out=tmp_path / "no", corruptions="in-c-bars", **options)


def test_light_is_softened_as_scipy_does_borders_included() -> None:
    light = np.random.default_rng(0).random((2, 13, 13))
    expected = [gaussian_filter(each, sigma=1) for each in light]
    assert np.allclose(_softened(torch.from_numpy(light)).numpy(), expected, rtol=0, atol=1e-12)


def test_null_slopes_of_perlin_noise_are_no_noise() -> None:
    """Drawn once in 1000 images; the authors' code divides 0 by 0 there, and makes patches black."""
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    perlin = corruption("perlin_noise")
    draws = Draws(
        3,
        {
            "swaps": torch.rand(1, 256, generator=torch.Generator().manual_seed(1)),
            "slopes": torch.full((1, 256, 2), 0.5),
        },
    )
    share = perlin.level(3)
    expected = ((images.float() * (1 - share)).double() + 255 * share / 2).floor().byte()
    assert torch.equal(perlin.apply(images, draws), expected)
