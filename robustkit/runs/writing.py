"""Turn tables into the bytes of a file."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

from .binding import PAGES, SAMPLES
from .digests import digest_of_ids

if TYPE_CHECKING:
    import pyarrow as pa


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as Parquet, the same for the same table, with digests of its ids and pages in its metadata."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        pages = hashlib.sha256(buffer.getbuffer()).hexdigest()
        samples = digest_of_ids(table["sample_id"].to_pylist())
        writer.add_key_value_metadata({SAMPLES: samples.encode(), PAGES: pages.encode()})
    return buffer.getvalue()
