"""The reference's own random numbers as `corruptions.Draws`: NumPy's legacy stream, in the order of its calls.

With them `apply` has to give the reference's own pixels. Image i of a golden at severity s was made after
`np.random.seed(1000 * s + i)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from scipy import stats

from corruptions.base import Corruption, Draws
from corruptions.constants import PRESETS

Bytes = npt.NDArray[np.uint8]
Numbers = dict[str, npt.NDArray[np.float64]]
FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")


def legacy_draws(
    corruption: Corruption,
    images: Bytes,
    severity: int,
    corrupted: Bytes | None = None,
    frost_dir: str | Path | None = None,
    first: int = 0,
) -> Draws:
    """The draws of a golden, float64; image 0 is the golden's image `first`.

    images, corrupted: (N, H, W, 3); only impulse_noise looks at the second, its seeds being unknown.
    frost_dir: the photographs, whose sizes the reference's draws depend on.
    """
    each = []
    for index, image in enumerate(images):
        stream = np.random.RandomState(1000 * severity + first + index)
        if corruption.name == "impulse_noise":
            assert corrupted is not None
            each.append(_recovered(corruption, image, corrupted[index], severity))
        elif corruption.name == "frost":
            assert frost_dir is not None
            each.append(_frost(corruption, stream, image.shape, Path(frost_dir)))
        elif corruption.name in _STREAMS:
            each.append(_STREAMS[corruption.name](stream, corruption, image, severity))
        else:
            each.append({})
    return Draws(severity, {key: torch.from_numpy(np.stack([one[key] for one in each])) for key in each[0]})


def _constants(corruption: Corruption, severity: int) -> Sequence[float]:
    value = PRESETS[corruption.preset][corruption.name][severity - 1]
    return value if isinstance(value, tuple) else (value,)


def _channels_first(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))


def _noise(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    return {"normal": _channels_first(stream.standard_normal(image.shape))}


def _shot(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    """Any number between F(k - 1) and F(k) has the quantile k that was drawn; the midpoint is farthest from both."""
    mean = image / 255.0 * _constants(corruption, severity)[0]
    count = stream.poisson(mean)
    return {"uniform": _channels_first(stats.poisson.cdf(count - 1, mean) + stats.poisson.pmf(count, mean) / 2)}


def _recovered(corruption: Corruption, image: Bytes, corrupted: Bytes, severity: int) -> Numbers:
    """Where the golden is neither black nor white though the image, truncated like the golden, is not, nothing hit."""
    share = _constants(corruption, severity)[0]
    untouched = (image / 255.0 * 255).astype(np.uint8)
    hit = corrupted != untouched
    uniform = np.where(hit, np.where(corrupted == 0, share / 4, share * 3 / 4), (1 + share) / 2)
    return {"uniform": _channels_first(uniform)}


def _glass(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    """Integers of [-d, d), drawn in bulk: the same stream as two at a time."""
    _, reach, passes = (int(value) for value in _constants(corruption, severity))
    rows, columns = (max(side - 2 * reach, 0) for side in image.shape[:2])
    steps = stream.randint(-reach, reach, size=(passes, rows, columns, 2))
    return {"offsets": (steps + reach + 0.5) / (2 * reach)}


def _motion(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    return {"angle": np.asarray(stream.random_sample())}


def _snow(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    return {"normal": stream.standard_normal(image.shape[:2]), "angle": np.asarray(stream.random_sample())}


def _fog(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    side = 1 << (max(image.shape) - 1).bit_length()  # the benchmark's 256 at 224, CIFAR's 32, bethgelab's everywhere
    return {"uniform": stream.random_sample(side * side - 1)}


def _spatter(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    return {"normal": stream.standard_normal(image.shape[:2])}


def _elastic(stream: np.random.RandomState, corruption: Corruption, image: Bytes, severity: int) -> Numbers:
    affine = {"affine": stream.random_sample((3, 2))} if corruption.variant == "hendrycks" else {}
    return {**affine, "dx": stream.random_sample(image.shape[:2]), "dy": stream.random_sample(image.shape[:2])}


_STREAMS: dict[str, Callable[[np.random.RandomState, Corruption, Bytes, int], Numbers]] = {
    "gaussian_noise": _noise,
    "speckle_noise": _noise,
    "shot_noise": _shot,
    "glass_blur": _glass,
    "motion_blur": _motion,
    "snow": _snow,
    "fog": _fog,
    "spatter": _spatter,
    "elastic_transform": _elastic,
}


def _frost(corruption: Corruption, stream: np.random.RandomState, shape: Sequence[int], folder: Path) -> Numbers:
    """Which photograph, its first row and its first column: integers k below n as (k + 0.5) / n."""
    which = stream.randint(5)
    with Image.open(folder / FROST_FILES[which]) as photograph:
        columns, rows = _rescaled(photograph.size, shape, corruption)
    places = (rows - shape[0], columns - shape[1])
    top, left = (stream.randint(0, n) for n in places)
    return {"uniform": np.array([(which + 0.5) / 5, (top + 0.5) / places[0], (left + 0.5) / places[1]])}


def _rescaled(size: tuple[int, int], shape: Sequence[int], corruption: Corruption) -> tuple[int, int]:
    """(columns, rows) of a photograph as each reference uses it: a fifth, as it is, or 1.1 times what fits."""
    if corruption.preset == "cifar":
        return round(size[0] * 0.2), round(size[1] * 0.2)
    if corruption.variant == "hendrycks":
        return size
    factor = max(1.0, shape[1] / size[0], shape[0] / size[1]) * 1.1
    return int(np.ceil(size[0] * factor)), int(np.ceil(size[1] * factor))


def write_frost_photographs(folder: Path, side: int = 66, seed: int = 0) -> None:
    """Six pictures of about side x side in place of frost's photographs: waves and grain, each in tones of its own.

    All are lossless PNG inside, also those named .jpg as the reference wants them, so that no decoder's rounding
    matters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stream = np.random.RandomState(seed)
    for number, name in enumerate(FROST_FILES):
        rows, columns = side + 2 * number, side + 14 - 2 * number
        y, x = np.mgrid[:rows, :columns]
        tone = stream.randint(40, 200, size=3)
        waves = 25 * (x % 24 // 8)[..., None] + (y * (number + 1) // 4 % 30)[..., None]
        picture = np.clip(tone + waves + stream.randint(-15, 16, size=(rows, columns, 3)), 0, 255)
        with (folder / name).open("wb") as file:
            Image.fromarray(picture.astype(np.uint8)).save(file, "PNG")
