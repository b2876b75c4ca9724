"""Choose the device and the dtype that a model computes in."""

from __future__ import annotations

import os
import re

import torch

from ..errors import ModelError, unknown

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # float16 gradients vanish: a weak attack, unseen


def local_rank() -> int:
    """Return the rank of this process among those on this machine; 0 for the only one."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def pick_device(name: str) -> torch.device:
    """Return the device; `auto` is CUDA if available. Of the processes that torchrun started, each takes its own
    device.

    Raises:
        ModelError: there is no such device.
    """
    if name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", local_rank() % torch.cuda.device_count())
    if not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", name):
        raise ModelError(unknown("device", name, ("auto", "cpu", "cuda", "cuda:N")))
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as fault:
        said = re.split(r"\. |\n", str(fault), maxsplit=1)[0][:160].rstrip(".")
        raise ModelError(f"device {name!r} cannot be used ({said}); use --device auto") from None
    return device


def unknown_dtype(name: str) -> str:
    """Return one line about a dtype that is not supported."""
    return unknown("dtype", name, DTYPES)
