"""The columns of records of watched attention."""

from __future__ import annotations

import pyarrow as pa

from .layer import LISTS, METRICS

_HEADS = pa.list_(pa.float32())

ATTENTION: dict[str, pa.DataType] = {
    **dict.fromkeys(METRICS, pa.float32()),
    **dict.fromkeys(LISTS, _HEADS),
}
"""Columns that watched attention adds to a record: figures of all heads together, and of each head of each layer, one
layer after the other, as the record's metadata name them. What is not finite stays as it is."""
