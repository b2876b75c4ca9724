"""Figures that tell the laws of two random corruptions apart: what each image's noise amounts to, over many images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RANDOM = {  # the severities compared; at 1, spatter without a drop is NaN in the reference
    "gaussian_noise": (1, 4),
    "shot_noise": (2, 5),
    "impulse_noise": (1, 4),
    "speckle_noise": (1, 4),
    "glass_blur": (2, 4),
    "motion_blur": (1, 4),
    "snow": (1, 3),
    "frost": (1, 4),
    "fog": (1, 4),
    "spatter": (2, 4),
    "elastic_transform": (2, 5),
}
SEEDS = 400
RINGS, SECTORS = 8, 4


def probe(name: str) -> npt.NDArray[np.uint8]:
    """(32, 48, 3): red rises with the column, green with the row, so that a shift is a difference; blue has lines.

    For fog red and green are flat: fog takes contrast away, and what the image loses would hide the fog's spectrum.
    """
    row, column = np.mgrid[:32, :48]
    lines = np.where((row % 8 == 3) | (column % 12 == 5), 190, 90)
    red, green = (32 + 4 * column, 32 + 6 * row) if name != "fog" else (np.full_like(row, 60), np.full_like(row, 120))
    return np.stack([red, green, lines], axis=-1).astype(np.uint8)


def figures(name: str, corrupted: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """(N, 18) figures of N probes that this corruption corrupted, (N, 32, 48, 3).

    Of the difference to the clean probe: mean and standard deviation in each channel; and of the power of red and green
    the logarithms in the lowest of 8 rings of spatial frequency, of each other ring over the one below it, since an
    image's strength, common to all rings, varies more than its spectrum, and likewise of 4 sectors of direction over
    the lowest ring. A Hann window keeps the low frequencies out of the high rings.
    """
    noise = corrupted.astype(np.float64) - probe(name)
    means, deviations = noise.mean(axis=(1, 2)), noise.std(axis=(1, 2))
    window = np.hanning(noise.shape[1] + 2)[1:-1, None] * np.hanning(noise.shape[2] + 2)[None, 1:-1]
    centred = (noise - means[:, None, None])[..., :2] * window[..., None]
    power = (np.abs(np.fft.fft2(centred, axes=(1, 2))) ** 2).mean(axis=-1).reshape(len(noise), -1)
    down, across = np.fft.fftfreq(noise.shape[1])[:, None], np.fft.fftfreq(noise.shape[2])[None]
    frequency, direction = np.hypot(down, across).ravel(), np.arctan2(down, across).ravel() % np.pi
    ring = np.minimum(frequency / 0.5 * RINGS, RINGS - 1).astype(int)
    sector = ((direction + np.pi / 8) % np.pi / np.pi * SECTORS).astype(int)
    parts = [ring == i for i in range(RINGS)] + [(sector == i) & (frequency > 0) for i in range(SECTORS)]
    bands = np.stack([power[:, part].mean(axis=1) for part in parts], axis=1)
    bands = np.log(bands + 1e-3)
    rings, sectors = bands[:, :RINGS], bands[:, RINGS:] - bands[:, :1]
    return np.concatenate([means, deviations, rings[:, :1], np.diff(rings, axis=1), sectors], axis=1)


def mean_and_error(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(2, 18): the mean over images and its standard error."""
    return np.stack([values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))])
