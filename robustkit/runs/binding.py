"""What decides a record, as run.json and the record itself state it, and where the two disagree.

A record names the run, the checkpoint, the condition and the shard that it belongs to, and holds digests of its sample
ids and of its pages. So a file that was copied, renamed or rewritten is distinguished from one that the run made,
whatever lies next to it. It is not a defence against deliberate forgery.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import RunError
from .manifest import CheckpointEntry, Manifest, digest_of, digest_of_ids, digest_of_pages

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


OF_CHECKPOINT = (
    *("sha256", "arch", "code_sha256", "num_classes", "attention", "preprocessing", "weights", "windows"),
    "heads",
)
"""The fields of a checkpoint in run.json that decide its records."""
_PROSE = ("summary", "source", "caveats")  # of a card
_SHOWN = 3  # differences that a line names
PROVENANCE, SAMPLES, PAGES = b"robustkit", b"samples", b"pages"
"""Keys of a file's metadata: its provenance as JSON, a digest of its sample ids, one of all bytes before the footer."""


def digest_of_run(manifest: Manifest) -> str:
    """Return a digest of everything in run.json that decides records and never changes while a run grows."""
    data, card = manifest.data.to_plain(), manifest.protocol.to_plain()
    card = {key: value for key, value in card.items() if key not in _PROSE}
    kept = {key: data.get(key) for key in ("n", "classes", "digest", "unjudged", "shards")}
    deciding = _deciding(manifest)
    of_card = {"protocol": card} if manifest.format == 1 else {}
    return digest_of({"deciding": deciding, **of_card, "data": kept, "size": manifest.shard_size})


def _deciding(manifest: Manifest) -> dict[str, Any]:
    """Return what decides every record; since format 2 without the card, of which each condition uses a part."""
    deciding = manifest.deciding.to_plain()
    return {key: value for key, value in deciding.items() if manifest.format == 1 or key != "protocol"}


def provenance_of(manifest: Manifest, checkpoint: CheckpointEntry, condition: str) -> dict[str, Any]:
    plain = checkpoint.to_plain()
    described = {"name": checkpoint.name, **{key: plain.get(key) for key in OF_CHECKPOINT}}
    takes = manifest.corrupted.digests.get(condition)
    of = {"condition": condition, "takes": takes, "checkpoint": described, **_deciding(manifest)}
    if manifest.format > 1:
        of["card digest"] = manifest.card_digest(condition)
    if plugins := manifest.plugins_of(checkpoint.name, condition):
        of["plugins"] = [plugin.identity for plugin in plugins]
    return of | {"run": digest_of_run(manifest)}


def binding_fault(stated: Any, expected: Mapping[str, Any]) -> str:
    """Return in words how a file's provenance differs from what was expected; empty where it does not."""
    if not isinstance(stated, Mapping):
        return "it does not say what it belongs to"
    theirs, expected = _flat(stated), {"plugins": None, **expected}
    differing = [(key, theirs.get(key), value) for key, value in _flat(expected).items() if theirs.get(key) != value]
    of_condition = {"card digest"} if any(key == "condition" for key, *_ in differing) else set()
    named = [entry for entry in differing if entry[0] not in {"run"} | of_condition]
    if differing and not named:
        return "it belongs to a run with other samples, other shards or another card"
    lines = [f"its {key} is {_short(there)} and not {_short(here)}" for key, there, here in named[:_SHOWN]]
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
            return "it does not say what it belongs to: an earlier version or another program wrote it"
        if metadata[PAGES].decode("ascii", "replace") != digest_of_pages(data):
            return "its rows were altered or damaged after it was written"
        try:
            stated = json.loads(metadata[PROVENANCE])
        except (ValueError, RecursionError):
            stated = None
        if reason := binding_fault(stated, {**self.provenance, "shard": number}):
            return reason
        if whole and metadata.get(SAMPLES, b"").decode("ascii", "replace") != self.shards[number]:
            return f"its samples are not those of shard {number}"
        return ""
