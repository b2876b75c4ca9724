"""What the environment has: numbers in variables, as torchrun and batch systems set them; threads; libraries."""

from __future__ import annotations

import ctypes
import os
from importlib import import_module
from typing import Any

from ..errors import ModelError, RunError

OFFLINE = "ROBUSTKIT_OFFLINE"  # set where no server is to be asked
LATEST = 253402300799  # The last second of the year 9999, since 1970


def check_date() -> None:
    """Raise RunError where SOURCE_DATE_EPOCH, which libraries of ours read when they are loaded, is no time."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if text is not None and not (text.isascii() and text.isdecimal() and int(text[:13]) <= LATEST and len(text) < 13):
        expected = "whole seconds since 1970, such as 1700000000: unset it, or fix it"
        raise RunError(f"SOURCE_DATE_EPOCH is {text[:40]!r}; expected {expected}")


def count_in(name: str, usual: int) -> int:
    """Return the number in a variable; `usual` where it is not set, or empty. Raises RunError for anything else."""
    text = os.environ.get(name, "").strip()
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RunError(f"{name} is {text[:40]!r}; expected a whole number, as torchrun sets it: unset it, or fix it")
    return int(text)


def usual_workers() -> int:
    """Return how many threads decode images by default: one per usable core, shared among torchrun's processes."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // max(1, count_in("LOCAL_WORLD_SIZE", 1)))


def path_limit() -> int | None:
    """Return how many characters a path may have: None but on Windows where long paths are off."""
    if os.name != "nt":
        return None
    library = ctypes.windll.ntdll  # type: ignore[attr-defined,unused-ignore]
    return None if library.RtlAreLongPathsEnabled() & 0xFF else 259  # a BOOLEAN, which fills one byte


def import_extra(library: str, extra: str, what: str, instead: str = "") -> Any:
    """Return an optional library. what: what needs it, in a message; instead: what else the user may do. ModelError
    where it is not installed, with the extra that brings it."""
    try:
        return import_module(library)
    except ImportError as error:
        why = f"{what} needs {library}, which is not installed ({error})"
        raise ModelError(f'{why}; pip install ".[{extra}]" in a clone of this project{instead}') from error
