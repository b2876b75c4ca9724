"""A table of texts, as the report and the terminal show it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """title: what is shown. headings: of the columns; rows of as many texts. flags: lines that raise a doubt. note: a
    line that explains the columns.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    flags: tuple[str, ...] = ()
    note: str = ""
