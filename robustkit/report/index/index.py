"""Write the index of a folder's runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import RunError
from .history import Pairs
from .own_files import PAGE, place_of, put
from .page import index_page
from .pairs import COMPARED, write_pairs
from .runs import Listed, keep, list_runs


@dataclass(frozen=True)
class Index:
    """An index that was written: where, and what is on it."""

    path: Path
    listed: Listed
    pairs: Pairs


def write_index(folder: Path, compared: int = COMPARED) -> Index:
    """Write the index of all runs beneath a folder; return what is on it.

    compared: new comparisons of consecutive runs that are computed at most.

    Raises:
        RunError: there is no such folder, it cannot be written, or another program's file is in the place of one.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder; give the one that holds your runs, such as runs")
    place_of(folder, PAGE)  # before anything is written
    listed = list_runs(folder)
    keep(folder, listed)
    pairs = write_pairs(folder, listed, compared)
    return Index(put(folder, PAGE, index_page(folder, listed, pairs)), listed, pairs)
