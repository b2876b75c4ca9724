"""The columns of records of the logit ledger."""

from __future__ import annotations

import pyarrow as pa

from .measures import LISTS, METRICS

LEDGER: dict[str, pa.DataType] = {
    **{metric.name: pa.float32() for metric in METRICS},
    **dict.fromkeys(LISTS, pa.list_(pa.float32())),
}
"""Columns that the ledger adds to a record: of all heads together, and of each head. Shares are nan where nothing
changes; what comes back is null where the prediction had not changed."""
