"""Results that repeat: seeded draws, strict float32, ordered kernels.

Every draw depends on (seed, sample id, condition, purpose) and on nothing else: not on the batch size, the order of
samples, the number of workers or processes, or a resume. Each sample has a 64-bit key, the BLAKE2b hash of seed, id and
condition. Word i of a draw is SplitMix64 (Steele, Lea and Flood 2014) of `key ^ hash(purpose)`, advanced i times:
integer arithmetic, hence the same words on every device. Uniform numbers and signs are exact functions of the words;
normal ones may differ by float rounding between devices. torch's settings and generators are left as they were found.
"""

from __future__ import annotations

import hashlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

_OPERATIONS = {"cuda": ("matmul",), "cudnn": ("conv", "rnn"), "mkldnn": ("matmul", "conv", "rnn")}
"""What has an `fp32_precision` under torch.backends, since torch 2.9."""
_fill: Any = torch.utils.deterministic
_LACKS_ORDER = re.compile(
    r"(\S+) does not have a deterministic implementation|(\w+ [Aa]ttention) defaults to a non-deterministic"
    r"|it uses (CuBLAS)"
)
_passed: set[tuple[str, type[Warning], str, int]] = set()  # warnings of others, each of which is passed on once


@contextmanager
def float32() -> Iterator[None]:
    """Compute float32 as float32: not in TF32, nor in bfloat16, whatever the user has set."""
    older, newer = list[tuple[Callable[[Any], object], Any]](), _newer()
    with suppress(RuntimeError):  # not given where the user has chosen by the newer settings
        older.append((torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    with suppress(RuntimeError):
        older.append((partial(setattr, torch.backends.cudnn, "allow_tf32"), torch.backends.cudnn.allow_tf32))
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for backend, _ in newer:
        if backend.fp32_precision not in ("none", "ieee"):
            backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for restore, value in older:
            restore(value)
        for backend, precision in newer:
            if backend.fp32_precision != precision:
                backend.fp32_precision = precision


def _newer() -> list[tuple[Any, str]]:
    backends: list[Any] = [torch.backends]
    for name, operations in _OPERATIONS.items():
        backend = getattr(torch.backends, name)
        backends += [backend, *(getattr(backend, operation, None) for operation in operations)]
    return [(each, each.fp32_precision) for each in backends if hasattr(each, "fp32_precision")]


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of host and device; leaving restores those of all devices, which a network may seed, too."""
    module = None if device.type == "cpu" else torch.get_device_module(device)
    states = _states()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            if module is not None:
                with module.device(device) if device.type != "mps" else nullcontext():
                    module.manual_seed(seed)
            yield
        finally:
            for restore, state in states:
                restore(state)


def _states() -> list[tuple[Callable[[Any], object], Any]]:
    """Return how to put back the generators of all accelerators in use, and their states."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        return []
    module: Any = torch.get_device_module(kind)
    if not getattr(module, "is_initialized", lambda: True)():
        return []
    if kind.type == "mps":  # one generator, and no argument
        return [(module.set_rng_state, module.get_rng_state())]
    count = range(module.device_count())
    return [(partial(module.set_rng_state, device=index), module.get_rng_state(index)) for index in count]


@contextmanager
def ordered(device: torch.device, strict: bool = True) -> Iterator[set[str]]:
    """Ask an accelerator for algorithms that give the same bits each time; yield the names of those that have none.
    Without `strict` an operation that has none goes on, and is in the set once the context is left; else torch raises,
    see `lacks_order`.
    """
    names: set[str] = set()
    if device.type == "cpu":
        yield names
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, fill = torch.backends.cudnn.benchmark, _fill.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.backends.cudnn.benchmark = False  # it would choose by the clock
    _fill.fill_uninitialized_memory = False  # nothing here reads what it did not write
    try:
        with nullcontext() if strict else _warned(names):
            yield names
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
        _fill.fill_uninitialized_memory = fill


def lacks_order(message: object) -> str:
    """Return the operation that has no deterministic algorithm, as torch's error or warning names it; else nothing."""
    match = _LACKS_ORDER.search(str(message))
    return next(filter(None, match.groups())) if match else ""


@contextmanager
def _warned(names: set[str]) -> Iterator[None]:
    others: dict[tuple[str, type[Warning], str, int], None] = {}

    def gather(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: object, **named: object
    ) -> None:
        if name := lacks_order(message):
            names.add(name)
        else:
            others[str(message), category, filename, lineno] = None

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # some of these torch says but once
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = gather
            yield
    finally:
        torch.set_warn_always(always)
        for other in others:
            if other not in _passed:
                _passed.add(other)
                warnings.warn_explicit(*other)


def to_device(values: Tensor, device: torch.device) -> Tensor:
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
    return word - (1 << 64) if word >= 1 << 63 else word


def hash_values(*parts: object) -> int:
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _shift(word: Tensor, bits: int) -> Tensor:
    return (word >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def splitmix64(state: Tensor) -> Tensor:
    word = _shift(state, 30).bitwise_xor_(state).mul_(to_signed(_MIX_1))
    word = word.bitwise_xor_(_shift(word, 27)).mul_(to_signed(_MIX_2))
    return word.bitwise_xor_(_shift(word, 31))


class SampleRng:
    """Random numbers for B samples, each a function of its key; satisfies `attacks.Rng`. keys: (B,) int64, on the
    device of the numbers. seed: of the first sample, for generators that are not a function of the sample; known
    without asking the device.
    """

    def __init__(self, keys: Tensor, seed: int = 0) -> None:
        self.keys, self.seed = keys, seed

    @classmethod
    def of(cls, sample_ids: Sequence[str], *, seed: int, condition: str, device: torch.device | str) -> SampleRng:
        keys = [to_signed(hash_values(seed, condition, sample_id)) for sample_id in sample_ids]
        return cls(to_device(torch.tensor(keys, dtype=torch.int64), torch.device(device)), next(iter(keys), 0))

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
        return SampleRng(self.keys[index], self.seed)


def draw_samples(sample_ids: Iterable[str], count: int, *, seed: int, purpose: str) -> frozenset[str]:
    """Return `count` random samples, of the smallest hashes: a smaller draw is part of a larger one."""
    return frozenset(sorted(sample_ids, key=lambda sample: (hash_values(seed, purpose, sample), sample))[:count])
