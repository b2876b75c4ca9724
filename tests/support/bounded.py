"""A bound on the memory that a step may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def memory(what: str) -> int:
    """VmRSS, what this process holds, or VmHWM, the most that it held, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


@contextmanager
def at_most(room: int) -> Iterator[None]:
    """The peak of memory lies so far above what is held now, at most."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    except OSError as fault:
        pytest.skip(f"the peak of memory cannot be measured here: {fault}")
    before = memory("VmRSS")
    yield
    assert memory("VmHWM") - before < room


MEMORY, SECONDS = 1 << 30, 30  # beyond what libraries hold; of processor time, where a trap takes minutes
