"""Perturbers of NRTK as corruptions: `robustkit audit … --corruptions nrtk_haze --plugin perturbers.py`.

A perturber of NRTK draws from a generator that lives as long as it does, so what it makes of an image depends on the
images before. Here each image has a perturber of its own, whose seed is a draw of this image: the result depends on
neither the batch nor where an audit was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corruptions.base import Corruption, Draws, Rng
from robustkit.errors import PluginError

Pixels = NDArray[np.uint8]  # (H, W, 3), RGB


class Perturber(Corruption):
    """A perturber of NRTK with a table of severities.

    place: `module:Class`. parameter: the argument of the class that a severity is a value of. values: of severities 1
    to 5. seeded: whether the class takes a seed.

    Raises PluginError where the class cannot be imported.
    """

    category = "extra"
    place: ClassVar[str]
    parameter: ClassVar[str]
    values: ClassVar[Sequence[float]]
    seeded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            resolve_name(self.place)
        except (ImportError, AttributeError) as fault:
            what = f"{self.name} needs {self.place}, which cannot be imported ({str(fault).splitlines()[0]})"
            raise PluginError(f"{what}; install it: pip install 'nrtk[headless,pillow,skimage]'") from None

    def constants(self, severity: int) -> float:
        return self.values[severity - 1]

    def draw(self, shape: Sequence[int], severity: int, rng: Rng) -> Draws:
        return Draws(severity, {"seed": rng.uniform((2,), self.name)} if self.seeded else {})

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        value, seeds = self.constants(draws.severity), [0] * len(images)
        if self.seeded:  # draws are multiples of 2^-24: two make 48 bits
            high, low = (draws["seed"].cpu().double() * 2**24).long().unbind(1)
            seeds = (high << 24 | low).tolist()
        shown = images.permute(0, 2, 3, 1).cpu().numpy()
        made = [self.perturb(image.copy(), value, seed) for image, seed in zip(shown, seeds, strict=True)]
        for image in made:
            if image.shape != shown.shape[1:] or image.dtype != np.uint8:
                expected = f"expected uint8 of {shown.shape[1:]}"
                raise PluginError(f"{self.name}: the perturber gives {image.dtype} of {image.shape}; {expected}")
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous().to(images.device)

    def perturb(self, image: Pixels, value: float, seed: int) -> Any:
        """Return one image perturbed. seed: below 2^48."""
        return self._made(seed, **{self.parameter: value})(image=image)[0]

    def _made(self, seed: int, **options: Any) -> Any:
        return resolve_name(self.place)(**options, **({"seed": seed} if self.seeded else {}))


_IMPLS = "nrtk.impls.perturb_image"


class GaussianNoise(Perturber):
    """Normal noise; a severity is its variance, for pixels in [0, 1]."""

    name, parameter, seeded = "nrtk_gaussian_noise", "var", True
    place = f"{_IMPLS}.photometric.noise:GaussianNoisePerturber"
    values = (0.005, 0.01, 0.02, 0.05, 0.1)


class SaltAndPepper(Perturber):
    """Values that are 0 or 255; a severity is the share of them."""

    name, parameter, seeded = "nrtk_salt_and_pepper", "amount", True
    place = f"{_IMPLS}.photometric.noise:SaltAndPepperNoisePerturber"
    values = (0.01, 0.03, 0.06, 0.12, 0.25)


class Dark(Perturber):
    """Less light; a severity is what pixels are multiplied by."""

    name, parameter = "nrtk_dark", "factor"
    place = f"{_IMPLS}.photometric.enhance:BrightnessPerturber"
    values = (0.8, 0.6, 0.45, 0.3, 0.15)


class Haze(Perturber):
    """Haze in the image's mean colour, everywhere at depth 1; a severity is its optical thickness."""

    name, parameter = "nrtk_haze", "factor"
    place = f"{_IMPLS}.environment:HazePerturber"
    values = (0.3, 0.6, 1.0, 1.5, 2.2)


class Translation(Perturber):
    """The image shifted, black behind it; a severity is the largest shift, a share of each side."""

    name, parameter, seeded = "nrtk_translation", "max_translation_limit", True
    place = f"{_IMPLS}.geometric.random:RandomTranslationPerturber"
    values = (0.05, 0.1, 0.15, 0.2, 0.3)

    def perturb(self, image: Pixels, value: float, seed: int) -> Any:
        """The limit, in pixels, is an argument of the call."""
        limit = tuple(max(1, round(value * side)) for side in image.shape[:2])
        return self._made(seed)(image=image, max_translation_limit=limit)[0]


PLUGINS = {"corruptions": {each.name: each for each in (GaussianNoise, SaltAndPepper, Dark, Haze, Translation)}}
