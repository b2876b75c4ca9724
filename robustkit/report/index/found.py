"""Find the run folders beneath a folder. Links are not followed, and hidden folders not entered."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ...runs.links import OWN, OWN_PICTURES

_DEEPEST = 32


@dataclass
class Found:
    """Paths relative to the folder, in the order of their names. closed: folders that cannot be read, and why."""

    runs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)


def find_runs(folder: Path) -> Found:
    """Return the folders beneath `folder`, and itself, that hold a run.json."""
    found, waiting = Found(), [("", 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            with os.scandir(folder / here) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as fault:
            found.closed[here or "."] = fault.strerror or str(fault)
            continue
        is_run = any(entry.name == "run.json" for entry in listed)
        if is_run:
            found.runs.append(here or ".")
        inner = list[tuple[str, int]]()
        for entry in listed:
            path = f"{here}/{entry.name}" if here else entry.name
            if entry.name.startswith(".") or (is_run and entry.name in (*OWN, *OWN_PICTURES)):
                continue
            if entry.is_symlink():
                found.links.append(path)
            elif entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
                inner.append((path, depth + 1))
        waiting += reversed(inner)
    return found
