"""Numbers in environment variables, as torchrun and batch systems set them. Loads no torch."""

from __future__ import annotations

import os

from ..errors import RunError


def count_in(name: str, usual: int) -> int:
    """Return the number in a variable; `usual` where it is not set, or empty. Raises RunError for anything else."""
    text = os.environ.get(name, "").strip()
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RunError(f"{name} is {text[:40]!r}; expected a whole number, as torchrun sets it: unset it, or mend it")
    return int(text)
