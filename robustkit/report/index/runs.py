"""List all runs beneath a folder for an index. What was read of a finished run is kept until its files change."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec

from ...common.files import bytes_of
from ...runs.folder import RunFolder
from ...runs.links import refuse_link
from .found import find_runs
from .own_files import FOLDER, put
from .reading import IndexRun, read_run

VERSION = metadata.version("robustkit-audit")
"""What was read or compared by another version is not used."""
_CACHE = f"{FOLDER}/cache.json"
Stamp = tuple[tuple[tuple[int, int, int], ...], str]
"""Inode, time and size of the files that an entry is made from, and a digest of the folders of its records."""


class Kept(msgspec.Struct, frozen=True):
    """A run as it was read, and the stamp of its files then."""

    stamp: Stamp
    run: IndexRun


class _Cache(msgspec.Struct, frozen=True):
    written_by: Literal["robustkit view"]
    version: str
    runs: dict[str, Kept]


@dataclass(frozen=True)
class Listed:
    """All that was found beneath a folder, by path relative to it.

    runs: the newest first. stamps: of their files. unreadable: what cannot be used as a run, and why. links:
    not followed.
    """

    runs: dict[str, IndexRun]
    stamps: dict[str, Stamp]
    unreadable: dict[str, str]
    links: list[str]


def list_runs(folder: Path) -> Listed:
    """Read all runs beneath a folder, except for those that the cache has. A run that cannot be read stops no other."""
    found, kept = find_runs(folder), _kept(folder)
    runs, stamps, unreadable = dict[str, IndexRun](), dict[str, Stamp](), dict(found.closed)
    for name in found.runs:
        try:
            stamps[name] = stamp = _stamp(folder / name)
            old = kept.get(name)
            runs[name] = old.run if old is not None and old.stamp == stamp else read_run(folder / name)
        except Exception as fault:  # whatever a folder of someone else holds spoils its own line only
            said = str(fault) or type(fault).__name__
            unreadable[name] = said.removeprefix(f"{folder / name}/")
    order = sorted(runs, key=lambda name: (runs[name].started, name), reverse=True)
    return Listed({name: runs[name] for name in order}, stamps, unreadable, found.links)


def keep(folder: Path, listed: Listed) -> None:
    """Write what was read of finished runs, for the next time. Raises RunError as `own_files.put`."""
    whole = {name: Kept(listed.stamps[name], run) for name, run in listed.runs.items() if run.is_whole}
    put(folder, _CACHE, msgspec.json.encode(_Cache("robustkit view", VERSION, whole)).decode())


def _kept(folder: Path) -> dict[str, Kept]:
    path = folder / _CACHE
    try:
        refuse_link(path, folder)
        cache = msgspec.json.decode(bytes_of(path), type=_Cache)
    except Exception:  # missing, another version's, or altered: everything is read
        return {}
    return cache.runs if cache.version == VERSION else {}


def _stamp(path: Path) -> Stamp:
    """Return what changes when something changes that an entry is made from: its files, and which records are there.
    Raises OSError, RunError for a link.
    """
    run, stamps = RunFolder(path), list[tuple[int, int, int]]()
    for name in (run.manifest_path.name, "summary.json", "report.html"):
        refuse_link(path / name, path)
        try:
            status = (path / name).stat()
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            stamps.append((0, 0, 0))
    return tuple(stamps), run.records_stamp()
