"""Plain files of a bounded size, whole-file writes, TOML, and locks on folders. A pipe or a device is refused."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from ..errors import RobustkitError, RunError

LARGEST = {".json": 64 << 20}  # Bytes of a file by its suffix; of all others a gigabyte
LINE, LINES = 1 << 20, 1 << 24  # characters of a line; lines of a table
TEXT = 1 << 20  # bytes of a file that a person writes: TOML, a list of classes
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
TABLE = 1 << 27  # bytes of a table or list of samples: ImageNet's two million images
COLUMNS, CELL, CELLS = 64, 256, 1 << 25  # of a table of metadata: columns, characters of a cell or a name, all cells


def check_plain(path: Path, limit: int | None = None) -> None:
    """Raise OSError where a file is missing, not a plain file, or has more than `limit` bytes. Links are followed."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError("not a plain file")
    if limit is not None and status.st_size > limit:
        size, most = (f"{n >> 20} MB" if n >= 1 << 20 else f"{n >> 10} kB" for n in (status.st_size, limit))
        raise OSError(f"{size}, more than the allowed {most}")


def bytes_of(path: Path, limit: int | None = None) -> bytes:
    """Return a file's bytes. limit: default, LARGEST of its suffix. Raises OSError as `check_plain` does."""
    check_plain(path, LARGEST.get(path.suffix, 1 << 30) if limit is None else limit)
    return path.read_bytes()


def text_of(path: Path, limit: int | None = None, *, errors: str = "strict") -> str:
    """Return a file's text, UTF-8. Raises as `bytes_of` does, and UnicodeDecodeError unless `errors` says otherwise."""
    return bytes_of(path, limit).decode("utf-8-sig", errors)


def lines_of(path: Path, limit: int = TABLE) -> Iterator[str]:
    """Yield lines with their ends. Raises as `text_of`, and ValueError for lines that are too long or too many."""
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
    """Return what a JSON text says. Raises ValueError where it is not JSON, or names something twice in one object."""

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique = dict(pairs)
        if len(unique) < len(pairs):
            twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ValueError(f"{twice[:80]!r} is named more than once in one object, expected once")
        return unique

    try:
        return json.loads(text, object_pairs_hook=each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def reason_of(fault: Exception) -> str:
    """Return why a file cannot be read, without its name."""
    return (fault.strerror if isinstance(fault, OSError) else None) or str(fault) or type(fault).__name__


def first_line(fault: BaseException, most: int = 160) -> str:
    """Return the first line that an error says, of at most so many characters; its kind where it says nothing."""
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0][:most]


_WINDOWS = os.name == "nt"  # where a file that another process reads at the moment cannot be replaced


def _put(temporary: Path, path: Path) -> None:
    for wait in (0.01, 0.05, 0.2, 1.0) if _WINDOWS else ():
        try:
            temporary.replace(path)
            return
        except PermissionError:
            time.sleep(wait)
    temporary.replace(path)


def write_whole(path: Path, data: bytes, durable: bool = True, remedy: str = "choose a folder with --out") -> None:
    """Write a file so that `path` holds all of it or what it held before; RunError, with the remedy, where it cannot.
    Its mode is the one that the umask leaves. durable: whether it survives a power cut, too, which costs far more.
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
            _put(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable and os.name == "posix":
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; {remedy}") from None


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_DOTS = 1000  # per line; a key of n parts takes time and memory in the square of n


def written_text(path: Path, where: str, error: type[RobustkitError]) -> str:
    """Return the text of a TOML file, odd bytes replaced. Raises `error` for no plain file of at most a megabyte."""
    try:
        return text_of(path, TEXT, errors="replace")
    except OSError as fault:
        raise error(f"{where}: cannot be read ({reason_of(fault)}); expected a TOML file") from None


def parse_toml(text: str, where: str, error: type[RobustkitError]) -> dict[str, Any]:
    """Return the table that `text` holds. Raises `error` where it is not TOML; where: the file, for the message."""
    if any(line.count(".") > _DOTS for line in text.splitlines()):
        raise error(f"{where}: a line with more than {_DOTS} dots; expected a few levels")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise error(f"{where}: tables nested too deeply; expected a few levels") from None
    except tomllib.TOMLDecodeError as fault:
        raise error(f"{where}: not valid TOML: {fault}") from None
    except ValueError as fault:  # raised by whole numbers of thousands of digits
        raise error(f"{where}: not valid TOML: {str(fault).partition(';')[0]}; expected shorter numbers") from None


FILE, _TURN = ".lock", ".turn"
_OURS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)  # through a link, its target would be overwritten
_POLL = 0.05  # seconds


@contextlib.contextmanager
def locked(folder: Path, together: bool = False) -> Iterator[None]:
    """Hold a folder, created if missing; RunError where another process holds it. together: with all who say so, too.
    The lock is the kernel's and ends with its process, the file stays. File systems without locks, and `together` on
    Windows, give none.
    """
    with _opened(folder, FILE) as file:
        if not _take(file.fileno(), together):
            try:
                holder = json.loads(file.read())
                by = f"process {int(holder['pid'])} on {holder['host']}"
            except (ValueError, KeyError, TypeError, OSError):  # Windows lets nobody read what is locked
                by = "another process"
            raise RunError(f"{folder} is in use by {by}; wait for it, or use another --out")
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
