"""Links inside a run folder, which are never followed: they lead to files that are not part of the run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import RunError

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
