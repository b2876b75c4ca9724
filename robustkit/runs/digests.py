"""Compute digests of what a run folder holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def digest_of(value: Any) -> str:
    """Return the SHA-256 (hex) of a value of JSON types, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digest_of_ids(ids: Sequence[str]) -> str:
    """Return 16 hex digits for sample ids in their order."""
    texts = [name.encode("utf-8", "surrogatepass") for name in ids]
    lengths = ",".join(str(len(text)) for text in texts)  # so that no two lists are joined alike
    return hashlib.sha256(lengths.encode() + b"\0" + b"".join(texts)).hexdigest()[:16]


def digests_of_shards(ids: Sequence[str], size: int) -> list[str]:
    """Return `digest_of_ids` of each shard of `size` samples, whose rows are in the order of their ids."""
    return [digest_of_ids(sorted(ids[start : start + size])) for start in range(0, len(ids), size)]


def digest_of_pages(data: bytes) -> str:
    """Return the SHA-256 (hex) of a Parquet file up to its footer."""
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return hashlib.sha256(memoryview(data)[: max(end, 0)]).hexdigest()
