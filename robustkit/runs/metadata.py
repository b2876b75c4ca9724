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
from ..data.metadata import FROM_IDS, NO_GROUPS, Grouping
from ..errors import DamagedRecord, DataError, RunError
from ..protocol.condition import samples_named
from .folder import METADATA, RunFolder
from .manifest import Manifest, digest_of_pages
from .untrusted import DECODED, PAGES, PROVENANCE, WHOLE, binding_fault, digest_of_run, parquet_bytes, with_texts

if TYPE_CHECKING:
    import pyarrow as pa

REMEDY = "robustkit report RUN --metadata FILE.csv"


@dataclass(frozen=True)
class SampleMetadata:
    """ids: of all samples, (n,). columns: by name, (n,) texts, empty where a cell is. groups: the column that says
    which samples belong together, such as video; empty where each stands for itself."""

    ids: Sequence[str]
    columns: Mapping[str, Sequence[str]]
    groups: str = ""

    @property
    def group_names(self) -> Sequence[str] | None:
        """The group of each sample, (n,); None where each stands for itself."""
        return self.columns[self.groups] if self.groups else None

    @classmethod
    def of(cls, ids: Sequence[str], columns: Mapping[str, Sequence[str]], grouping: Grouping | None) -> SampleMetadata:
        """Return columns with groups. Raises DataError as `Grouping.names`."""
        if grouping is None or grouping.column == NO_GROUPS:
            return cls(ids, columns)
        names = grouping.names(ids, columns)
        if not grouping.pattern:
            return cls(ids, columns, grouping.column)
        if FROM_IDS in columns:
            clash = f"--groups-from {grouping.pattern} makes a column {FROM_IDS}, which --metadata has, too"
            raise DataError(f"{clash}: rename that, or use --groups {FROM_IDS}")
        return cls(ids, {**columns, FROM_IDS: names}, FROM_IDS)


def write_metadata(run: RunFolder, metadata: SampleMetadata) -> None:
    """Write the metadata of all samples of a run, in place of earlier ones; of no columns there is no file."""
    import pyarrow as pa

    if not metadata.columns:
        (run.path / METADATA).unlink(missing_ok=True)
        return
    stated = _provenance(run.manifest) | ({"groups": metadata.groups} if metadata.groups else {})
    names, cells = ("sample_id", *metadata.columns), (metadata.ids, *metadata.columns.values())
    schema = pa.schema([(name, pa.string()) for name in names], metadata={PROVENANCE: json.dumps(stated).encode()})
    table = pa.table([pa.array(list(each), pa.string()) for each in cells], schema=schema)
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


def columns_of(table: pa.Table) -> tuple[dict[str, list[str]], str]:
    """Return the columns of a run's metadata without the ids, and which of them groups samples."""
    columns = {name: table[name].cast("string").to_pylist() for name in table.column_names[1:]}
    groups = json.loads((table.schema.metadata or {}).get(PROVENANCE, b"{}")).get("groups") or ""
    return columns, groups


@dataclass(frozen=True, eq=False)
class SampleGroups:
    """The group of each sample of a run: samples of one, such as frames of a video, may resemble each other."""

    column: str
    """The column of the run's metadata that says so."""
    ids: pa.Array
    codes: NDArray[np.int64]
    """(n,) of the samples, in the order of the names of groups."""

    @property
    def count(self) -> int:
        return int(self.codes.max()) + 1

    def of(self, ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> Groups | None:
        """Return the groups of some samples; None where each of these has its own. Raises DamagedRecord for others."""
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids, pa.string())
        places = pc.index_in(ids, value_set=self.ids)
        if places.null_count:
            lost = ids.filter(places.is_null())[0]
            raise DamagedRecord(f"the metadata have no row of {lost}, whose group is {self.column}; {REMEDY}")
        return Groups.numbered(self.codes[places.to_numpy()])


def groups_of_run(run: RunFolder) -> SampleGroups | None:
    """Return the groups of a run's samples, those that `run.grouping` asks for in place of its own; None where each
    sample stands for itself. Raises as `metadata_of_run`, and DataError as `Grouping.names`."""
    import pyarrow as pa

    grouping, table = run.grouping, metadata_of_run(run)
    ids: Sequence[str] = [] if table is None else table["sample_id"].to_pylist()
    columns: Mapping[str, Sequence[str]] = {}
    groups = ""
    if table is not None:
        columns, groups = columns_of(table)
    if grouping is not None:
        metadata = SampleMetadata.of(ids or sample_ids(run), {} if grouping.pattern else columns, grouping)
        ids, columns, groups = metadata.ids, metadata.columns, metadata.groups
    if not groups:
        return None
    if groups not in columns:
        raise DamagedRecord(f"{run.path / METADATA}: has no column {groups}, which groups samples; {REMEDY}")
    codes = np.unique(np.asarray(columns[groups], dtype=str), return_inverse=True)[1].astype(np.int64)
    return SampleGroups(groups, pa.array(ids, pa.string()), codes)


def sample_ids(run: RunFolder) -> list[str]:
    """Return the ids of all samples of a run, of each shard from the first record that has all its samples. Raises
    RunError where a sample has no record yet."""
    manifest, ids = run.manifest, list[str]()
    whole = [unit for unit in run.units() if not samples_named(unit[1])]
    for shard in range(run.shard_count):
        unit = next((unit for unit in whole if shard not in run.missing_shards(*unit)), None)
        if unit is None:
            raise RunError(f"{run.path}: no record names all samples yet; complete the run, then give --metadata")
        ids += run.shard(*unit, shard, ["sample_id"])["sample_id"].to_pylist()
    if len(ids) != manifest.data.n:
        raise RunError(f"{run.path}: records name {len(ids)} of {manifest.data.n} samples; complete the run first")
    return ids


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
