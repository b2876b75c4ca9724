"""The run folder: records, each the rows of one unit of work as a Parquet file, and what lies next to them.

run.json                                         the request, the data, the versions
records/<checkpoint>/<condition>/<shard>.parquet one row per sample
timings/<checkpoint>/<condition>/<shard>.json    what a unit took, and its record's SHA-256; no two runs agree on it
evidence/<checkpoint>/<condition>.json           figures that show whether an attack's result can be trusted
pictures/…                                       images of a chosen few samples, to be looked at; see `kept_images`
adversarials/…                                   adversarial images, kept for transfer or on request; see `kept_images`
metadata.parquet                                 columns of the user's own, one row per sample; see `metadata`
summary.json, summary.csv, report.html           made from the two above, any time
gate.json                                        the last verdict of `robustkit check` about that summary
refused.json                                     that the last audit into this folder was refused; gone after the next

Each file states what it belongs to (`untrusted`). What disagrees with run.json is not read, and no link is followed.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..common.environment import path_limit
from ..common.figure import Figure
from ..common.files import bytes_of, json_in, text_of, write_whole
from ..errors import DamagedRecord, RunError
from .manifest import Manifest, digest_of, encode_manifest, made_with, manifest_of
from .untrusted import (
    PROVENANCE,
    Unit,
    binding_fault,
    digest_of_run,
    parquet_bytes,
    parquet_metadata,
    read_rows,
    shard_number,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ..data.metadata import Grouping

METADATA = "metadata.parquet"
OWN = (
    *("run.json", "summary.json", "summary.csv", "report.html", "gate.json", "refused.json", METADATA),
    *("records", "timings", "evidence", "pictures", "adversarials", "features"),
)
OWN_PICTURES = ("cams", "scenes")
"""The files and folders that commands write and read in a run folder; everything else there is left alone."""


def refuse_links(folder: Path) -> None:
    """Raise RunError for the first link among a run folder's own files. The folder itself may be one."""
    for name in (*OWN, *OWN_PICTURES):
        for link in _links(folder / name):
            raise _refusal(link)


