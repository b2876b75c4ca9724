"""Records: the rows of one unit of work as one Parquet file, written whole or not at all; and the folder they live in.

run.json                                         what was asked, of what, with what
records/<checkpoint>/<condition>/<shard>.parquet one row a sample
timings/<checkpoint>/<condition>/<shard>.json    what a unit took, and its record's SHA-256; no two runs agree on it
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import DamagedRecord, RunError
from .files import bytes_of, text_of
from .foreign import check_manifest, read_rows

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


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as Parquet, which depends on the table alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    data: bytes = buffer.getvalue().to_pybytes()
    return data


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
            data = json.loads(text_of(self.manifest_path))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as fault:
            raise RunError(f"{self.manifest_path}: cannot be read ({fault}); restore it or use another --out") from None
        if not isinstance(data, dict) or not data.keys() >= _NEEDED:
            raise RunError(f"{self.manifest_path}: not a whole run.json; restore it or use another --out")
        check_manifest(data, self.manifest_path)
        return data

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_whole(self.manifest_path, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())

    def shard_path(self, checkpoint: str, condition: str, shard: int) -> Path:
        return self.path / "records" / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.parquet"

    def write_shard(self, path: Path, table: pa.Table, timing: Mapping[str, Any] | None = None) -> None:
        """One unit's rows at their `shard_path`, and beside them what it took and the SHA-256 of the rows' file.

        The latter first, so that records never lack it.
        """
        data = parquet_bytes(table)
        beside = json.dumps({**(timing or {}), "sha256": hashlib.sha256(data).hexdigest()})
        write_whole(self._timing_path(path), (beside + "\n").encode(), durable=False)
        write_whole(path, data)

    def _timing_path(self, record: Path) -> Path:
        return self.path / "timings" / record.relative_to(self.path / "records").with_suffix(".json")

    def damaged(self, checkpoint: str, conditions: Sequence[str]) -> list[Path]:
        """Records of a checkpoint under some conditions that are not what was written: altered, or cut short.

        Raises:
            RunError: one of them cannot be read at this moment, or lies outside the run folder.
        """
        found, home = [], self.path.resolve()
        for condition in conditions:
            for path in sorted(self.shard_path(checkpoint, condition, 0).parent.glob("*.parquet")):
                if not path.resolve().is_relative_to(home):
                    raise RunError(f"{path} leads out of {self.path}; use another --out")
                try:
                    self._sound(path)
                except DamagedRecord:
                    found.append(path)
        return found

    def _sound(self, path: Path) -> bytes:
        """What a record's file holds. Raises DamagedRecord where it is not what was written."""
        expected = None
        try:
            data = bytes_of(path)
            with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
                timing = json.loads(text_of(self._timing_path(path)))
                expected = timing.get("sha256") if isinstance(timing, dict) else None
        except OSError as fault:
            raise RunError(
                f"{path}: cannot be read ({fault}); try again, or delete it and run the audit again"
            ) from None
        if expected is None:  # lost in a power cut, or of an earlier version
            read_rows(path, data)
        elif hashlib.sha256(data).hexdigest() != expected:
            raise DamagedRecord(
                f"{path}: a record was altered or damaged after it was written (its SHA-256 is not "
                f"{str(expected)[:12]}…); the same command of the audit computes it anew"
            )
        return data

    def stage_seconds(self, checkpoint: str, condition: str) -> dict[str, float]:
        """Seconds of each stage of an attack, over all shards; empty where they are not known."""
        total: dict[str, float] = {}
        folder = self.path / "timings" / folder_name(checkpoint) / folder_name(condition)
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
                for stage, seconds in json.loads(text_of(path)).get("stages", {}).items():
                    total[stage] = total.get(stage, 0.0) + float(seconds)
        return total

    def evidence_path(self, checkpoint: str, condition: str) -> Path:
        return self.path / "evidence" / folder_name(checkpoint) / f"{folder_name(condition)}.json"

    def evidence(self, checkpoint: str, condition: str) -> dict[str, Any] | None:
        """The figures of `robustkit.masking.examine`; None where none were taken."""
        path = self.evidence_path(checkpoint, condition)
        try:
            figures = json.loads(text_of(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as fault:
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

    def shards(
        self, checkpoint: str, condition: str, columns: Collection[str] | Callable[[str], bool] | None = None
    ) -> Iterator[pa.Table]:
        """The rows of one checkpoint under one condition, a table a shard, with the metadata of its record.

        columns: which to read, by name or by whether a name is wanted; those that a record lacks are left out.

        Raises:
            RunError: there are none, or a file is not readable.
        """
        paths = sorted(self.shard_path(checkpoint, condition, 0).parent.glob("*.parquet"))
        if not paths:
            raise RunError(
                f"{self.path}: no records of {checkpoint} under {condition}; run the audit again to make them"
            )
        for path in paths:
            yield read_rows(path, self._sound(path), columns)

    def table(
        self, checkpoint: str, condition: str, columns: Collection[str] | Callable[[str], bool] | None = None
    ) -> pa.Table:
        """All rows of one checkpoint under one condition, in the order of shards; otherwise as `shards`."""
        import pyarrow as pa

        tables = list(self.shards(checkpoint, condition, columns))
        try:
            return pa.concat_tables(tables, promote_options="default")  # a shard without images has no stages
        except pa.ArrowException as fault:
            where = self.shard_path(checkpoint, condition, 0).parent
            raise DamagedRecord(
                f"{where}: its records do not fit together ({fault}); delete them and run again"
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
            rows: list[dict[str, Any]] = json.loads(text_of(path))["results"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
            raise RunError(f"{path}: cannot be read ({fault}); robustkit report makes it anew") from None
        return rows

    def results(self) -> pd.DataFrame:
        """The rows of summary.json as a DataFrame with the columns of `SUMMARY_COLUMNS`, computed from the records."""
        import pandas as pd

        from .metrics import summarise

        return pd.DataFrame(summarise(self), columns=list(SUMMARY_COLUMNS))
