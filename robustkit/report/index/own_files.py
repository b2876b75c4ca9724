"""Write the files of an index, and nothing over a file that is not one of them."""

from __future__ import annotations

import os
from pathlib import Path

from ...common.files import bytes_of, write_whole
from ...errors import RunError
from ...runs.links import refuse_link

PAGE, FOLDER = "index.html", ".robustkit-view"
MARK = "<!-- written by robustkit view, which overwrites it -->"
CACHE_MARK = '{"written_by":"robustkit view"'


def put(folder: Path, name: str, text: str) -> Path:
    """Write a page or the cache of an index, whole; return where.

    Raises:
        RunError: a link is on its way, another program's file is in its place, or the folder cannot be written.
    """
    path = place_of(folder, name)
    try:
        write_whole(path, text.encode("utf-8", "replace"), durable=False)
    except RunError as fault:
        raise RunError(str(fault).replace("choose a folder with --out", "view a folder that you may write")) from None
    return path


def place_of(folder: Path, name: str) -> Path:
    """Return where a file of an index may be written. Raises RunError as `put`, except for a folder without access."""
    path = folder / name
    refuse_link(path, folder)
    if os.path.lexists(path) and not is_own(path):
        raise RunError(
            f"{path} was not written by robustkit view, and is not overwritten; move it, or view another folder"
        )
    return path


def is_own(path: Path) -> bool:
    """Whether a file is a page or a cache that an index wrote."""
    try:
        start = bytes_of(path)[:200].decode("utf-8", "replace") if not path.is_symlink() else ""
    except OSError:
        return False
    return MARK in start or start.startswith(CACHE_MARK)
