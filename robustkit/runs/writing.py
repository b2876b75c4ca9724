"""Files written whole or not at all, and tables as the bytes of one."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import RunError
from .binding import PAGES, SAMPLES, digest_of_ids

if TYPE_CHECKING:
    import pyarrow as pa


def write_whole(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file so that, whatever happens, `path` holds all of it or what it held before.

    durable: whether that includes a power cut; else it costs far less.

    Raises:
        RunError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        if durable:
            _sync_folder(path.parent)
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; choose a folder with --out") from None


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as Parquet, which depends on the table alone; its metadata have digests of its ids and of its pages."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        pages = hashlib.sha256(buffer.getbuffer()).hexdigest()
        samples = digest_of_ids(table["sample_id"].to_pylist())
        writer.add_key_value_metadata({SAMPLES: samples.encode(), PAGES: pages.encode()})
    return buffer.getvalue()


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
