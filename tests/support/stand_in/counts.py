"""What a program does to its device: launches, waits, uploads, each with the line of the project that asked."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
_INSIDE = tuple(f"{ROOT / package}/" for package in ("attacks", "corruptions", "cam", "robustkit", "tests"))
_HERE = str(Path(__file__).parent)


@dataclass
class Counts:
    """What was seen so far. A line is `file:number` of the project's innermost frame.

    launches: by operation; views are free. lines: launches by line. on: launches by device. waits: (what, line), where
    the host needs a value of the device. uploads: (shape, line) of tensors that went to the device. staged: those of
    them that did not lie in pinned memory, which the driver copies a second time. moved: bytes "up" and "down".
    doubles: launches by line that give float64. unordered: (operation, line) of floating-point operations that CUDA
    adds up in no fixed order.
    calls: of torch.cuda.
    """

    launches: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    on: Counter[int] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    uploads: Counter[tuple[tuple[int, ...], str]] = field(default_factory=Counter)
    staged: Counter[tuple[tuple[int, ...], str]] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    doubles: Counter[str] = field(default_factory=Counter)
    unordered: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def launched(self) -> int:
        return sum(self.launches.values())

    @property
    def stops(self) -> int:
        """How often the host waited for the device."""
        return sum(self.waits.values())

    @property
    def uploaded(self) -> int:
        return sum(self.uploads.values())

    def forget(self) -> None:
        """Begin again from nothing."""
        for counter in fields(self):
            getattr(self, counter.name).clear()


def line() -> str:
    """Return the line of the project that asked for what happens now."""
    frame = sys._getframe(1)
    while frame is not None:
        if name := _ours(frame.f_code.co_filename):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "backward"


@cache
def _ours(name: str) -> str:
    """Return a file of the project as its path from the root, and nothing for all others."""
    return str(Path(name).relative_to(ROOT)) if name.startswith(_INSIDE) and not name.startswith(_HERE) else ""
