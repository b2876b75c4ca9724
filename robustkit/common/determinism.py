"""Hold torch's settings and generators still while a model is asked, and leave them as they were found."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch

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
    """Return the settings since torch 2.9, parents first."""
    backends: list[Any] = [torch.backends]
    for name, operations in _OPERATIONS.items():
        backend = getattr(torch.backends, name)
        backends += [backend, *(getattr(backend, operation, None) for operation in operations)]
    return [(each, each.fp32_precision) for each in backends if hasattr(each, "fp32_precision")]


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators of the host and of one device. On leaving, those of all devices are as they were, whatever
    was drawn or seeded meanwhile: a network may call `torch.manual_seed`, which reaches every device.
    """
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
    """Return the states of the generators of all accelerators that are in use, and how to put them back."""
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
    """Gather the operations that torch warns of; other warnings pass."""
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
