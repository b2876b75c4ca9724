"""Adversarial images that a run keeps: how far each is from the image that was attacked, in half precision.

adversarials/<checkpoint>/<condition>/<shard>.parquet   one row per sample that could be read

The record of the same unit states the digest of these differences, so that what is read is what the record is about.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedRecord, RunError
from .binding import shard_number
from .files import folder_name
from .folder import RunFolder
from .links import refuse_link
from .untrusted import metadata_of, read_rows
from .writing import parquet_bytes

if TYPE_CHECKING:
    from pathlib import Path

Differences = Mapping[str, NDArray[np.float16]]
"""By sample id: the adversarial input minus the one that was attacked, in the card's space."""
DIGEST = b"adversarials"
"""Key of metadata: of a record, the digest of the differences of its unit or, under transfer, of those scored."""
_SHAPE, _FOLDER, _WHAT = b"shape", "adversarials", "adversarial images"
_AGAIN = "the same command of the audit makes them again"
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
    """Write the adversarial images of one unit, all of one shape. metadata: from `binding.provenance_metadata`."""
    import pyarrow as pa

    names = sorted(differences)
    shapes = {differences[name].shape for name in names} or {()}
    if len(shapes) > 1:
        raise ValueError(f"differences of shapes {sorted(shapes)}; expected one shape")
    stated = {_SHAPE: json.dumps(shapes.pop()).encode(), DIGEST: digest_of_differences(differences).encode()}
    values = [np.ascontiguousarray(differences[name], dtype="<f2").tobytes() for name in names]
    schema = pa.schema([("sample_id", pa.string()), ("difference", pa.binary())], metadata={**metadata, **stated})
    table = pa.table({"sample_id": names, "difference": values}, schema=schema)
    run.write(adversarials_path(run, checkpoint, condition, shard), parquet_bytes(table))


def adversarials_path(run: RunFolder, checkpoint: str, condition: str, shard: int) -> Path:
    """Return where the adversarial images of a unit lie."""
    return run.path / _FOLDER / folder_name(checkpoint) / folder_name(condition) / f"{shard:05d}.parquet"


def read_adversarials(run: RunFolder, checkpoint: str, condition: str, shard: int) -> tuple[Differences, str]:
    """Return the differences of one unit, and their digest.

    Raises:
        DamagedRecord: they are not what was written, or not those that the record of the unit is about.
        RunError: there are none, or they cannot be read at the moment.
    """
    path = adversarials_path(run, checkpoint, condition, shard)
    data = _bytes(run, path)
    fault = partial(run.unit(checkpoint, condition).fault, path.stem, whole=False)
    metadata, _ = metadata_of(data, _WHAT)
    table = read_rows(path, data, ["sample_id", "difference"], _WHAT, fault, most=_LARGEST)
    try:
        shape, digest = json.loads((metadata or {})[_SHAPE]), (metadata or {})[DIGEST].decode()
        names, values = table["sample_id"].to_pylist(), table["difference"]
        pairs = zip(names, (np.frombuffer(each.as_buffer(), dtype="<f2") for each in values), strict=True)
        differences = {name: row.reshape(shape).astype(np.float16, copy=False) for name, row in pairs}
    except (KeyError, ValueError, TypeError, AttributeError) as raised:
        raise DamagedRecord(f"{path}: {_WHAT} cannot be read ({raised}); {_AGAIN}") from None
    if why := _other(run, checkpoint, condition, shard, digest, digest_of_differences(differences)):
        raise DamagedRecord(f"{path}: {why}; {_AGAIN}")
    return differences, digest


def strange_adversarials(run: RunFolder, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
    """Return the files that `read_adversarials` would refuse, and why, as far as can be told without decoding them."""
    strange = []
    for condition in conditions:
        for path in _paths(run, checkpoint, condition):
            data = _bytes(run, path)
            metadata, fault = metadata_of(data, _WHAT)
            fault = fault or run.unit(checkpoint, condition).fault(path.stem, metadata, data, whole=False)
            number = shard_number(path.stem)
            if not fault and number is not None:
                digest = (metadata or {}).get(DIGEST, b"").decode("ascii", "replace")
                fault = _other(run, checkpoint, condition, number, digest, digest)
            if fault:
                strange.append((path, fault))
    return strange


def remove_adversarials(run: RunFolder) -> None:
    """Remove all adversarial images of a run."""
    refuse_link(run.path / _FOLDER, run.path)
    shutil.rmtree(run.path / _FOLDER, ignore_errors=True)


def _other(run: RunFolder, checkpoint: str, condition: str, shard: int, stated: str, found: str) -> str:
    """Return why differences are not those that the record of their unit is about; empty where they are."""
    if stated != found:
        return f"{_WHAT} that were altered: their SHA-256 is not {stated[:12]}…"
    path = run.shard_path(checkpoint, condition, shard)
    try:
        metadata, _ = metadata_of(run.read_bytes(path))
    except FileNotFoundError:  # both are made again
        return ""
    known = (metadata or {}).get(DIGEST, b"").decode("ascii", "replace")
    return "" if known == found else f"not the {_WHAT} that the record at {path} is about"


def _paths(run: RunFolder, checkpoint: str, condition: str) -> Iterator[Path]:
    folder = adversarials_path(run, checkpoint, condition, 0).parent
    refuse_link(folder, run.path)
    yield from sorted(folder.glob("*.parquet"))


def _bytes(run: RunFolder, path: Path) -> bytes:
    try:
        return run.read_bytes(path)
    except OSError as fault:
        raise RunError(f"{path}: {_WHAT} cannot be read ({fault.strerror or fault}); {_AGAIN}") from None
