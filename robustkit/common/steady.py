"""Hold torch's settings and generators still while a model is asked, and leave them as they were found."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

_OPERATIONS = {"cuda": ("matmul",), "cudnn": ("conv", "rnn"), "mkldnn": ("matmul", "conv", "rnn")}
"""What has an `fp32_precision` under torch.backends, since torch 2.9."""
_fill: Any = torch.utils.deterministic
_LACKS_ORDER = re.compile(r"(\S+) does not have a deterministic implementation|(\w+ Attention) defaults to a non-det")


@contextmanager
def float32() -> Iterator[None]:
    """Compute float32 as float32: not in TF32, nor in bfloat16, whatever the user has set."""
    older, newer = _older(), _newer()
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


def _older() -> list[tuple[Callable[[Any], object], Any]]:
    """Return the settings of before torch 2.9 and how to put them back, but for those that torch will not tell because
    the user has chosen by the newer ones.
    """
    settings: list[tuple[Callable[[Any], object], Any]] = []
    with suppress(RuntimeError):
        settings.append((torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    with suppress(RuntimeError):
        settings.append((partial(setattr, torch.backends.cudnn, "allow_tf32"), torch.backends.cudnn.allow_tf32))
    return settings


def _newer() -> list[tuple[Any, str]]:
    """Return the settings since torch 2.9, parents first."""
    backends: list[Any] = [torch.backends]
    for name, operations in _OPERATIONS.items():
        backend = getattr(torch.backends, name)
        backends += [backend, *(getattr(backend, operation, None) for operation in operations)]
    return [(each, each.fp32_precision) for each in backends if hasattr(each, "fp32_precision")]


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of the host and of one device; those of other devices are not touched."""
    module = None if device.type in ("cpu", "meta") else torch.get_device_module(device)
    where = () if module is None or device.type == "mps" else (device,)  # Apple's has one generator, and no argument
    state = None if module is None else module.get_rng_state(*where)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            if module is not None:
                _reseed(device, module, seed)
            yield
        finally:
            if module is not None:
                module.set_rng_state(state, *where)


def _reseed(device: torch.device, module: Any, seed: int) -> None:
    if device.type == "mps":
        module.manual_seed(seed)
        return
    with module.device(device):
        module.manual_seed(seed)


@contextmanager
def ordered(device: torch.device, strict: bool = True) -> Iterator[set[str]]:
    """Ask an accelerator for algorithms that give the same bits each time.

    strict: torch raises where an operation has none, see `lacks_order`. Otherwise the operation goes on without, and
    its name is in the set that is given, once the context is left.
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
        if strict:
            yield names
        else:
            with _warned(names):
                yield names
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
        _fill.fill_uninitialized_memory = fill


def lacks_order(message: object) -> str:
    """Return the operation that has no deterministic algorithm, as torch's error or warning names it; else nothing."""
    match = _LACKS_ORDER.search(str(message))
    return (match[1] or match[2]) if match else ""


@contextmanager
def _warned(names: set[str]) -> Iterator[None]:
    """Gather the operations that torch warns of; other warnings pass."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if name := lacks_order(warning.message):
            names.add(name)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
