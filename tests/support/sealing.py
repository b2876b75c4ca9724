"""Runs that tests write by hand, made into such as an audit would have written."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from manifests import UNGIVEN
from msgspec.structs import replace

from robustkit.report.run import Run
from robustkit.runs.folder import folder_name
from robustkit.runs.manifest import Manifest, digest_of_ids
from robustkit.runs.untrusted import PROVENANCE, parquet_bytes, provenance_metadata, provenance_of


def put(run: Run, checkpoint: str, condition: str, table: pa.Table, shard: int = 0) -> None:
    """Write a record of a condition that run.json need not name; `seal` it later."""
    known = {PROVENANCE: json.dumps({"condition": condition}).encode()}
    run.write_shard(
        run.shard_path(checkpoint, condition, shard),
        table.replace_schema_metadata((table.schema.metadata or {}) | known),
    )


def seal(run: Run) -> Run:
    """Let run.json name the samples of each shard, and every record and picture say what it is of.

    The samples of a shard are those of its longest record.
    """
    manifest = run.manifest
    files = {
        path: pq.ParquetFile(path).read()
        for kind in ("records", "pictures")
        for path in sorted((run.path / kind).rglob("*.parquet"))
    }
    ids: dict[int, list[str]] = {}
    for path, table in files.items():
        found = table["sample_id"].to_pylist() if path.is_relative_to(run.path / "records") else []
        ids[int(path.stem)] = max(ids.get(int(path.stem), []), found, key=len)
    given = manifest.shard_size != UNGIVEN
    size = manifest.shard_size if given else len(ids[0]) if len(ids) > 1 else UNGIVEN
    count = max(-(-manifest.data.n // size), 1)
    data = replace(manifest.data, shards=tuple(digest_of_ids(ids.get(place, [])) for place in range(count)))
    manifest = replace(manifest, shard_size=size, data=data)
    run.write_manifest(manifest)
    for path, table in files.items():
        _bind(run, manifest, path, table)
    return run


def _bind(run: Run, manifest: Manifest, path: Path, table: pa.Table) -> None:
    known = table.schema.metadata or {}
    above = "" if path.parts[-3] in ("records", "pictures") else path.parts[-3]  # a name may be empty
    checkpoint = next(one for one in manifest.checkpoints if folder_name(one.name) == above)
    named = {folder_name(text): text for text in manifest.conditions}
    condition = named.get(path.parts[-2]) or json.loads(known[PROVENANCE])["condition"]
    table = table.replace_schema_metadata(
        known | provenance_metadata(provenance_of(manifest, checkpoint, condition), int(path.stem))
    )
    if path.is_relative_to(run.path / "records"):
        timing = run.path / "timings" / path.relative_to(run.path / "records").with_suffix(".json")
        run.write_shard(path, table, json.loads(timing.read_text()) if timing.is_file() else {})
    else:
        path.write_bytes(parquet_bytes(table))
