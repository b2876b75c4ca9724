"""Pictures that a run keeps for people, and adversarial images that it keeps whole.

pictures/<checkpoint>/<condition>/<shard>.parquet   one row per kept sample

They are not records: nothing is computed from them, and a run without them is complete.

adversarials/<checkpoint>/<condition>/<shard>.parquet   one row per sample that could be read

The record of the same unit states the digest of these differences, so that what is read is what the record is about.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedRecord, RunError
from .folder import RunFolder, refuse_link
from .untrusted import parquet_bytes, parquet_metadata, read_rows, shard_number

if TYPE_CHECKING:
    from pathlib import Path

    from ..protocol.condition import Condition

COLUMNS = ("image", "difference", "heat")
PICTURES, ADVERSARIALS = "pictures", "adversarials"
_WHAT = {PICTURES: "pictures", ADVERSARIALS: "adversarial images"}
_AGAIN = "rerun the same audit command to make them again"


@dataclass(frozen=True)
class Picture:
    """One sample under one condition. image: what the model was shown, WebP. difference: that minus the clean image,
    stretched, grey where nothing changed, WebP; for attacks. heat: the map, stretched, grey PNG of at most 64 x 64."""

    image: bytes | None = None
    difference: bytes | None = None
    heat: bytes | None = None


@dataclass(frozen=True)
class PicturePlan:
    """The samples, by id, and the conditions, by text, of which pictures are kept."""

    samples: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, samples: Sequence[str], conditions: Sequence[Condition]) -> PicturePlan:
        """Plan pictures under all conditions; for a corruption, and for maps under it, at its middle severity."""
        severities: dict[str, list[int]] = {}
        for condition in conditions:
            if condition.group:
                severities.setdefault(condition.group, []).append(condition.level)
        middle = {group: sorted(levels)[len(levels) // 2] for group, levels in severities.items()}

        def keeps(condition: Condition) -> bool:
            base = condition.under or condition
            return not base.group or base.level == middle.get(base.group, base.level)

        return cls(frozenset(samples), frozenset(condition.text for condition in conditions if keeps(condition)))

    def under(self, condition: Condition) -> frozenset[str]:
        return self.samples if condition.text in self.conditions else frozenset()


def write_pictures(
    run: RunFolder,
    checkpoint: str,
    condition: str,
    shard: int,
    pictures: Mapping[str, Picture],
    metadata: Mapping[bytes, bytes],
) -> None:
    """Write the pictures of one unit, if there are any. metadata: from `untrusted.provenance_metadata`."""
    import pyarrow as pa

    if not pictures:
        return
    columns: dict[str, list[Any]] = {"sample_id": list(pictures)}
    columns |= {name: [getattr(kept, name) for kept in pictures.values()] for name in COLUMNS}
    fields = [("sample_id", pa.string()), *((name, pa.binary()) for name in COLUMNS)]
    schema = pa.schema(fields, metadata=dict(metadata))
    run.write(run.shard_path(checkpoint, condition, shard, PICTURES), parquet_bytes(pa.table(columns, schema=schema)))


def read_pictures(run: RunFolder, checkpoint: str, condition: str) -> dict[str, Picture]:
    """Return the pictures of a unit by sample id, if any were kept. Raises RunError where a file is not as written."""
    pictures: dict[str, Picture] = {}
    for path, data in _files(run, PICTURES, checkpoint, condition):
        fits = partial(run.unit(checkpoint, condition).fault, path.stem, whole=False)
        rows = read_rows(path, data, ["sample_id", *COLUMNS], "pictures", fits).to_pylist()
        pictures |= {row["sample_id"]: Picture(*(row.get(name) for name in COLUMNS)) for row in rows}
    return pictures


def kept_conditions(run: RunFolder, checkpoint: str) -> list[str]:
    """Return the conditions, of those of run.json, under which pictures of a checkpoint were kept."""
    texts = run.manifest.conditions
    return [text for text in texts if any(run.shard_path(checkpoint, text, 0, PICTURES).parent.glob("*.parquet"))]


Differences = Mapping[str, NDArray[np.float16]]
"""By sample id: the adversarial input minus the one that was attacked, in the card's space."""
DIGEST = b"adversarials"
"""Key of metadata: of a record, the digest of the differences of its unit or, under transfer, of those scored."""
_SHAPE = b"shape"
_LARGEST = 1 << 31  # bytes of the differences of one shard


def digest_of_differences(differences: Differences) -> str:
    """Return the SHA-256 (hex) of differences with the ids and shapes of their samples, whatever their order."""
    total = hashlib.sha256()
    for name in sorted(differences):
        values = np.ascontiguousarray(differences[name], dtype="<f2")
        total.update(json.dumps([name, values.shape]).encode() + b"\0" + values.tobytes())
    return total.hexdigest()


