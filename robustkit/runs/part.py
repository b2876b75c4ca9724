"""Rows of samples that a condition is not evaluated on: they are in its records, and nobody reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

TAKEN = "taken"
"""The column that says whether a sample was drawn for a condition that is evaluated on a part of them."""
Columns = Collection[str] | Callable[[str], bool] | None


def with_taken(columns: Columns) -> Columns:
    """Return a choice of columns that has the one which `only_taken` needs, too."""
    if columns is None or callable(columns):
        return columns and (lambda name: name == TAKEN or columns(name))
    return {*columns, TAKEN}


def only_taken(table: pa.Table) -> pa.Table:
    """Return the rows of the samples that were drawn, without the column that says so; all rows where none does."""
    return table.filter(table[TAKEN]).drop_columns([TAKEN]) if TAKEN in table.column_names else table
