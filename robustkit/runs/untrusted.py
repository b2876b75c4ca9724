"""Read records from other people: with bounded sizes, and only in the shapes that an audit writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedRecord

if TYPE_CHECKING:
    import pyarrow as pa

ROWS, VALUES, DECODED, WHOLE = 1 << 20, 1 << 25, 1 << 28, 1 << 30
"""Limits for one record: rows, numbers in a column of lists, bytes of text, and of all columns before compression (of
pictures and adversarial images four times as much). A few hundred bytes of Parquet can claim more than any memory
holds, since a text is stored once however many rows have it."""
_TEXTS = ("sample_id", "broken_by", "error", "box_hits", "image", "difference", "heat")
_WHOLE = ("label", "prediction", "broken_at", "steps", "forwards", "backwards", "pixels", "target", "vanished_boxes")
_REAL = ("nll", "confidence", "linf", "l2")
_LISTS = ("intersections", "predicted", "labelled", "pixel_counts")
_REAL_LISTS = (
    *("largest_logits", "query_norms", "key_norms", "attention_entropies", "strongest_keys", "softmax_slopes"),
    *("logit_changes", "query_norm_shares", "key_norm_shares", "angle_shares"),
)


def read_rows(
    path: Path,
    data: bytes,
    columns: Collection[str] | Callable[[str], bool] | None = None,
    what: str = "a record",
    fault: Callable[[Mapping[bytes, bytes] | None, bytes], str] = lambda metadata, data: "",
    most: int = DECODED,
) -> pa.Table:
    """Return the rows of a Parquet file. columns: by name or by a test of names. fault: why a file with these metadata
    and bytes is not the expected one. most: bytes of text or pictures. Raises DamagedRecord where it is another file,
    none, not of the types that an audit writes, or exceeds the limits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    remedy = "delete it and run again" if what == "a record" else "delete the file, nothing rests on it"
    again = "the same command of the audit computes it again" if what == "a record" else remedy
    try:
        source = pq.ParquetFile(pa.BufferReader(data))
        schema, names = source.schema_arrow, source.schema_arrow.names
        wrong = _malformed(source, what)
        if not wrong and (reason := fault(source.metadata.metadata, data)):
            raise DamagedRecord(f"{path}: {what} that does not belong to this run: {reason}; {again}")
        if not wrong:
            chosen = list(filter(columns if callable(columns) else (columns or names).__contains__, names))
            if texts := [name for name in chosen if name in _TEXTS and not pa.types.is_null(schema.field(name).type)]:
                source = pq.ParquetFile(pa.BufferReader(data), metadata=source.metadata, read_dictionary=texts)
            # Threads cost more than they save on so few rows.
            table, wrong = _decoded(source.read(columns=chosen, use_threads=False), most)
    except (OSError, ValueError, pa.ArrowException, MemoryError, RecursionError) as raised:
        wrong = (str(raised).splitlines() or [type(raised).__name__])[0]
    if wrong:
        raise DamagedRecord(f"{path}: {what} cannot be read ({wrong}); {remedy}")
    return table


def metadata_of(data: bytes, what: str = "a record") -> tuple[Mapping[bytes, bytes] | None, str]:
    """Return the metadata of a Parquet file, and why `read_rows` would not read it, as far as they show that."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(pa.BufferReader(data))
        wrong = _malformed(source, what)
        return source.metadata.metadata, f"it cannot be read ({wrong})" if wrong else ""
    except (OSError, ValueError, pa.ArrowException, MemoryError) as fault:
        return None, f"it cannot be read ({(str(fault).splitlines() or [type(fault).__name__])[0]})"


def _malformed(source: Any, what: str) -> str:
    needed, names = ("sample_id", "error") if what == "a record" else ("sample_id",), source.schema_arrow.names
    lacking = next((f"no column {name}" for name in needed if name not in names), "")
    return _oversize(source, what) or _strange(source.schema_arrow) or lacking


def _oversize(source: Any, what: str) -> str:
    metadata = source.metadata
    if metadata.num_rows > ROWS:
        return f"{metadata.num_rows} rows, more than one can have"
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    if (size := sum(group.total_byte_size for group in groups)) > (WHOLE if what == "a record" else 4 * WHOLE):
        return f"{size >> 20} MB, more than one can have"
    lists = [name for name in source.schema_arrow.names if name.partition(" ")[0] in (*_LISTS, *_REAL_LISTS)]
    for part in groups if lists else ():
        if any(part.column(place).num_values > VALUES for place in range(part.num_columns)):
            return f"more than {VALUES} numbers in a column"
    return ""


def _strange(schema: pa.Schema) -> str:
    import pyarrow as pa

    kinds = pa.types
    if len(set(schema.names)) < len(schema.names):
        return "a column that occurs twice"
    for field in schema:
        name, kind = field.name, field.type
        if kinds.is_dictionary(kind):
            kind = kind.value_type
        if name in _TEXTS:
            fine = kind == (pa.string() if name in _TEXTS[:3] else pa.binary())
        elif name.partition(" ")[0] in _LISTS:
            fine = kinds.is_list(kind) and kinds.is_integer(kind.value_type)
        elif name in _REAL_LISTS:
            fine = kinds.is_list(kind) and kinds.is_floating(kind.value_type)
        elif name in _WHOLE or name.startswith(("forwards ", "backwards ")):
            fine = kinds.is_integer(kind)
        elif name in _REAL:
            fine = kinds.is_floating(kind) or kinds.is_integer(kind)
        else:
            fine = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        if not (fine or kinds.is_null(kind)) or (name == "sample_id" and kinds.is_null(kind)):
            return f"column {name!r} of {kind}"
    return ""


def _decoded(table: pa.Table, most: int) -> tuple[pa.Table, str]:
    """Return a table with texts in place of references to them, and what is wrong where they are too large."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column, size = table.column(place), 0
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            size += pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0
        if size > most:
            return table, f"{size >> 20} MB of text in column {field.name!r}"
        kind = field.type.value_type
        table = table.set_column(place, pa.field(field.name, kind, field.nullable), column.cast(kind))
    if "sample_id" in table.schema.names and table["sample_id"].null_count:
        return table, "a row without sample_id"
    return table, ""
