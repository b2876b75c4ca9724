"""Plain files of a bounded size. A pipe or a device is refused before it is opened: it would never end."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import RunError

LARGEST = {".json": 64 << 20}
"""Bytes of a file by its suffix; of all others a gigabyte."""
LINE, LINES = 1 << 20, 1 << 24  # characters of a line; lines of a table
TEXT = 1 << 20  # bytes of a file that a person writes: TOML, a list of classes
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
TABLE = 1 << 27  # bytes of a table or list of samples: ImageNet's two million images


def check_plain(path: Path, limit: int | None = None) -> None:
    """Raise OSError where a file is missing, not a plain file, or has more than `limit` bytes. Links are followed."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a plain file")
    if limit is not None and status.st_size > limit:
        size, most = (
            f"{number >> 20} MB" if number >= 1 << 20 else f"{number >> 10} kB" for number in (status.st_size, limit)
        )
        raise OSError(f"{size}, more than the {most} that one can have")


def bytes_of(path: Path, limit: int | None = None) -> bytes:
    """Return a file's bytes. limit: default, LARGEST of its suffix. Raises OSError as `check_plain` does."""
    check_plain(path, LARGEST.get(path.suffix, 1 << 30) if limit is None else limit)
    return path.read_bytes()


def text_of(path: Path, limit: int | None = None, *, errors: str = "strict") -> str:
    """Return a file's text, UTF-8 with or without a byte order mark; limit and errors as in `bytes_of`. Raises
    UnicodeDecodeError, too, unless `errors` says otherwise.
    """
    return bytes_of(path, limit).decode("utf-8-sig", errors)


def lines_of(path: Path, limit: int = TABLE) -> Iterator[str]:
    """Yield the lines of a text, with their ends, one at a time. Raises as `text_of` does, and ValueError for a line of
    more than a million characters, or more than 17 million lines.
    """
    check_plain(path, limit)
    left = LINES
    with path.open(encoding="utf-8-sig", newline="") as file:
        while line := file.readline(LINE):
            left -= 1
            if len(line) == LINE or left < 0:
                many = f"more than {LINES} lines" if left < 0 else f"a line of more than {LINE} characters"
                raise ValueError(many)
            yield line


def json_of(path: Path, limit: int | None = None) -> Any:
    """Return what a JSON file holds. Raises OSError as `check_plain` does, and ValueError as `json_in`."""
    return json_in(text_of(path, limit))


def json_in(text: str | bytes) -> Any:
    """Return what a JSON text says. Raises ValueError where it is not JSON, or names something twice in one object:
    readers would disagree about which counts.
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice[:80]!r} is named more than once in one object, expected once")
    return unique


def reason(fault: Exception) -> str:
    """Return why a file cannot be read, without its name."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault) or type(fault).__name__


def write_whole(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file so that, whatever happens, `path` holds all of it or what it held before. Its mode is the one that
    the user's umask leaves.

    durable: whether it survives a power cut, too, which costs far more.

    Raises:
        RunError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
        # Not by tempfile, whose files are for their owner alone: this one gets the mode that the umask leaves.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(path.parent)
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; choose a folder with --out") from None


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
