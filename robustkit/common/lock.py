"""One command at a time in a run folder, or parts of one command together, by locks that end with who holds them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..errors import RunError

FILE, _TURN = ".lock", ".turn"
_OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # through a link, its target would be overwritten
_POLL = 0.05  # seconds


@contextlib.contextmanager
def locked(folder: Path, together: bool = False) -> Iterator[None]:
    """Hold a folder, which is created if it is missing.

    The file that stays behind means nothing: the lock is the kernel's and ends with its process. A file system without
    locks gives none.

    together: with all who say so, too; Windows gives those no lock.

    Raises:
        RunError: another process holds the folder, or it cannot be written.
    """
    with _opened(folder, FILE) as file:
        if not _take(file.fileno(), together):
            raise RunError(f"{folder} is in use by {_holder(file.read())}; wait for it, or use another --out")
        file.truncate(0)
        json.dump({"pid": os.getpid(), "host": platform.node()}, file)
        file.flush()
        yield


@contextlib.contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until nobody else is at this place in a folder; for what takes a moment. Raises RunError as `locked`."""
    with _opened(folder, _TURN) as file:
        while not _take(file.fileno()):
            time.sleep(_POLL)
        yield


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[TextIO]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | _OURS, 0o666)
    except OSError as fault:
        raise RunError(f"cannot write {folder}: {fault.strerror or fault}; choose a folder with --out") from None
    with os.fdopen(handle, "r+", encoding="utf-8") as file:
        yield file


def _take(handle: int, together: bool = False) -> bool:
    """Whether the file is this process's now."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt  # type: ignore[unreachable,unused-ignore]

        try:
            if not together:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if together else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system
    return True


def _holder(text: str) -> str:
    try:
        holder = json.loads(text)
        return f"process {int(holder['pid'])} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
