"""Runs that tests write by hand, made into such as an audit would have written."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from robustkit.binding import digest_of_ids, packed, provenance_of
from robustkit.records import Run, folder_name, parquet_bytes


def seal(run: Run) -> Run:
    """Let run.json name the samples of each shard, and every record, picture and piece of evidence say of what it is.

    The samples of a shard are those of its longest record.
    """
    manifest = run.manifest
    size, ids = manifest.get("shard_size") or 1 << 20, dict[int, list[str]]()
    for path in run.path.glob("records/*/*/*.parquet"):
        found = pq.ParquetFile(path).read(columns=["sample_id"])["sample_id"].to_pylist()
        ids[int(path.stem)] = max(ids.get(int(path.stem), []), found, key=len)
    n = manifest["data"].get("n", 0)
    if len(ids) > 1:
        size = len(ids[0])
    count = max(-(-n // size), 1)
    shards = [digest_of_ids(ids.get(place, [])) for place in range(count)]
    manifest |= {"shard_size": size, "data": manifest["data"] | {"shards": shards}}
    run.write_manifest(manifest)
    for known in manifest["checkpoints"]:
        for condition in manifest["conditions"]:
            of = provenance_of(manifest, known, condition)
            for kind in ("records", "pictures"):
                folder = run.path / kind / folder_name(known["name"]) / folder_name(condition)
                for path in folder.glob("*.parquet"):
                    _rewrite(run, path, packed(of, int(path.stem)))
    return run


def _rewrite(run: Run, path: Path, of: dict[bytes, bytes]) -> None:
    table: pa.Table = pq.ParquetFile(path).read()
    table = table.replace_schema_metadata((table.schema.metadata or {}) | of)
    if path.is_relative_to(run.path / "records"):
        beside = run.path / "timings" / path.relative_to(run.path / "records").with_suffix(".json")
        run.write_shard(path, table, json.loads(beside.read_text()) if beside.is_file() else {})
    else:
        path.write_bytes(parquet_bytes(table))
