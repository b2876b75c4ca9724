"""Records: the rows of one unit of work as one Parquet file, written whole or not at all; and the folder they live in.

run.json                                         what was asked, of what, with what
records/<checkpoint>/<condition>/<shard>.parquet one row a sample
timings/<checkpoint>/<condition>/<shard>.json    what a unit took; no two runs agree on it, so it is no record
evidence/<checkpoint>/<condition>.json           figures that tell whether an attack's result can be trusted
pictures/…                                       images of a chosen few samples, to be looked at; see `pictures`
summary.json, summary.csv, report.html           made from the two above, any time
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import DamagedRecord, RunError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_NEEDED = {"checkpoints", "conditions", "protocol", "data", "deciding", "bad_images", "claims"}
SUMMARY_COLUMNS = ("checkpoint", "condition", "metric", "value", "n", "ci_low", "ci_high", "protocol", "flags")


def folder_name(text: str) -> str:
    """A file name for a condition or checkpoint: itself where it can be, else with a digest that keeps it unique."""
    plain = text.replace("/", "_")
    safe = re.sub(r"[^\w(),=.+-]", "-", plain, flags=re.ASCII).lstrip(".")[:120]
    if safe == plain:
        return safe
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


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


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Run:
    """A run folder. Nothing here needs a model: `results()` and the report come from the records alone."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def existing(cls, path: str | Path) -> Run:
        """The run in this folder.

        Raises:
            RunError: there is none.
        """
        run = cls(path)
        if not run.manifest_path.is_file():
            raise RunError(
                f"{run.path} is not a run folder (no run.json); make one with robustkit audit --out {run.path}"
            )
        return run

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest(self) -> dict[str, Any]:
        """What run.json holds; empty before the first unit."""
        try:
            data = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as fault:
            raise RunError(f"{self.manifest_path}: cannot be read ({fault}); restore it or use another --out") from None
        if not isinstance(data, dict) or not data.keys() >= _NEEDED:
            raise RunError(f"{self.manifest_path}: not a whole run.json; restore it or use another --out")
        return data

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_whole(self.manifest_path, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())

    def shard_path(self, checkpoint: str, condition: str, shard: int) -> Path:
        return self.path / "records" / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.parquet"

    def write_shard(self, path: Path, table: pa.Table) -> None:
        """One unit's rows, as Parquet bytes that depend on the table alone."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd")
        write_whole(path, buffer.getvalue().to_pybytes())

    def write_timing(self, checkpoint: str, condition: str, shard: int, timing: Mapping[str, Any]) -> None:
        path = self.path / "timings" / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.json"
        write_whole(path, (json.dumps(timing) + "\n").encode(), durable=False)

    def stage_seconds(self, checkpoint: str, condition: str) -> dict[str, float]:
        """Seconds of each stage of an attack, over all shards; empty where they are not known."""
        total: dict[str, float] = {}
        folder = self.path / "timings" / folder_name(checkpoint) / folder_name(condition)
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                for stage, seconds in json.loads(path.read_text(encoding="utf-8")).get("stages", {}).items():
                    total[stage] = total.get(stage, 0.0) + float(seconds)
        return total

    def evidence_path(self, checkpoint: str, condition: str) -> Path:
        return self.path / "evidence" / folder_name(checkpoint) / f"{folder_name(condition)}.json"

    def evidence(self, checkpoint: str, condition: str) -> dict[str, Any] | None:
        """The figures of `robustkit.masking.examine`; None where none were taken."""
        path = self.evidence_path(checkpoint, condition)
        try:
            figures = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            raise RunError(f"{path}: cannot be read ({fault}); delete it and run the same command again") from None
        return figures if isinstance(figures, dict) else None

    def sweep(self) -> None:
        """Remove what a killed process left half-written."""
        ours = (".run.json.*.tmp", ".summary.json.*.tmp", ".summary.csv.*.tmp", ".report.html.*.tmp")
        for pattern in (
            *ours,
            "records/*/*/.*.parquet.*.tmp",
            "timings/*/*/.*.json.*.tmp",
            "evidence/*/.*.json.*.tmp",
            "pictures/*/*/.*.parquet.*.tmp",
        ):
            for leftover in self.path.glob(pattern):
                leftover.unlink(missing_ok=True)

    def table(self, checkpoint: str, condition: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of one checkpoint under one condition, in the order of shards.

        Raises:
            RunError: there are none, or a file is not readable.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = sorted(self.shard_path(checkpoint, condition, 0).parent.glob("*.parquet"))
        if not paths:
            raise RunError(
                f"{self.path}: no records of {checkpoint} under {condition}; run the audit again to make them"
            )
        try:
            tables = [pq.ParquetFile(path).read(columns=columns) for path in paths]
            return pa.concat_tables(tables, promote_options="default")  # a shard without images has no stages
        except (OSError, pa.ArrowException) as fault:
            raise DamagedRecord(
                f"{paths[0].parent}: a record cannot be read ({fault}); delete it and run again"
            ) from None

    def notes(self, checkpoint: str, condition: str) -> list[str]:
        """What an attack did otherwise than asked, each once, from the metadata of its records."""
        import pyarrow.parquet as pq

        found: dict[str, None] = {}
        for path in sorted(self.shard_path(checkpoint, condition, 0).parent.glob("*.parquet")):
            packed = (pq.read_schema(path).metadata or {}).get(b"notes", b"[]")
            found |= dict.fromkeys(map(str, json.loads(packed)))
        return list(found)

    def units(self) -> Iterator[tuple[str, str]]:
        """(checkpoint, condition) pairs that have records, in the order of run.json."""
        manifest = self.manifest
        for checkpoint in manifest.get("checkpoints", []):
            for condition in manifest.get("conditions", []):
                if next(self.shard_path(checkpoint["name"], condition, 0).parent.glob("*.parquet"), None):
                    yield checkpoint["name"], condition

    def summary(self) -> list[dict[str, Any]]:
        """The rows of summary.json as it was written last; what is not finite is None.

        Raises:
            RunError: it cannot be read.
        """
        path = self.path / "summary.json"
        try:
            rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
        except (OSError, ValueError, KeyError) as fault:
            raise RunError(f"{path}: cannot be read ({fault}); robustkit report makes it anew") from None
        return rows

    def results(self) -> pd.DataFrame:
        """The rows of summary.json as a DataFrame with the columns of `SUMMARY_COLUMNS`, computed from the records."""
        import pandas as pd

        from .metrics import summarise

        return pd.DataFrame(summarise(self), columns=list(SUMMARY_COLUMNS))