def write_adversarials(
    run: RunFolder,
    checkpoint: str,
    condition: str,
    shard: int,
    differences: Differences,
    metadata: Mapping[bytes, bytes],
) -> None:
    """Write the adversarial images of one unit, all of one shape. metadata: from `untrusted.provenance_metadata`."""
    import pyarrow as pa

    names = sorted(differences)
    shapes = {differences[name].shape for name in names} or {()}
    if len(shapes) > 1:
        raise ValueError(f"differences of shapes {sorted(shapes)}; expected one shape")
    stated = {_SHAPE: json.dumps(shapes.pop()).encode(), DIGEST: digest_of_differences(differences).encode()}
    values = [np.ascontiguousarray(differences[name], dtype="<f2").tobytes() for name in names]
    schema = pa.schema([("sample_id", pa.string()), ("difference", pa.binary())], metadata={**metadata, **stated})
    table = pa.table({"sample_id": names, "difference": values}, schema=schema)
    run.write(run.shard_path(checkpoint, condition, shard, ADVERSARIALS), parquet_bytes(table))


def read_adversarials(run: RunFolder, checkpoint: str, condition: str, shard: int) -> tuple[Differences, str]:
    """Return the differences of one unit, and their digest. Raises DamagedRecord where they are not what was written,
    or not what the record is about; RunError where there are none, or they cannot be read at the moment."""
    path = run.shard_path(checkpoint, condition, shard, ADVERSARIALS)
    data, what = _bytes(run, ADVERSARIALS, path), _WHAT[ADVERSARIALS]
    fault = partial(run.unit(checkpoint, condition).fault, path.stem, whole=False)
    metadata, _ = parquet_metadata(data, what)
    table = read_rows(path, data, ["sample_id", "difference"], what, fault, most=_LARGEST)
    try:
        shape, digest = json.loads((metadata or {})[_SHAPE]), (metadata or {})[DIGEST].decode()
        names, values = table["sample_id"].to_pylist(), table["difference"]
        pairs = zip(names, (np.frombuffer(each.as_buffer(), dtype="<f2") for each in values), strict=True)
        differences = {name: row.reshape(shape).astype(np.float16, copy=False) for name, row in pairs}
    except (KeyError, ValueError, TypeError, AttributeError) as raised:
        raise DamagedRecord(f"{path}: {what} cannot be read ({raised}); {_AGAIN}") from None
    if why := _other(run, checkpoint, condition, shard, digest, digest_of_differences(differences)):
        raise DamagedRecord(f"{path}: {why}; {_AGAIN}")
    return differences, digest


def remove_adversarials(run: RunFolder) -> None:
    refuse_link(run.path / ADVERSARIALS, run.path)
    shutil.rmtree(run.path / ADVERSARIALS, ignore_errors=True)


def _other(run: RunFolder, checkpoint: str, condition: str, shard: int, stated: str, digest: str) -> str:
    """Return why differences are not those that the record of their unit is about; empty where they are."""
    if stated != digest:
        return f"{_WHAT[ADVERSARIALS]} that were modified: their SHA-256 is not {stated[:12]}…"
    path = run.shard_path(checkpoint, condition, shard)
    try:
        metadata, _ = parquet_metadata(run.read_bytes(path))
    except FileNotFoundError:  # both are made again
        return ""
    recorded = (metadata or {}).get(DIGEST, b"").decode("ascii", "replace")
    return "" if recorded == digest else f"not the {_WHAT[ADVERSARIALS]} that the record at {path} is about"


def strange_images(run: RunFolder, kind: str, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
    """Return files of a kind that reading would refuse, and why, as far as can be seen without decoding them."""
    strange = []
    for condition in conditions:
        for path, data in _files(run, kind, checkpoint, condition):
            metadata, fault = parquet_metadata(data, _WHAT[kind])
            fault = fault or run.unit(checkpoint, condition).fault(path.stem, metadata, data, whole=False)
            number = shard_number(path.stem)
            if not fault and number is not None and kind == ADVERSARIALS:
                digest = (metadata or {}).get(DIGEST, b"").decode("ascii", "replace")
                fault = _other(run, checkpoint, condition, number, digest, digest)
            if fault:
                strange.append((path, fault))
    return strange


def _files(run: RunFolder, kind: str, checkpoint: str, condition: str) -> Iterator[tuple[Path, bytes]]:
    folder = run.shard_path(checkpoint, condition, 0, kind).parent
    refuse_link(folder, run.path)
    yield from ((path, _bytes(run, kind, path)) for path in sorted(folder.glob("*.parquet")))


def _bytes(run: RunFolder, kind: str, path: Path) -> bytes:
    try:
        return run.read_bytes(path)
    except OSError as fault:
        reason, remedy = (fault.strerror or fault), _AGAIN
        if kind == PICTURES:
            reason, remedy = fault, "delete the file; nothing depends on it"
        raise RunError(f"{path}: {_WHAT[kind]} cannot be read ({reason}); {remedy}") from None
