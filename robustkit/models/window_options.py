"""How a segmenter sees images through windows: from the user's options, the file, and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.preprocessing import LARGEST_SIDE
from ..errors import ModelError
from .input_config import pair
from .windows import Windows

_OVERLAPS = 8  # most windows along a side that a pixel may lie in, if the file gives the stride
_OVERLAP = 32  # pixels that two windows share in the public code, if nothing gives the stride


@dataclass(frozen=True)
class WindowOptions:
    """What the user says about windows; None where the file or the architecture decides."""

    window: int | tuple[int, int] | None = None
    stride: int | tuple[int, int] | None = None
    short_side: int | None = None
    resize: str | None = None


def sides(value: object, option: str) -> tuple[int, int]:
    try:
        return pair(value, option)
    except ModelError:
        raise ModelError(f"{option} is {value!r}; expected one or two positive whole numbers of pixels") from None


def resolve_windows(
    size: tuple[int, int], options: WindowOptions, metadata: Mapping[str, Any], ours: bool, stride: object
) -> tuple[Windows, tuple[str, ...]]:
    """Return the windows, and notes. stride: what the file says, for windows of this size."""
    notes: tuple[str, ...] = ()
    said = options.stride if options.stride is not None else stride
    if said is None:
        rows, columns = (side - _OVERLAP if side > 2 * _OVERLAP else side for side in size)
        said = (rows, columns)
        if rows < size[0]:
            notes += (f"windows of {size[0]}x{size[1]} overlap by {_OVERLAP} pixels; --stride says otherwise",)
    short = options.short_side
    if short is None and options.resize is None:
        short = metadata.get("short_side")
    if short is None and options.resize is None and not ours:
        notes += (
            "images keep their size and are enlarged to a window where they are smaller, as in the public inference; "
            "its data pipeline for ADE20K resizes them to a short side of 512 before that: --resize ade20k",
        )
    if short is not None and not (isinstance(short, int) and short > 0):
        raise ModelError(f"--short-side is {short!r}; expected a positive whole number of pixels")
    if options.short_side is None and short is not None and short > LARGEST_SIDE:
        raise ModelError(f"the file's short side is {short}; expected {LARGEST_SIDE} at most; give --short-side")
    steps = sides(said, "--stride")
    if options.stride is None and any(_OVERLAPS * step < side for step, side in zip(steps, size, strict=True)):
        raise ModelError(
            f"the file's stride is {said!r} for windows of {size[0]}x{size[1]}; expected an eighth of these at least; "
            "give --stride"
        )
    return Windows(size, steps, short, resize=options.resize), notes