def refuse_link(path: Path, folder: Path) -> None:
    """Raise RunError where a path in the folder, or a folder on the way to it, is a link."""
    inside = path.relative_to(folder)
    for part in (*reversed(inside.parents[:-1]), inside):
        if (folder / part).is_symlink():
            raise _refusal(folder / part)


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
        return
    waiting = [path] if path.is_dir() else []
    while waiting:
        with contextlib.suppress(PermissionError), os.scandir(waiting.pop()) as entries:  # reading will say so
            for entry in entries:
                if entry.is_symlink():
                    yield Path(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


def _refusal(link: Path) -> RunError:
    try:
        place = str(link.readlink())
    except OSError:
        place = "somewhere else"
    return RunError(
        f"{link} is a link to {place}; expected a file or folder of the run's own: put it in the place of the link, or "
        "delete the link"
    )


_LONGEST = 1000  # characters of why an audit was refused
_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # what Windows takes for a device
Folder = TypeVar("Folder", bound="RunFolder")


def folder_name(text: str, longest: int = 120) -> str:
    """Return a file name for a condition or checkpoint: itself where it can be, on Windows, too, else one made unique
    by a digest. longest: characters before that."""
    plain = text.replace("/", "_")
    safe = re.sub(r"[^\w(),=.+-]", "-", plain, flags=re.ASCII).lstrip(".")[:longest]
    if safe == plain and not safe.endswith(".") and not _DEVICE.fullmatch(safe):
        return safe
    start = safe.replace(".", "-") if _DEVICE.fullmatch(safe) else safe
    return f"{start}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def longest_path(folder: PurePath, manifest: Manifest) -> int:
    """Return how many characters the longest path of a run has, that of a file of a unit as it is written."""
    checkpoint, condition = (
        max(map(folder_name, names), key=len, default="") for names in (manifest.names, manifest.conditions)
    )
    return len(str(folder / "adversarials" / checkpoint / condition / f".00000.parquet.{'0' * 16}.tmp"))


TAKEN = "taken"  # the column that says whether a sample was drawn for a condition that is evaluated on a part of them
Columns = Collection[str] | Callable[[str], bool] | None


def with_taken(columns: Columns) -> Columns:
    if columns is None or callable(columns):
        return columns and (lambda name: name == TAKEN or columns(name))
    return {*columns, TAKEN}


def only_taken(table: pa.Table) -> pa.Table:
    """Return the rows of the samples that were drawn, without the column that says so; all rows where none does."""
    return table.filter(table[TAKEN]).drop_columns([TAKEN]) if TAKEN in table.column_names else table


_REMEDY = "rerun the same audit command to compute it again"


class RunFolder:
    """A run folder: its files, each read with a check that it is what was written for this run. No model is needed."""

    grouping: Grouping | None = None
    """How its samples are grouped, in place of what the folder says."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._read: tuple[tuple[int, int, int], Manifest] | None = None
        self.made_with: set[tuple[str, str]] = set()
        """The versions of robustkit, torch and timm that the records which were read name, each with its number."""

    @classmethod
    def existing(cls: type[Folder], path: str | Path) -> Folder:
        """Return the run in this folder. Raises RunError where there is none, or something of it is a link."""
        run = cls(path)
        refuse_links(run.path)
        if not run.manifest_path.is_file():
            raise run._none()
        return run

    @classmethod
    def opened(cls: type[Folder], run: Folder | str | Path, grouping: Grouping | None = None) -> Folder:
        """Return a run as it is, or the one in this folder, as `existing`; with its samples in these groups, if any."""
        folder = run if isinstance(run, cls) else cls.existing(run)  # type: ignore[arg-type]
        if grouping is not None:
            folder = copy.copy(folder)
            folder.grouping = grouping
        return folder

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def manifest(self) -> Manifest:
        """What run.json holds. It is read and checked once, and again after it was written. Raises RunError where there
        is none, or it is not as an audit wrote it.
        """
        if (manifest := self.read_manifest()) is None:
            raise self._none()
        return manifest

    def _none(self) -> RunError:
        problem = f"{self.path} is not a run folder (no run.json)"
        if inside := sorted(found.parent.name for found in self.path.glob("*/run.json")):
            names = f"{', '.join(inside[:3])}{f' and {len(inside) - 3} more' if len(inside) > 3 else ''}"
            return RunError(f"{problem} but holds some: {names}; give one of them, such as {self.path / inside[0]}")
        return RunError(f"{problem}; make one with robustkit audit --out {self.path}")

    def read_manifest(self) -> Manifest | None:
        """Return what run.json holds; None before the first unit. Raises RunError where no audit wrote it so. Another
        process may replace it at any time: with the same inode, time and size it is not read again."""
        try:
            refuse_link(self.manifest_path, self.path)
            status = self.manifest_path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if self._read is None or self._read[0] != version:
                self._read = version, manifest_of(json_in(self.read_text(self.manifest_path)), self.manifest_path)
            return self._read[1]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as fault:
            raise RunError(f"{self.manifest_path}: cannot be read ({fault}); restore it or use another --out") from None

    def write_manifest(self, manifest: Manifest) -> None:
        """Write run.json. Raises RunError where its names lead to paths that this or another system cannot have."""
        self._check_paths(manifest)
        self.write(self.manifest_path, encode_manifest(manifest.to_plain()))
        self._read = None

    def _check_paths(self, manifest: Manifest) -> None:
        for names in (manifest.names, manifest.conditions):
            folders = {folder_name(name).lower(): name for name in reversed(names)}
            for name in names:
                if (other := folders[folder_name(name).lower()]) != name:
                    what = f"{other} and {name} differ in case alone, and would share a folder on Windows and macOS"
                    raise RunError(f"{what}; give one of them another name, or use another --out")
        limit, longest = path_limit(), longest_path(self.path.absolute(), manifest)
        if limit and longest > limit:
            what = f"{self.path}: its files would have paths of up to {longest} characters; expected at most {limit}"
            raise RunError(f"{what}: use an --out that is {longest - limit} shorter, or turn on long paths in Windows")

    @property
    def refusal_path(self) -> Path:
        return self.path / "refused.json"

    def note_refusal(self, reason: str) -> None:
        """Leave a mark that an audit into this run was refused, if the folder is a run and can be written."""
        with contextlib.suppress(RunError, OSError):
            if self.manifest_path.is_file():
                text = json.dumps({"refused": " ".join(reason.split())[:_LONGEST]}, ensure_ascii=True)
                self.write(self.refusal_path, (text + "\n").encode())

    def refusal(self) -> str:
        """Return why the last audit into this folder was refused; empty where it was not."""
        try:
            content = json_in(self.read_text(self.refusal_path))
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError, RecursionError):
            content = None
        reason = content.get("refused") if isinstance(content, dict) else None
        return reason[:_LONGEST] if isinstance(reason, str) and reason else "it gives no reason"

    def forget_refusal(self) -> None:
        """Remove the mark: an audit has come to its end. Raises RunError where a link is on its way."""
        refuse_link(self.refusal_path, self.path)
        self.refusal_path.unlink(missing_ok=True)

    def write(self, path: Path, data: bytes, durable: bool = True) -> None:
        """Write a file of this folder as `write_whole` does. Raises RunError where a link is on its way."""
        refuse_link(path, self.path)
        write_whole(path, data, durable)

    def read_bytes(self, path: Path) -> bytes:
        """Return the bytes of a file of this folder. Raises RunError for a link on its way, OSError as `bytes_of`."""
        refuse_link(path, self.path)
        return bytes_of(path)

    def read_text(self, path: Path) -> str:
        """Return the text of a file of this folder. Raises as `read_bytes`, and UnicodeDecodeError."""
        refuse_link(path, self.path)
        return text_of(path)

    def unit(self, checkpoint: str, condition: str) -> Unit:
        """Return the provenance of the files of a checkpoint under a condition. Raises RunError as `Unit.of`."""
        try:
            return Unit.of(self.manifest, checkpoint, condition)
        except RunError as fault:
            raise RunError(f"{self.path}: {fault}") from None

    def sweep(self) -> None:
        """Remove files that a killed process left half-written. Raises RunError where part of the run is a link."""
        refuse_links(self.path)
        ours = [f".{name}" for name in OWN if "." in name]
        ours += [f"{folder}/*/*/.*.parquet" for folder in ("records", "pictures", "adversarials")]
        ours += ["timings/*/*/.*.json", "evidence/*/.*.json", "features/*/.heads.safetensors"]
        for leftover in (path for name in ours for path in self.path.glob(f"{name}.*.tmp")):
            leftover.unlink(missing_ok=True)

    def shard_path(self, checkpoint: str, condition: str, shard: int, kind: str = "records") -> Path:
        return self.path / kind / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.parquet"

    def record_paths(self, checkpoint: str, condition: str) -> list[Path]:
        """Return the records of a checkpoint under a condition, in the order of their names."""
        folder = self.shard_path(checkpoint, condition, 0).parent
        return [folder / name for name in sorted(self._records(checkpoint, condition))]

    def lacking(self, checkpoint: str, condition: str) -> int:
        """Return how many samples have no record under a condition, because their shards have no file."""
        n, size = self.manifest.data.n, self.manifest.shard_size
        return n - sum(min(size, n - shard * size) for shard in self._shards(checkpoint, condition))

    def missing_units(self, checkpoint: str, condition: str) -> int:
        return self.shard_count - len(self._shards(checkpoint, condition))

    def missing_shards(self, checkpoint: str, condition: str) -> list[int]:
        """Return the shards without a record. Raises RunError where run.json claims other shards than it describes."""
        self.unit(checkpoint, condition)
        shards = self._shards(checkpoint, condition)
        return [shard for shard in range(self.shard_count) if shard not in shards]

    @property
    def shard_count(self) -> int:
        return -(-self.manifest.data.n // self.manifest.shard_size)

    def records_stamp(self) -> str:
        """Return a digest that changes with each record: each changes the time of its folder, so no file is read."""
        seen = hashlib.sha256()
        for name, status in _folders(self.path / "records", 2):
            seen.update(os.fsencode(name) + f"\0{status.st_ino} {status.st_mtime_ns}\0".encode())
        return seen.hexdigest()

    def _shards(self, checkpoint: str, condition: str) -> set[int]:
        numbers = (shard_number(name.removesuffix(".parquet")) for name in self._records(checkpoint, condition))
        return {number for number in numbers if number is not None and number < self.shard_count}

    def _records(self, checkpoint: str, condition: str) -> list[str]:
        """Return the names of the files of records. Raises RunError for a link, and where they cannot be listed."""
        folder = self.shard_path(checkpoint, condition, 0).parent
        refuse_link(folder, self.path)
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.name.endswith(".parquet") and entry.name[0] != "."]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            raise RunError(f"{folder}: cannot be read ({fault.strerror}); make it readable for you") from None

    def write_shard(self, path: Path, table: pa.Table, timing: Mapping[str, Any] | None = None) -> None:
        """Write one unit's rows (table: with `untrusted.provenance_metadata`) at their `shard_path`; before them, so
        that they never lack these, its timings and the SHA-256 of the rows' file."""
        data = parquet_bytes(table)
        timings = json.dumps({**(timing or {}), "sha256": hashlib.sha256(data).hexdigest()})
        self.write(self._timing_path(path), (timings + "\n").encode(), durable=False)
        self.write(path, data)

    def _timing_path(self, record: Path) -> Path:
        return self.path / "timings" / record.relative_to(self.path / "records").with_suffix(".json")

    def damaged(self, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
        """Return the records that are not what was written for this run, and why. Raises RunError where one cannot be
        read at the moment, or is a link."""
        damaged = []
        for condition in conditions:
            paths = self.record_paths(checkpoint, condition)
            unit = self.unit(checkpoint, condition) if paths else None
            for path in paths:
                data, fault = self._sound(path)
                if not fault:
                    metadata, fault = parquet_metadata(data)
                    fault = fault or (unit.fault(path.stem, metadata, data) if unit else "")
                if fault:
                    damaged.append((path, fault))
        return damaged

    def _sound(self, path: Path) -> tuple[bytes, str]:
        """Return the bytes of a record's file, and why they are not what was written, by the digest next to it."""
        expected = None
        try:
            data = self.read_bytes(path)
            with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
                timing = json_in(self.read_text(self._timing_path(path)))
                expected = timing.get("sha256") if isinstance(timing, dict) else None
        except OSError as fault:
            remedy = "try again, or delete it and run the audit again"
            raise RunError(f"{path}: cannot be read ({fault}); {remedy}") from None
        if expected is None or hashlib.sha256(data).hexdigest() == expected:  # it may be lost in a power cut
            return data, ""
        return data, f"it was modified or damaged after it was written: its SHA-256 is not {str(expected)[:12]}…"

    def stage_seconds(self, checkpoint: str, condition: str) -> dict[str, float]:
        """Return the seconds of each stage of an attack, over all shards; empty where they are not known."""
        total: dict[str, float] = {}
        folder = self.path / "timings" / folder_name(checkpoint) / folder_name(condition)
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
                for stage, seconds in json_in(self.read_text(path)).get("stages", {}).items():
                    total[stage] = total.get(stage, 0.0) + float(seconds)
        return total

    def evidence_path(self, checkpoint: str, condition: str) -> Path:
        return self.path / "evidence" / folder_name(checkpoint) / f"{folder_name(condition)}.json"

    def write_evidence(self, checkpoint: str, condition: str, figures: Mapping[str, Any]) -> None:
        """Write the figures of `slices.evidence.examining.examine` for an attack, with their provenance."""
        plain = json.loads(json.dumps({**figures, "of": self.unit(checkpoint, condition).provenance}))
        text = json.dumps(plain | {"digest": digest_of(plain)}, ensure_ascii=False, indent=1)
        self.write(self.evidence_path(checkpoint, condition), (text + "\n").encode())

    def evidence(self, checkpoint: str, condition: str) -> dict[str, Any] | None:
        """Return the figures of `slices.evidence.examining.examine`; None where none were measured. Raises
        DamagedRecord where they are not what was written, RunError where they cannot be read at the moment."""
        path = self.evidence_path(checkpoint, condition)
        figures, fault = self._evidence(checkpoint, condition)
        if fault:
            raise DamagedRecord(f"{path}: evidence that does not belong to this run: {fault}; {_REMEDY}")
        return figures

    def strange_evidence(self, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
        """Return the files that `evidence` would refuse, and why."""
        faults = [(self.evidence_path(checkpoint, text), self._evidence(checkpoint, text)[1]) for text in conditions]
        return [(path, fault) for path, fault in faults if fault]

    def _evidence(self, checkpoint: str, condition: str) -> tuple[dict[str, Any] | None, str]:
        path = self.evidence_path(checkpoint, condition)
        try:
            figures = json_in(self.read_text(path))
        except FileNotFoundError:
            return None, ""
        except (ValueError, RecursionError) as fault:
            return None, f"it cannot be read ({fault})"
        except OSError as fault:
            raise RunError(f"{path}: cannot be read ({fault}); delete it and run the same command again") from None
        digest = figures.pop("digest", None) if isinstance(figures, dict) else None
        if not digest or digest != digest_of(figures):
            return None, "it was modified after it was written" if digest else "it does not record what it belongs to"
        return figures, binding_fault(figures.pop("of", None), self.unit(checkpoint, condition).provenance)

    def shards(self, checkpoint: str, condition: str, columns: Columns = None) -> Iterator[pa.Table]:
        """Yield the rows of one checkpoint under one condition, a table per shard; of a condition on a part of the
        samples, those of that part. columns: by name or by a test of names; a record may lack some. Raises RunError."""
        if not (paths := self.record_paths(checkpoint, condition)):
            what = f"no records of {checkpoint} under {condition}"
            raise RunError(f"{self.path}: {what}; run the audit again to make them")
        unit = self.unit(checkpoint, condition)
        yield from (self._rows(path, unit, columns) for path in paths)

    def shard(self, checkpoint: str, condition: str, number: int, columns: Columns = None) -> pa.Table:
        """Return the rows of one shard, which must be there; otherwise as `shards`."""
        return self._rows(self.shard_path(checkpoint, condition, number), self.unit(checkpoint, condition), columns)

    def _rows(self, path: Path, unit: Unit, columns: Columns) -> pa.Table:
        data, fault = self._sound(path)
        if fault:
            raise DamagedRecord(f"{path}: {fault}; {_REMEDY}")
        rows = read_rows(path, data, with_taken(columns), fault=partial(unit.fault, path.stem))
        stated = json.loads((rows.schema.metadata or {}).get(PROVENANCE, b"{}")).get("versions")
        self.made_with |= made_with(stated if isinstance(stated, dict) else {}).items()
        return only_taken(rows)

    def table(self, checkpoint: str, condition: str, columns: Columns = None) -> pa.Table:
        """Return all rows of one checkpoint under one condition, in the order of shards; otherwise as `shards`."""
        import pyarrow as pa

        tables = list(self.shards(checkpoint, condition, columns))
        try:
            return pa.concat_tables(tables, promote_options="default")  # a shard without images has no stages
        except pa.ArrowException as fault:
            where = self.shard_path(checkpoint, condition, 0).parent
            problem = f"its records are inconsistent ({fault})"
            raise DamagedRecord(f"{where}: {problem}; delete them and run again") from None

    def units(self) -> Iterator[tuple[str, str]]:
        """Yield (checkpoint, condition) pairs that have records, in the order of run.json."""
        manifest = self.manifest
        for checkpoint in manifest.names:
            for condition in manifest.conditions:
                if self._records(checkpoint, condition):
                    yield checkpoint, condition

    def write_summary(self, figures: Iterable[Figure]) -> None:
        """Write summary.json, which names the run that it belongs to."""
        plain = {"results": [figure.to_plain() for figure in figures], "run": digest_of_run(self.manifest)}
        text = json.dumps(plain | {"digest": digest_of(plain)}, indent=1, ensure_ascii=False)
        self.write(self.path / "summary.json", (text + "\n").encode())

    def keep_gate(self, policy: str, outcome: str) -> None:
        """Keep the verdict of a policy about the summary, for the page."""
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        plain = {"policy": policy, "outcome": outcome, "date": date, "summary": self._summary_digest()}
        with contextlib.suppress(OSError, RunError):  # a run that cannot be written to is checked all the same
            self.write(self.path / "gate.json", (json.dumps(plain, ensure_ascii=False) + "\n").encode())

    def gate(self) -> dict[str, str]:
        """Return what `keep_gate` kept; empty where there is nothing, or the summary is another one since."""
        try:
            plain = json_in(self.read_text(self.path / "gate.json"))
            texts = {key: str(plain[key]) for key in ("policy", "outcome", "date")}
            return texts if plain["summary"] == self._summary_digest() else {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError, RunError):
            return {}

    def _summary_digest(self) -> str:
        path = self.path / "summary.json"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""

    def summary(self) -> list[Figure]:
        """Return the figures of summary.json as last written; nan for what is not finite. Raises RunError."""
        path = self.path / "summary.json"
        if self.grouping is not None:
            raise RunError(f"{path}: its samples are grouped as the run says, not as was asked for")
        try:
            plain = json_in(self.read_text(path))
            digest, rows = plain.pop("digest", None), plain["results"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
            raise RunError(f"{path}: cannot be read ({fault}); robustkit report rebuilds it") from None
        if digest != digest_of(plain) or plain.get("run") != digest_of_run(self.manifest):
            raise RunError(f"{path}: is not what was written for this run; robustkit report rebuilds it")
        try:
            return [Figure.from_plain(row) for row in rows]
        except (msgspec.ValidationError, TypeError) as fault:
            raise RunError(f"{path}: is not as an audit writes it ({fault}); robustkit report rebuilds it") from None


def _folders(folder: Path, levels: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names of a folder and of those in it, some levels deep, and their status. Links are not followed."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        yield folder.name, status
        for inner in sorted(folder.iterdir()) if levels else ():
            yield from _folders(inner, levels - 1)
