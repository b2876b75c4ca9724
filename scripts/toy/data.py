"""The toy retrieval task of QUEST (§2.2, A.3): sequences of vectors, one of which holds the answer.

A token is 20 numbers: 10 real ones and a one-hot vector of 10 classes. The real part is N(0, I) everywhere but at the
answer's location, where it is N(0, SSᵀ), or, in the biased half of the training samples, N(b, 0.1 I). The class at that
location is the label. So the answer is the vector that looks unlike the others; looking for b finds it in half of
the samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY, CLASSES = 10, 10
WIDTH = KEY + CLASSES
CENTRE, SPREAD = 10.0, 2.0  # of the answer's location, before it is made an integer
BIAS_VARIANCE = 0.1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """tokens: (S, N, 20) float32. labels, places: (S,), the class and the location of the answer. biased: (S,) bool."""

    tokens: Tensor
    labels: Tensor
    places: Tensor
    biased: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Realisation:
    """What is drawn once for a realisation of the data, and shared by all its samples.

    mixing: S, (10, 10), so that SSᵀ is the answer's covariance. bias: b, (10,).
    """

    number: int
    mixing: Floats
    bias: Floats

    @classmethod
    def draw(cls, number: int) -> Realisation:
        """Draw the realisation of that number, on which alone it depends."""
        generator = _generator(number, 0)
        mixing = generator.standard_normal((KEY, KEY))
        return cls(number, mixing, mixing @ generator.standard_normal(KEY))

    def samples(self, count: int, length: int, *, purpose: int, biased: float, uniform: bool = False) -> Samples:
        """Draw `count` sequences of `length` tokens.

        purpose: which draws; other numbers give other samples. biased: the share of samples with the bias vector.
        uniform: locations uniform over the sequence, instead of normal around 10.
        """
        generator = _generator(self.number, 1 + purpose)
        if uniform:
            places = generator.integers(0, length, count)
        else:
            places = np.trunc(generator.normal(CENTRE, SPREAD, count)).astype(np.int64).clip(0, length - 1)
        is_biased = generator.random(count) < biased
        free = generator.standard_normal((count, KEY)) @ self.mixing.T
        bound = self.bias + np.sqrt(BIAS_VARIANCE) * generator.standard_normal((count, KEY))
        classes = generator.integers(0, CLASSES, (count, length))
        tokens = np.concatenate([generator.standard_normal((count, length, KEY)), np.eye(CLASSES)[classes]], axis=-1)
        rows = np.arange(count)
        tokens[rows, places, :KEY] = np.where(is_biased[:, None], bound, free)
        return Samples(
            torch.from_numpy(tokens.astype(np.float32)),
            torch.from_numpy(classes[rows, places]),
            torch.from_numpy(places),
            torch.from_numpy(is_biased),
        )

    def order(self, count: int, epoch: int) -> Tensor:
        """Return the order (S,) of the training samples in this epoch."""
        return torch.from_numpy(_generator(self.number, 1_000 + epoch).permutation(count))


def _generator(number: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([0x70F, number, purpose])))
