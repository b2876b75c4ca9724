"""Read and write the files of a run folder: run.json, read once, and other files, never through a link."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from ..common.files import bytes_of, json_in, text_of, write_whole
from ..errors import RunError
from .binding import Unit
from .manifest import Manifest, encode_manifest, manifest_of

OWN = (
    *("run.json", "summary.json", "summary.csv", "report.html", "refused.json"),
    *("records", "timings", "evidence", "pictures", "adversarials", "features"),
)
OWN_PICTURES = ("cams", "scenes")
"""The files and folders that commands write and read in a run folder; everything else there is left alone."""


def refuse_links(folder: Path) -> None:
    """Raise RunError for the first link among a run folder's own files. The folder itself may be one."""
    for name in (*OWN, *OWN_PICTURES):
        for link in _links(folder / name):
            raise _refusal(link)


def refuse_link(path: Path, folder: Path) -> None:
    """Raise RunError where a path in the folder, or a folder on the way to it, is a link."""
    inside = path.relative_to(folder)
    for part in (*reversed(inside.parents[:-1]), inside):
        if (folder / part).is_symlink():
            raise _refusal(folder / part)


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
        return
    waiting = [path] if path.is_dir() else []
    while waiting:
        with contextlib.suppress(PermissionError), os.scandir(waiting.pop()) as entries:  # reading will say so
            for entry in entries:
                if entry.is_symlink():
                    yield Path(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


def _refusal(link: Path) -> RunError:
    try:
        there = str(link.readlink())
    except OSError:
        there = "somewhere else"
    return RunError(
        f"{link} is a link to {there}; expected a file or folder of the run's own: put it in the place of the link, or "
        "delete the link"
    )


_LONGEST = 1000  # characters of why an audit was refused
Folder = TypeVar("Folder", bound="RunFiles")


def folder_name(text: str) -> str:
    """Return a file name for a condition or checkpoint: itself where it can be, else one made unique by a digest."""
    plain = text.replace("/", "_")
    safe = re.sub(r"[^\w(),=.+-]", "-", plain, flags=re.ASCII).lstrip(".")[:120]
    return safe if safe == plain else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class RunFiles:
    """A folder with run.json, whose other files are written whole and never read through a link."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read: tuple[tuple[int, int, int], Manifest] | None = None

    @classmethod
    def existing(cls: type[Folder], path: str | Path) -> Folder:
        """Return the run in this folder. Raises RunError where there is none, or something of it is a link."""
        run = cls(path)
        refuse_links(run.path)
        if not run.manifest_path.is_file():
            raise run._none()
        return run

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest(self) -> Manifest:
        """What run.json holds. It is read and checked once, and again after it was written. Raises RunError where there
        is none, or it is not as an audit wrote it.
        """
        if (manifest := self.read_manifest()) is None:
            raise self._none()
        return manifest

    def _none(self) -> RunError:
        said = f"{self.path} is not a run folder (no run.json)"
        if inside := sorted(found.parent.name for found in self.path.glob("*/run.json")):
            names = f"{', '.join(inside[:3])}{f' and {len(inside) - 3} more' if len(inside) > 3 else ''}"
            return RunError(f"{said} but holds some: {names}; give one, such as {self.path / inside[0]}")
        return RunError(f"{said}; make one with robustkit audit --out {self.path}")

    def read_manifest(self) -> Manifest | None:
        """Return what run.json holds; None before the first unit. Raises RunError where no audit wrote it so.

        Another process may replace it as a whole at any time: a file with the same inode, time and size is not read
        again.
        """
        try:
            refuse_link(self.manifest_path, self.path)
            status = self.manifest_path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if self._read is None or self._read[0] != version:
                self._read = version, manifest_of(json_in(self.read_text(self.manifest_path)), self.manifest_path)
            return self._read[1]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as fault:
            raise RunError(f"{self.manifest_path}: cannot be read ({fault}); restore it or use another --out") from None

    def write_manifest(self, manifest: Manifest) -> None:
        """Write run.json; readers of this folder see it at once."""
        self.write(self.manifest_path, encode_manifest(manifest.to_plain()))
        self._read = None

    @property
    def refusal_path(self) -> Path:
        """Where it stands that the last audit into this folder was refused."""
        return self.path / "refused.json"

    def note_refusal(self, said: str) -> None:
        """Leave a mark that an audit into this run was refused, as far as the folder can be written; none where there
        is no run yet. said: why, in one line.
        """
        with contextlib.suppress(RunError, OSError):
            if self.manifest_path.is_file():
                text = json.dumps({"refused": " ".join(said.split())[:_LONGEST]}, ensure_ascii=True)
                self.write(self.refusal_path, (text + "\n").encode())

    def refusal(self) -> str:
        """Return why the last audit into this folder was refused; empty where it was not."""
        try:
            content = json_in(self.read_text(self.refusal_path))
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError, RecursionError):
            content = None
        said = content.get("refused") if isinstance(content, dict) else None
        return said[:_LONGEST] if isinstance(said, str) and said else "it does not say why"

    def forget_refusal(self) -> None:
        """Remove the mark: an audit has come to its end. Raises RunError where a link is on its way."""
        refuse_link(self.refusal_path, self.path)
        self.refusal_path.unlink(missing_ok=True)

    def write(self, path: Path, data: bytes, durable: bool = True) -> None:
        """Write a file of this folder as `write_whole` does. Raises RunError where a link is on its way."""
        refuse_link(path, self.path)
        write_whole(path, data, durable)

    def read_bytes(self, path: Path) -> bytes:
        """Return the bytes of a file of this folder. Raises RunError for a link on its way, OSError as `bytes_of`."""
        refuse_link(path, self.path)
        return bytes_of(path)

    def read_text(self, path: Path) -> str:
        """Return the text of a file of this folder. Raises as `read_bytes`, and UnicodeDecodeError."""
        refuse_link(path, self.path)
        return text_of(path)

    def unit(self, checkpoint: str, condition: str) -> Unit:
        """Return the provenance of the files of a checkpoint under a condition. Raises RunError as `Unit.of`."""
        try:
            return Unit.of(self.manifest, checkpoint, condition)
        except RunError as fault:
            raise RunError(f"{self.path}: {fault}") from None

    def sweep(self) -> None:
        """Remove files that a killed process left half-written. Raises RunError where part of the run is a link."""
        refuse_links(self.path)
        ours = [f".{name}" for name in OWN if "." in name]
        ours += [f"{folder}/*/*/.*.parquet" for folder in ("records", "pictures", "adversarials")]
        ours += ["timings/*/*/.*.json", "evidence/*/.*.json", "features/*/.heads.safetensors"]
        for leftover in (path for name in ours for path in self.path.glob(f"{name}.*.tmp")):
            leftover.unlink(missing_ok=True)
