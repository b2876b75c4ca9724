"""Compare two runs for an index: the page of their paired differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ...display.table import TextTable
from ...results.comparison import compare, pairs, unpaired
from ...results.tables import tables
from ...runs.folder import RunFolder
from .history import Pairs, consecutive
from .own_files import FOLDER, is_own, put
from .page import comparison_page
from .runs import VERSION, Listed

COMPARED = 8
"""New comparisons that an index computes at most; each reads the records of two runs."""


def write_pairs(folder: Path, listed: Listed, most: int = COMPARED) -> Pairs:
    """Write the comparisons that are not there yet, the newest first and `most` of them; delete those out of date.

    Raises:
        RunError: the folder cannot be written.
    """
    asked = consecutive(listed.runs)
    written, left = Pairs(changes=asked), most
    for pair in asked:
        name = f"{FOLDER}/compare-{_digest(listed, pair)}.html"
        if is_own(folder / name):
            written.pages[pair] = name
        elif left <= 0:
            written.waiting.append(pair)
        else:
            left -= 1
            try:
                page = compared(folder, *pair)
            except Exception as fault:  # records of someone else spoil their own comparison only
                written.failed[pair] = str(fault) or type(fault).__name__
                continue
            put(folder, name, page)
            written.pages[pair] = name
    current = set(written.pages.values())
    for path in (folder / FOLDER).glob("compare-*.html"):
        if f"{FOLDER}/{path.name}" not in current and is_own(path):
            path.unlink(missing_ok=True)
    return written


def compared(folder: Path, first: str, second: str) -> str:
    """Return the page that compares two runs; the difference is the second's figure less that of the first.

    Raises:
        RobustkitError: they cannot be compared.
    """
    opened = [RunFolder.existing(folder / name) for name in (first, second)]
    chosen = pairs(opened)
    shown: list[TextTable] = tables(compare(chosen))
    return comparison_page(first, second, shown, unpaired(opened))


def _digest(listed: Listed, pair: tuple[str, str]) -> str:
    stamps: Mapping[str, object] = {name: listed.stamps[name] for name in pair}
    return hashlib.sha256(json.dumps([VERSION, pair, stamps]).encode()).hexdigest()[:16]
