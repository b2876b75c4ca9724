"""Records: the rows of one unit of work as one Parquet file, written whole or not at all; and the folder they live in.

run.json                                         what was asked, of what, with what
records/<checkpoint>/<condition>/<shard>.parquet one row a sample
timings/<checkpoint>/<condition>/<shard>.json    what a unit took, and its record's SHA-256; no two runs agree on it
evidence/<checkpoint>/<condition>.json           figures that tell whether an attack's result can be trusted
pictures/…                                       images of a chosen few samples, to be looked at; see `pictures`
summary.json, summary.csv, report.html           made from the two above, any time

Each file says of what it is (`binding`). What does not fit run.json is not read, and nothing is read through a link.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import bytes_of, text_of, write_whole
from ..errors import DamagedRecord, RunError
from .binding import Unit, digest_of_run, misfit
from .digests import digest_of
from .links import refuse_link, refuse_links
from .manifest import Manifest, encoded, manifest_of
from .untrusted import metadata_of, read_rows
from .writing import parquet_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY = "the same command of the audit computes it again"
SUMMARY_COLUMNS = ("checkpoint", "condition", "metric", "value", "n", "ci_low", "ci_high", "protocol", "flags")


def folder_name(text: str) -> str:
    """A file name for a condition or checkpoint: itself where it can be, else with a digest that keeps it unique."""
    plain = text.replace("/", "_")
    safe = re.sub(r"[^\w(),=.+-]", "-", plain, flags=re.ASCII).lstrip(".")[:120]
    if safe == plain:
        return safe
    return f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class RunFolder:
    """A run folder: its files, each read with a check that it is what was written for this run. No model is needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read: tuple[tuple[int, int, int], Manifest] | None = None

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The run in this folder.

        Raises:
            RunError: there is none, or something of it is a link.
        """
        run = cls(path)
        refuse_links(run.path)
        if not run.manifest_path.is_file():
            raise run._none()
        return run

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest(self) -> Manifest:
        """What run.json holds. It is read and checked once, and again when it was written meanwhile.

        Raises:
            RunError: there is none, or it is not as an audit wrote it.
        """
        manifest = self.read_manifest()
        if manifest is None:
            raise self._none()
        return manifest

    def _none(self) -> RunError:
        return RunError(
            f"{self.path} is not a run folder (no run.json); make one with robustkit audit --out {self.path}"
        )

    def read_manifest(self) -> Manifest | None:
        """Return what run.json holds; None before the first unit. Raises RunError where it is not as an audit wrote it.

        Another process may write it at any time, as a whole: a file that is the same by inode, time and size is not
        read again.
        """
        try:
            refuse_link(self.manifest_path, self.path)
            status = self.manifest_path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if self._read is None or self._read[0] != version:
                data = json.loads(self._text(self.manifest_path))
                self._read = version, manifest_of(data, self.manifest_path)
            return self._read[1]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as fault:
            raise RunError(f"{self.manifest_path}: cannot be read ({fault}); restore it or use another --out") from None

    def write_manifest(self, manifest: Manifest) -> None:
        """Write run.json. Readers of this folder see it at once."""
        self.write(self.manifest_path, encoded(manifest.to_plain()))
        self._read = None

    def write(self, path: Path, data: bytes, durable: bool = True) -> None:
        """`write_whole` of a file of this folder. Raises RunError where a link is on its way."""
        refuse_link(path, self.path)
        write_whole(path, data, durable)

    def _bytes(self, path: Path) -> bytes:
        refuse_link(path, self.path)
        return bytes_of(path)

    def _text(self, path: Path) -> str:
        refuse_link(path, self.path)
        return text_of(path)

    def unit(self, checkpoint: str, condition: str) -> Unit:
        """What the files of a checkpoint under a condition have to say. Raises RunError where run.json lacks that."""
        try:
            return Unit.of(self.manifest, checkpoint, condition)
        except RunError as fault:
            raise RunError(f"{self.path}: {fault}") from None

    def shard_path(self, checkpoint: str, condition: str, shard: int) -> Path:
        return self.path / "records" / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.parquet"

    def record_paths(self, checkpoint: str, condition: str) -> list[Path]:
        """The records of a checkpoint under a condition, in the order of their names."""
        folder = self.shard_path(checkpoint, condition, 0).parent
        refuse_link(folder, self.path)
        return sorted(folder.glob("*.parquet"))

    def _has_records(self, checkpoint: str, condition: str) -> bool:
        folder = self.shard_path(checkpoint, condition, 0).parent
        refuse_link(folder, self.path)
        if not folder.is_dir():
            return False
        with os.scandir(folder) as entries:
            return any(entry.name.endswith(".parquet") and entry.name[0] != "." for entry in entries)

    def lacking(self, checkpoint: str, condition: str) -> int:
        """How many samples have no record under a condition, because their shards have none."""
        n, size = self.manifest.data.n, self.manifest.shard_size
        there = {path.name for path in self.record_paths(checkpoint, condition)}
        sizes = {f"{start // size:05d}.parquet": min(size, n - start) for start in range(0, n, size)}
        return sum(size for name, size in sizes.items() if name not in there)

    def write_shard(self, path: Path, table: pa.Table, timing: Mapping[str, Any] | None = None) -> None:
        """One unit's rows at their `shard_path`, and beside them what it took and the SHA-256 of the rows' file.

        The latter first, so that records never lack it. table: with the metadata of `binding.packed`.
        """
        data = parquet_bytes(table)
        beside = json.dumps({**(timing or {}), "sha256": hashlib.sha256(data).hexdigest()})
        self.write(self._timing_path(path), (beside + "\n").encode(), durable=False)
        self.write(path, data)

    def _timing_path(self, record: Path) -> Path:
        return self.path / "timings" / record.relative_to(self.path / "records").with_suffix(".json")

    def damaged(self, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
        """Records of a checkpoint under some conditions that are not what was written for this run, and why not.

        Raises:
            RunError: one of them cannot be read at this moment, or is a link.
        """
        found = []
        for condition in conditions:
            paths = self.record_paths(checkpoint, condition)
            unit = self.unit(checkpoint, condition) if paths else None
            for path in paths:
                data, fault = self._sound(path)
                if not fault:
                    known, fault = metadata_of(data)
                    fault = fault or (unit.fault(path.stem, known, data) if unit else "")
                if fault:
                    found.append((path, fault))
        return found

    def _sound(self, path: Path) -> tuple[bytes, str]:
        """What a record's file holds, and why it is not what was written, as far as the digest beside it says."""
        expected = None
        try:
            data = self._bytes(path)
            with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
                timing = json.loads(self._text(self._timing_path(path)))
                expected = timing.get("sha256") if isinstance(timing, dict) else None
        except OSError as fault:
            raise RunError(
                f"{path}: cannot be read ({fault}); try again, or delete it and run the audit again"
            ) from None
        if expected is None or hashlib.sha256(data).hexdigest() == expected:  # it may be lost in a power cut
            return data, ""
        return data, f"it was altered or damaged after it was written: its SHA-256 is not {str(expected)[:12]}…"

    def stage_seconds(self, checkpoint: str, condition: str) -> dict[str, float]:
        """Seconds of each stage of an attack, over all shards; empty where they are not known."""
        total: dict[str, float] = {}
        folder = self.path / "timings" / folder_name(checkpoint) / folder_name(condition)
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
                for stage, seconds in json.loads(self._text(path)).get("stages", {}).items():
                    total[stage] = total.get(stage, 0.0) + float(seconds)
        return total

    def evidence_path(self, checkpoint: str, condition: str) -> Path:
        return self.path / "evidence" / folder_name(checkpoint) / f"{folder_name(condition)}.json"

    def write_evidence(self, checkpoint: str, condition: str, figures: Mapping[str, Any]) -> None:
        """The figures of `robustkit.evaluations.attacks.examining.examine` for an attack, and of what they are."""
        plain = json.loads(json.dumps({**figures, "of": self.unit(checkpoint, condition).provenance}))
        text = json.dumps(plain | {"digest": digest_of(plain)}, ensure_ascii=False, indent=1)
        self.write(self.evidence_path(checkpoint, condition), (text + "\n").encode())

    def evidence(self, checkpoint: str, condition: str) -> dict[str, Any] | None:
        """The figures of `robustkit.evaluations.attacks.examining.examine`; None where none were taken.

        Raises:
            DamagedRecord: they are not what was written for this run. RunError: they cannot be read at this moment.
        """
        path = self.evidence_path(checkpoint, condition)
        figures, fault = self._evidence(checkpoint, condition)
        if fault:
            raise DamagedRecord(f"{path}: evidence that is not of this run: {fault}; {_REMEDY}")
        return figures

    def strange_evidence(self, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
        """The files that `evidence` would refuse, and why."""
        found = [(self.evidence_path(checkpoint, text), self._evidence(checkpoint, text)[1]) for text in conditions]
        return [(path, why) for path, why in found if why]

    def _evidence(self, checkpoint: str, condition: str) -> tuple[dict[str, Any] | None, str]:
        path = self.evidence_path(checkpoint, condition)
        try:
            figures = json.loads(self._text(path))
        except FileNotFoundError:
            return None, ""
        except (ValueError, RecursionError) as fault:
            return None, f"it cannot be read ({fault})"
        except OSError as fault:
            raise RunError(f"{path}: cannot be read ({fault}); delete it and run the same command again") from None
        told = figures.pop("digest", None) if isinstance(figures, dict) else None
        if not told or told != digest_of(figures):
            return None, "it was altered after it was written" if told else "it does not say of what it is"
        return figures, misfit(figures.pop("of", None), self.unit(checkpoint, condition).provenance)

    def sweep(self) -> None:
        """Remove what a killed process left half-written. Raises RunError where something of the run is a link."""
        refuse_links(self.path)
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
        paths = self.record_paths(checkpoint, condition)
        if not paths:
            raise RunError(
                f"{self.path}: no records of {checkpoint} under {condition}; run the audit again to make them"
            )
        unit = self.unit(checkpoint, condition)
        for path in paths:
            data, fault = self._sound(path)
            if fault:
                raise DamagedRecord(f"{path}: {fault}; {_REMEDY}")
            yield read_rows(path, data, columns, fault=partial(unit.fault, path.stem))

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
        found: dict[str, None] = {}
        for shard in self.shards(checkpoint, condition, ["sample_id"]):
            found |= dict.fromkeys(map(str, json.loads((shard.schema.metadata or {}).get(b"notes", b"[]"))))
        return list(found)

    def units(self) -> Iterator[tuple[str, str]]:
        """(checkpoint, condition) pairs that have records, in the order of run.json."""
        manifest = self.manifest
        for checkpoint in manifest.names:
            for condition in manifest.conditions:
                if self._has_records(checkpoint, condition):
                    yield checkpoint, condition

    def write_summary(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write summary.json, which says of which run it is. rows: in JSON types."""
        plain = {"results": rows, "run": digest_of_run(self.manifest)}
        text = json.dumps(plain | {"digest": digest_of(plain)}, indent=1, ensure_ascii=False)
        self.write(self.path / "summary.json", (text + "\n").encode())

    def summary(self) -> list[dict[str, Any]]:
        """The rows of summary.json as it was written last; what is not finite is None.

        Raises:
            RunError: it cannot be read, or is not what was written for this run.
        """
        path = self.path / "summary.json"
        try:
            plain = json.loads(self._text(path))
            told, rows = plain.pop("digest", None), plain["results"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise RunError(f"{path}: cannot be read ({fault}); robustkit report rebuilds it") from None
        if told != digest_of(plain) or plain.get("run") != digest_of_run(self.manifest):
            raise RunError(f"{path}: is not what was written for this run; robustkit report rebuilds it")
        found: list[dict[str, Any]] = rows
        return found
