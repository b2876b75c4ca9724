"""Our own draws against the reference's: the laws of what they do to a probe, from the figures in the golden file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from corruption_figures import RANDOM, SEEDS, figures, mean_and_error, probe
from corruption_goldens import OWN, channels_first
from legacy_draws import write_frost_photographs

from corruptions.registry import CORRUPTIONS, corruption
from robustkit.common.determinism import SampleRng

pytestmark = pytest.mark.usefixtures("one_thread")
Z_BOUND = 4.5  # the largest of 400 figures of equal laws is rarely above 3.5; seeds are fixed


@pytest.mark.parametrize("name", RANDOM)
def test_own_draws_have_the_references_law(name: str, tmp_path: Path) -> None:
    """Means, standard deviations and spectra over 400 images, within the errors of both sides (z-scores)."""
    write_frost_photographs(tmp_path)
    made = corruption(name, variant="bethgelab", frost_dir=str(tmp_path))
    images = channels_first(probe(name)[None]).expand(SEEDS, -1, -1, -1).contiguous()
    with np.load(OWN) as arrays:
        laws = arrays[f"law_{name}"]
    for severity, law in zip(RANDOM[name], laws, strict=True):
        rng = SampleRng.of([str(i) for i in range(SEEDS)], seed=0, condition=f"{name} {severity}", device="cpu")
        ours = mean_and_error(figures(name, made(images, severity, rng).permute(0, 2, 3, 1).numpy()))
        gap = np.abs(ours[0] - law[0])
        if name == "glass_blur":  # it truncates twice, and on ramps the last bit of a weight decides
            gap[:3] = np.maximum(gap[:3] - 0.1, 0)
        z = gap / np.hypot(ours[1], law[1])
        worst = int(z.argmax())
        assert z.max() < Z_BOUND, f"severity {severity}, figure {worst}: {ours[0][worst]} for {law[0][worst]}"


class Asked:
    """An `Rng` that notes what it is asked for."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[str, tuple[int, ...]]] = {}

    def uniform(self, shape: Sequence[int], purpose: str) -> torch.Tensor:
        self.calls[purpose] = ("uniform", tuple(shape))
        return torch.zeros(1, *shape)

    def normal(self, shape: Sequence[int], purpose: str) -> torch.Tensor:
        self.calls[purpose] = ("normal", tuple(shape))
        return torch.zeros(1, *shape)


VALUES, PLANE, NUMBER = (3, 20, 37), (20, 37), ()
ASKED = {
    "gaussian_noise": {"normal": ("normal", VALUES)},
    "speckle_noise": {"normal": ("normal", VALUES)},
    "shot_noise": {"uniform": ("uniform", VALUES)},
    "impulse_noise": {"uniform": ("uniform", VALUES)},
    "glass_blur": {"offsets": ("uniform", (3, 16, 33, 2))},
    "motion_blur": {"angle": ("uniform", NUMBER)},
    "snow": {"normal": ("normal", PLANE), "angle": ("uniform", NUMBER)},
    "frost": {"uniform": ("uniform", (3,))},
    "fog": {"uniform": ("uniform", (64 * 64 - 1,))},
    "spatter": {"normal": ("normal", PLANE)},
    "elastic_transform": {"affine": ("uniform", (3, 2)), "dx": ("uniform", PLANE), "dy": ("uniform", PLANE)},
    "caustic_refraction": dict.fromkeys(("time", "size"), ("uniform", ())),
    "inverse_sparkles": {
        "centre": ("uniform", (2,)),
        "rays": ("uniform", ()),
        "lengths": ("normal", (200,)),
    },
    "sparkles": {"centres": ("uniform", (5, 2)), "rays": ("uniform", (5,)), "lengths": ("normal", (5, 200))},
    "perlin_noise": {"swaps": ("uniform", (256,)), "slopes": ("uniform", (256, 2))},
    "blue_noise_sample": {"phases": ("uniform", (1, 37, 18)), "middle": ("uniform", (1, 18))},
    "plasma_noise": dict.fromkeys(("time", "turns", "sharpness", "scale"), ("uniform", ())),
    "checkerboard_cutout": {
        "angle": ("uniform", ()),
        "scale": ("uniform", ()),
        "fields": ("uniform", (40, 40)),
    },
    "cocentric_sine_waves": {
        "offset": ("uniform", (2,)),
        **dict.fromkeys(("frequency", "amplitude", "width"), ("uniform", ())),
    },
    "single_frequency_greyscale": dict.fromkeys(("first", "second", "order", "phase"), ("uniform", ())),
    "brownish_noise": {"phases": ("uniform", (3, 37, 18)), "middle": ("uniform", (3, 18))},
    "pinch_and_twirl": {"signs": ("uniform", (5, 5))},
    "ripple": dict.fromkeys(("wavelengths", "phases"), ("uniform", (2,))),
    "lines": {"angle": ("uniform", ()), "variation": ("uniform", ()), "lines": ("uniform", (256, 3))},
    "transverse_chromatic_abberation": {"order": ("uniform", ())},
    "geometric_shapes": {"shapes": ("uniform", (600, 8))},
    "luminance_checkerboard": {"fields": ("uniform", (2, 3))},
    "stickers": {"stickers": ("uniform", (400, 2))},
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_asks_for_its_numbers_and_no_others(name: str) -> None:
    """So that a draw means the same in every version: purpose, kind and shape are what makes its numbers."""
    for variant in ("hendrycks", "bethgelab"):
        expected = dict(ASKED.get(name, {}))
        if variant == "bethgelab":
            expected.pop("affine", None)
        rng = Asked()
        draws = corruption(name, variant=variant).draw(VALUES, 3, rng)
        assert rng.calls == expected
        assert draws.severity == 3 and set(draws.numbers) == set(expected)
