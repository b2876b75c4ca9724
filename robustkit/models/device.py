"""Choose the device and the dtype that a model computes in."""

from __future__ import annotations

import platform
import re
from functools import cache

import torch

from ..common.environment import count_in
from ..errors import ModelError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # float16 gradients vanish: a weak attack, unseen


def pick_device(name: str) -> torch.device:
    """Return a device by its name, as torch gives it; `auto` is the accelerator that torch reports, else the CPU.

    Of the processes that torchrun started on this machine, each takes its own device.

    Raises:
        ModelError: there is no such device, or it is one and there are several processes.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = found or torch.device("cpu")
    elif re.fullmatch(r"[a-z]+(:\d+)?", name) and name.partition(":")[0] not in ("auto", "meta"):
        device = _named(name)
    else:
        raise _unknown(name)
    if device.type != "cpu":
        device = _own(device, name)
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError, AttributeError) as fault:
        said = re.split(r"\. |\n", str(fault), maxsplit=1)[0][:160].rstrip(".")
        raise ModelError(f"device {name!r} cannot be used ({said}); use --device auto") from None
    return device


def _named(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise _unknown(name) from None


def _unknown(name: str) -> ModelError:
    return ModelError(unknown("device", name, ("auto", "cpu", "cuda", "cuda:N", "mps", "xpu")))


def _own(device: torch.device, name: str) -> torch.device:
    """Return the device of this process, by its rank among those on this machine."""
    processes, rank = count_in("LOCAL_WORLD_SIZE", 1), count_in("LOCAL_RANK", 0)
    if device.index is not None and name != "auto":
        if processes > 1:
            raise ModelError(
                f"device {name!r} is one device for {processes} processes; use --device {device.type}, then each takes "
                "its own"
            )
        return device
    try:
        count = torch.get_device_module(device).device_count()
    except (RuntimeError, ImportError, AttributeError):  # this build of torch lacks it, which the caller will find out
        return device
    return torch.device(device.type, rank % count) if count else device


@cache
def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64; Apple's and some of Intel's do not."""
    try:
        torch.ones(1, dtype=torch.float64, device=device).add(1)
    except (RuntimeError, TypeError):
        return False
    return True


def device_name(device: torch.device) -> str:
    """Return what a device calls itself, as records state it."""
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    return f"{device.type} ({platform.machine()})"


def devices() -> list[torch.device]:
    """Return the CPU, and the accelerator that torch reports."""
    found = [torch.accelerator.current_accelerator()] if torch.accelerator.is_available() else []
    return [torch.device("cpu"), *(torch.device(device.type) for device in found if device is not None)]


def unknown_dtype(name: str) -> str:
    """Return one line about a dtype that is not supported."""
    return unknown("dtype", name, DTYPES)
