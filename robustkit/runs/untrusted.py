"""Record files: what each states about itself, and reading those of other people within bounds.

Files are read only in the shapes that an audit writes, and with bounded sizes. A record names the run, the checkpoint,
the condition and the shard that it belongs to, and holds digests of its sample ids and of its pages. So a file that was
copied, renamed or rewritten is distinguished from one that the run made, whatever lies next to it. It is not a defence
against deliberate forgery.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedRecord, RunError
from .manifest import CheckpointEntry, Manifest, digest_of, digest_of_ids, digest_of_pages

if TYPE_CHECKING:
    import pyarrow as pa

PROVENANCE, SAMPLES, PAGES = b"robustkit", b"samples", b"pages"
"""Keys of a file's metadata: its provenance as JSON, a digest of its sample ids, one of all bytes before the footer."""
OF_CHECKPOINT = (
    *("sha256", "arch", "code_sha256", "num_classes", "attention", "preprocessing", "weights", "windows"),
    *("heads", "label_map"),
)
"""The fields of a checkpoint in run.json that decide its records."""
_SHOWN = 3  # differences that a line names
ROWS, VALUES, DECODED, WHOLE = 1 << 20, 1 << 25, 1 << 28, 1 << 30
"""Limits for one record: rows, numbers in a column of lists, bytes of text, and of all columns before compression (of
pictures and adversarial images four times as much). A few hundred bytes of Parquet can claim more than any memory
holds, since a text is stored once however many rows have it."""
_TEXTS = ("sample_id", "broken_by", "error", "box_hits", "image", "difference", "heat")
_WHOLE = (
    *("label", "prediction", "broken_at", "steps", "forwards", "backwards", "cycle_at"),
    *("pixels", "target", "vanished_boxes", "cue"),
)
_REAL = ("nll", "confidence", "linf", "l2")
# Of other columns, those hold lists of numbers whose names end in [].
_LISTS = ("intersections", "predicted", "labelled", "pixel_counts", "explained")
_REAL_LISTS = (
    *("largest_logits", "query_norms", "key_norms", "attention_entropies", "strongest_keys", "softmax_slopes"),
    *("logits", "logit_changes", "query_norm_shares", "key_norm_shares", "angle_shares"),
    *("class_area", "class_energy", "class_pointing", "class_abpc", "class_insertion", "class_deletion"),
    *("class_head_correlation", "class_head_energy", "class_head_abpc", "class_noise_inside", "class_noise_around"),
    *("class_rank_correlation", "class_map_iou", "class_iou_left", "class_flat"),
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

    remedy = "delete it and run again" if what == "a record" else "delete the file; nothing depends on it"
    again = "rerun the same audit command to compute it again" if what == "a record" else remedy
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
            table, wrong = with_texts(source.read(columns=chosen, use_threads=False), most)
    except (OSError, ValueError, pa.ArrowException, MemoryError, RecursionError) as raised:
        wrong = (str(raised).splitlines() or [type(raised).__name__])[0]
    if wrong:
        raise DamagedRecord(f"{path}: {what} cannot be read ({wrong}); {remedy}")
    return table


def parquet_metadata(data: bytes, what: str = "a record") -> tuple[Mapping[bytes, bytes] | None, str]:
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
        return f"{metadata.num_rows} rows, too many for one record"
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    if (size := sum(group.total_byte_size for group in groups)) > (WHOLE if what == "a record" else 4 * WHOLE):
        return f"{size >> 20} MB, too many for one record"
    names = source.schema_arrow.names
    lists = [name for name in names if name.partition(" ")[0] in (*_LISTS, *_REAL_LISTS) or name.endswith("[]")]
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
        elif name.endswith("[]"):
            fine = kinds.is_list(kind) and (kinds.is_integer(kind.value_type) or kinds.is_floating(kind.value_type))
        elif name in _WHOLE or name.startswith(("forwards ", "backwards ")):
            fine = kinds.is_integer(kind)
        elif name in _REAL:
            fine = kinds.is_floating(kind) or kinds.is_integer(kind)
        else:
            fine = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        if not (fine or kinds.is_null(kind)) or (name == "sample_id" and kinds.is_null(kind)):
            return f"column {name!r} of {kind}"
    return ""


def with_texts(table: pa.Table, most: int) -> tuple[pa.Table, str]:
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


def digest_of_run(manifest: Manifest) -> str:
    """Return a digest of everything in run.json that decides records and never changes while a run grows."""
    data = manifest.data.to_plain()
    fields = {key: data.get(key) for key in ("n", "classes", "digest", "unjudged", "shards")}
    return digest_of({"deciding": _deciding(manifest), "data": fields, "size": manifest.shard_size})


def _deciding(manifest: Manifest) -> dict[str, Any]:
    """Return what decides every record, without the card, of which each condition uses a part."""
    return {key: value for key, value in manifest.deciding.to_plain().items() if key != "protocol"}


def provenance_of(manifest: Manifest, checkpoint: CheckpointEntry, condition: str) -> dict[str, Any]:
    plain = checkpoint.to_plain()
    described = {"name": checkpoint.name, **{key: plain.get(key) for key in OF_CHECKPOINT if key != "label_map"}}
    if "label_map" in plain:
        described["label_map"] = plain["label_map"]
    takes = manifest.corrupted.digests.get(condition)
    of = {"condition": condition, "takes": takes, "checkpoint": described, **_deciding(manifest)}
    of["card digest"] = manifest.card_digest(condition)
    if plugins := manifest.plugins_of(checkpoint.name, condition):
        of["plugins"] = [plugin.identity for plugin in plugins]
    return of | {"run": digest_of_run(manifest)}


def binding_fault(stated: Any, expected: Mapping[str, Any]) -> str:
    """Return in words how a file's provenance differs from what was expected; empty where it does not."""
    if not isinstance(stated, Mapping):
        return "it does not record what it belongs to"
    theirs, expected = _flat(stated), {"plugins": None, **expected}
    differing = [(key, theirs.get(key), value) for key, value in _flat(expected).items() if theirs.get(key) != value]
    of_condition = {"card digest"} if any(key == "condition" for key, *_ in differing) else set()
    named = [entry for entry in differing if entry[0] not in {"run"} | of_condition]
    if differing and not named:
        return "it belongs to a run with other samples, other shards or another card"
    lines = [f"its {key} is {_short(there)} instead of {_short(here)}" for key, there, here in named[:_SHOWN]]
    return ", ".join([*lines, *([f"and {len(named) - _SHOWN} more"] if len(named) > _SHOWN else [])])


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    parts = values.get("checkpoint")
    inner = {f"checkpoint {key}": value for key, value in parts.items()} if isinstance(parts, Mapping) else {}
    return {key: value for key, value in values.items() if key != "checkpoint"} | inner


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    hexadecimal = len(text) in (16, 64) and set(text) <= set("0123456789abcdef")
    return f"{text[:8]}…" if hexadecimal else text[:100] + "…" * (len(text) > 100)


def provenance_metadata(provenance: Mapping[str, Any], shard: int) -> dict[bytes, bytes]:
    return {PROVENANCE: json.dumps({**provenance, "shard": shard}, sort_keys=True).encode()}


def shard_number(name: str) -> int | None:
    """Return the shard that a record's file is named after; None for any other name. name: without the suffix."""
    return int(name) if name.isascii() and name.isdecimal() and f"{int(name):05d}" == name else None


@dataclass(frozen=True)
class Unit:
    """The provenance of all files of one checkpoint under one condition. shards: the digest of the ids of each."""

    provenance: Mapping[str, Any]
    shards: Sequence[str]

    @classmethod
    def of(cls, manifest: Manifest, checkpoint: str, condition: str) -> Unit:
        """Raises RunError where run.json does not say which samples each shard has."""
        shards = manifest.data.shards
        if not shards or len(shards) != -(-manifest.data.n // manifest.shard_size):
            raise RunError("run.json does not say which samples each shard has; make the run again")
        return cls(provenance_of(manifest, manifest.checkpoint(checkpoint), condition), shards)

    def fault(self, name: str, metadata: Mapping[bytes, bytes] | None, data: bytes, whole: bool = True) -> str:
        """Return why a Parquet file does not belong to this unit; empty where it does. name: without suffix. data: all
        its bytes. whole: whether it has a row for each sample of its shard."""
        number = shard_number(name)
        if number is None or number >= len(self.shards):
            return f"it is not a shard of this run, which has {len(self.shards)} of each condition"
        metadata = metadata or {}
        if PROVENANCE not in metadata or PAGES not in metadata:
            return "it does not record what it belongs to: an earlier version or another program wrote it"
        if metadata[PAGES].decode("ascii", "replace") != digest_of_pages(data):
            return "its rows were modified or damaged after it was written"
        try:
            stated = json.loads(metadata[PROVENANCE])
        except (ValueError, RecursionError):
            stated = None
        if reason := binding_fault(stated, {**self.provenance, "shard": number}):
            return reason
        if whole and metadata.get(SAMPLES, b"").decode("ascii", "replace") != self.shards[number]:
            return f"its samples are not those of shard {number}"
        return ""
