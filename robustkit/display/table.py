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


@dataclass(frozen=True)
class HeatTable:
    """A table whose cells are shaded by their values.

    rows: texts under `headings`. values: of each row the fraction behind each cell but the first, None where there is
    none; empty where no cell is a fraction on its own. ends: places of rows below which a group ends. flags: lines that
    name the checkpoint and the condition.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    ends: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
