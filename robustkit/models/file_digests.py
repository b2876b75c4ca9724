"""The digests of a checkpoint's files, without loading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..common.files import check_plain, reason
from ..errors import CheckpointError
from .checkpoint import sha256
from .specs import find
from .transformers_config import read_folder
from .transformers_load import digest_of_shards, files_of, is_sharded


@dataclass(frozen=True)
class FileDigests:
    """SHA-256 (hex) as an audit states them. weights: of the file; where `sharded`, of the lines `SHA-256 NAME` of all.
    config: of the files that say how the network is built; None where the audit has none.
    """

    weights: str
    sharded: bool = False
    config: str | None = None


def file_digests(spec: str) -> FileDigests:
    """Return the digests of what is behind a spec.

    Raises:
        CheckpointError: a file is missing or cannot be read. ModelError: there is no such checkpoint.
    """
    if spec.startswith("timm:"):
        raise CheckpointError(f"{spec}: comes from no file, so there is no digest to compare; expected a file")
    found = find(spec)
    if not found.transformers:
        return FileDigests(_of(found.path))
    config, files = read_folder(found.path).digest, files_of(found.path)
    if not is_sharded(found.path):
        return FileDigests(_of(files[0]), config=config)
    return FileDigests(digest_of_shards((file.name, _of(file)) for file in files), sharded=True, config=config)


def _of(path: Path) -> str:
    try:
        check_plain(path)
        return sha256(path)
    except OSError as fault:
        raise CheckpointError(f"{path}: cannot be read ({reason(fault)}); check the path") from None
