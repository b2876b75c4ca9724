"""Handle standard output and error that are closed, a pipe whose reader left, or in an encoding with few letters."""

from __future__ import annotations

import os
import sys

SIGPIPE_STATUS = 141  # 128 + SIGPIPE, as a shell reports for a command whose reader left


def prepare() -> None:
    """Put the null device where a stream is closed, and escape letters that a stream cannot encode, as `\\u2026`.

    Without the first, the next file that is opened would take the stream's place.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            _silence(number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        elif getattr(getattr(sys, name), "errors", "") == "strict":
            getattr(sys, name).reconfigure(errors="backslashreplace")


def broken() -> None:
    """Continue without standard output, which is no longer read."""
    global _broken
    _broken = True
    _silence(1)


def finish(status: int) -> int:
    """Flush standard output; return the exit status, SIGPIPE's where nothing read it and all else was fine.

    Raises OSError where it cannot be written for another reason.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        broken()
    return SIGPIPE_STATUS if _broken and status == 0 else status


_broken = False


def _silence(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)  # the number itself, where it is the lowest that is free
    if null != number:
        os.dup2(null, number)
        os.close(null)
