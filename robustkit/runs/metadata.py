"""The metadata of a run's samples: `metadata.parquet`, a row of texts for each, by which results are divided.

No record depends on it, so another table may take its place at any time. It names the run that it belongs to, as
records do, and is read within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..common.files import CELL, CELLS, COLUMNS, first_line
from ..common.groups import Groups
from ..errors import DamagedRecord
from .folder import METADATA, RunFolder
from .manifest import Manifest, digest_of_pages
from .untrusted import DECODED, PAGES, PROVENANCE, WHOLE, binding_fault, digest_of_run, parquet_bytes, with_texts

if TYPE_CHECKING:
    import pyarrow as pa

REMEDY = "robustkit report RUN --metadata FILE.csv"


def write_metadata(run: RunFolder, ids: Sequence[str], columns: Mapping[str, Sequence[str]], groups: str = "") -> None:
    """Write the metadata of all samples of a run, in place of earlier ones. ids: (n,). columns: by name, (n,) texts,
    empty where a cell is. groups: the column that says which samples belong together, such as video."""
    import pyarrow as pa

    stated = {PROVENANCE: json.dumps(_provenance(run.manifest) | ({"groups": groups} if groups else {})).encode()}
    schema = pa.schema([(name, pa.string()) for name in ("sample_id", *columns)], metadata=stated)
    table = pa.table([pa.array(list(cells), pa.string()) for cells in (ids, *columns.values())], schema=schema)
    run.write(run.path / METADATA, parquet_bytes(table))


def metadata_of_run(run: RunFolder) -> pa.Table | None:
    """Return `sample_id` and the columns of a run's metadata, all texts, the columns as a dictionary each; None where
    it has none. Raises DamagedRecord for a file that is not what was written for this run, RunError for a link."""
    import pyarrow as pa

    path, table, wrong = run.path / METADATA, None, ""
    try:
        data = run.read_bytes(path)
        table, wrong = _rows(data, run.manifest)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException, MemoryError, RecursionError) as fault:
        wrong = first_line(fault)
    if wrong:
        raise DamagedRecord(f"{path}: metadata that cannot be used ({wrong}); give the table again: {REMEDY}")
    return table


@dataclass(frozen=True, eq=False)
class SampleGroups:
    """The group of each sample of a run: samples of one, such as frames of a video, may resemble each other."""

    column: str
    """The column of the run's metadata that says so."""
    ids: pa.Array
    codes: NDArray[np.int64]
    """(n,) of the samples, in the order of the names of groups."""

    def of(self, ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> Groups | None:
        """Return the groups of some samples; None where each of these has its own."""
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids, pa.string())
        return Groups.numbered(self.codes[pc.index_in(ids, value_set=self.ids).to_numpy(zero_copy_only=False)])


def groups_of_run(run: RunFolder) -> SampleGroups | None:
    """Return the groups of a run's samples; None where each sample stands for itself. Raises as `metadata_of_run`."""
    table = metadata_of_run(run)
    stated = json.loads((table.schema.metadata or {}).get(PROVENANCE, b"{}")) if table is not None else {}
    if table is None or not (column := stated.get("groups")):
        return None
    if column not in table.column_names[1:]:
        raise DamagedRecord(f"{run.path / METADATA}: has no column {column}, which groups samples; {REMEDY}")
    names = table[column].cast("string").to_pylist()
    codes = np.unique(np.asarray(names, dtype=str), return_inverse=True)[1].astype(np.int64)
    return SampleGroups(column, table["sample_id"].combine_chunks(), codes)


def _provenance(manifest: Manifest) -> dict[str, Any]:
    return {"of": "metadata", "run": digest_of_run(manifest)}


def _rows(data: bytes, manifest: Manifest) -> tuple[pa.Table, str]:
    """Return the rows of a file, and what is wrong with it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    source = pq.ParquetFile(pa.BufferReader(data))
    metadata, schema = source.metadata, source.schema_arrow
    stated, names = metadata.metadata or {}, schema.names
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    if stated.get(PAGES, b"").decode("ascii", "replace") != digest_of_pages(data):
        return None, "it was modified or damaged after it was written"
    if fault := binding_fault(json.loads(stated.get(PROVENANCE, b"null")), _provenance(manifest)):
        return None, fault
    fine = 1 < len({*names}) == len(names) <= COLUMNS and names[0] == "sample_id"
    if not fine or any(kind != pa.string() for kind in schema.types):
        return None, "expected sample_id and columns of texts"
    if metadata.num_rows != manifest.data.n or metadata.num_rows * len(names) > CELLS or size > WHOLE:
        return None, f"{metadata.num_rows} rows, {size >> 20} MB; expected {manifest.data.n} rows"
    source = pq.ParquetFile(pa.BufferReader(data), metadata=metadata, read_dictionary=names)
    table = source.read(use_threads=False).unify_dictionaries()
    ids, wrong = with_texts(table.select(["sample_id"]), DECODED)
    for column in table.columns[1:]:
        if column.null_count:
            return None, "a cell of no text"
        if any((pc.max(pc.utf8_length(chunk.dictionary)).as_py() or 0) > CELL for chunk in column.chunks):
            return None, f"a text of more than {CELL} characters"
    return table.set_column(0, "sample_id", ids["sample_id"]), wrong
