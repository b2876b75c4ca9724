"""Handle standard output and error that are closed, a pipe whose reader left, or in an encoding with few letters."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from ..display.text import no_commands

SIGPIPE_STATUS = 141  # 128 + SIGPIPE, as a shell reports for a command whose reader left


def prepare_streams() -> None:
    """Put the null device where a stream is closed, or the next file takes its place; escape what it cannot encode."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            _silence(number)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
        elif getattr(getattr(sys, name), "errors", "") == "strict":
            getattr(sys, name).reconfigure(errors="backslashreplace")
    guard()


class Inert:
    """A stream that takes text which GitHub's runner would obey, and writes it so that it does not. obeyed: itself."""

    def __init__(self, stream: TextIO) -> None:
        self.obeyed, self._line = stream, ""

    def write(self, text: str) -> int:
        harmless = no_commands(self._line + text)
        self.obeyed.write(harmless[len(self._line) :])
        line = re.split(r"[\r\n]", harmless)[-1]
        # Enough of it to know how the line begins, and how it ends so far.
        self._line = line if not line.replace(":", "").strip() else f"x{line[-2:]}"
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):  # by which others would write past it
            raise AttributeError(name)
        return getattr(self.obeyed, name)


def guard() -> None:
    """Have what is printed in a GitHub workflow obeyed by nobody: names and texts in it are those of strangers."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for name in ("stdout", "stderr"):
            if not isinstance(stream := getattr(sys, name), Inert):
                setattr(sys, name, Inert(stream))


def ignore_broken_pipe() -> None:
    """Continue without standard output, which is no longer read."""
    global _broken
    _broken = True
    _silence(1)


def finish(status: int) -> int:
    """Flush standard output; return the exit status, SIGPIPE's where nothing read it. Raises OSError as on a full
    disk."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        ignore_broken_pipe()
    return SIGPIPE_STATUS if _broken and status == 0 else status


_broken = False


def _silence(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)  # the number itself, where it is the lowest that is free
    if null != number:
        os.dup2(null, number)
        os.close(null)
