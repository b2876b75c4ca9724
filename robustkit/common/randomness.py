"""Randomness as a function: every draw depends on (seed, sample id, condition, purpose) and on nothing else.

So draws do not change with the batch size, the order of samples, the number of workers or processes, or a resume.

Each sample has a 64-bit key, the BLAKE2b hash of seed, id and condition. Word i of a draw is SplitMix64 (Steele, Lea
and Flood 2014) of `key ^ hash(purpose)`, advanced i times: integer arithmetic, hence the same words on every device.
Uniform numbers and signs are exact functions of the words; normal ones may differ by float rounding between devices.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for what the device is doing."""
    return values.to(device, non_blocking=device.type == "cuda")


def stack_on(inputs: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors of one shape as one on a device: gathered in memory that a GPU reads by itself."""
    if device.type != "cuda":
        return torch.stack(list(inputs)).to(device)
    pinned = torch.empty((len(inputs), *inputs[0].shape), dtype=inputs[0].dtype, pin_memory=True)
    return torch.stack(list(inputs), out=pinned).to(device, non_blocking=True)


_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def to_signed(word: int) -> int:
    """Return a 64-bit word as torch's int64 holds it."""
    return word - (1 << 64) if word >= 1 << 63 else word


def hash_values(*parts: object) -> int:
    """Return a 64-bit hash of the texts of some values."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _shift(word: Tensor, bits: int) -> Tensor:
    """Return a logical shift to the right; torch's own keeps the sign."""
    return (word >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def splitmix64(state: Tensor) -> Tensor:
    word = _shift(state, 30).bitwise_xor_(state).mul_(to_signed(_MIX_1))
    word = word.bitwise_xor_(_shift(word, 27)).mul_(to_signed(_MIX_2))
    return word.bitwise_xor_(_shift(word, 31))


class SampleRng:
    """Random numbers for a batch of B samples, a function of each sample's key; satisfies `attacks.Rng`.

    keys: (B,) int64, on the device where the numbers are wanted. seed: of the first sample, for generators that are
    not a function of the sample; it is known without asking the device.
    """

    def __init__(self, keys: Tensor, seed: int = 0) -> None:
        self.keys, self.seed = keys, seed

    @classmethod
    def of(cls, sample_ids: Sequence[str], *, seed: int, condition: str, device: torch.device | str) -> SampleRng:
        """Return the source for these samples under this condition."""
        keys = [to_signed(hash_values(seed, condition, sample_id)) for sample_id in sample_ids]
        return cls(upload(torch.tensor(keys, dtype=torch.int64), torch.device(device)), next(iter(keys), 0))

    def _words(self, count: int, purpose: str, first: int = 0) -> Tensor:
        """Return words first, ..., first + count - 1 of each sample's stream: (B, count) int64."""
        counter = torch.arange(first + 1, first + 1 + count, dtype=torch.int64, device=self.keys.device)
        state = self.keys ^ to_signed(hash_values("purpose", purpose))
        return splitmix64(splitmix64(state)[:, None] + counter * to_signed(_GOLDEN))

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) float32 in [0, 1), multiples of 2^-24: two of each word."""
        first, second = self._pairs(shape, purpose)
        return self._joined(first.mul_(2.0**-24), second.mul_(2.0**-24), shape)

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        """Return (B, *shape) float32, standard normal: two of each word by the Box-Muller transform."""
        first, second = self._pairs(shape, purpose)
        radius = first.add_(1).mul_(2.0**-24).log_().mul_(-2.0).sqrt_()
        angle = second.mul_(2.0 * math.pi * 2.0**-24)
        return self._joined(angle.cos().mul_(radius), angle.sin_().mul_(radius), shape)

    def _pairs(self, shape: Sequence[int], purpose: str) -> tuple[Tensor, Tensor]:
        """Return the upper 24 bits of as many words as there are pairs, and the 24 bits below: (B, words) float32."""
        words = self._words(-(-math.prod(shape) // 2), purpose)
        return _shift(words, 40).float(), (words >> 16).bitwise_and_(0xFFFFFF).float()

    @staticmethod
    def _joined(first: Tensor, second: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the numbers of both in turn: (B, *shape)."""
        return torch.stack((first, second), dim=-1).flatten(1)[:, : math.prod(shape)].reshape(-1, *shape)

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        """Return (B, *shape) float32 of -1 and 1: rows first, first + 1, ... along shape[0] of an endless draw."""
        rows, *rest = shape
        size = math.prod(rest)
        per_row = -(-size // 64)
        words = self._words(rows * per_row, purpose, first * per_row).reshape(-1, rows, per_row)
        bit = torch.arange(8, dtype=torch.uint8, device=words.device)
        bits = (words.view(torch.uint8).unsqueeze(-1) >> bit) & 1
        return bits.reshape(-1, rows, per_row * 64)[..., :size].float().mul_(2).sub_(1).reshape(-1, *shape)

    def to(self, device: torch.device) -> SampleRng:
        return SampleRng(self.keys.to(device), self.seed)

    def take(self, index: Tensor) -> SampleRng:
        """Return the source for the samples `index` of this batch."""
        return SampleRng(self.keys[index], self.seed)


def draw_samples(sample_ids: Iterable[str], count: int, *, seed: int, purpose: str) -> frozenset[str]:
    """Return `count` of the samples at random, or all where there are fewer: those of the smallest hashes of seed,
    purpose and id, so that a smaller draw is part of a larger one.
    """
    return frozenset(sorted(sample_ids, key=lambda sample: (hash_values(seed, purpose, sample), sample))[:count])
