"""Run `robustkit check --verify-attestation`: compare a checkpoint's files with what a statement is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import check_plain, reason
from ..display.console import print_line
from ..errors import CheckpointError, GateFailed, ProtocolError
from ..gate.attestation import FAILED, FILE, SHARDS, WARNED, read_attestation
from ..models.checkpoint import sha256
from ..models.hugging_face import digest_of_shards, files_of, is_sharded
from ..models.specs import find
from ..models.transformers_config import read_folder


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


def verify(spec: str, file: Path, others: list[str], console: Any, warned: bool = False) -> None:
    """Print whose result a statement is, where it is about this checkpoint. Its signature is not looked at.

    others: options that mean nothing here. warned: whether a result of WARNED is accepted.

    Raises:
        GateFailed: it is about other files, or its result is FAILED, or WARNED and that is not accepted.
        RunError: it is no statement.
        CheckpointError, ModelError: the checkpoint cannot be read.
    """
    if others:
        raise ProtocolError(f"{', '.join(others)}: --verify-attestation checks no run; leave out one of them")
    attested, found = read_attestation(file), file_digests(spec)
    kind = SHARDS if found.sharded else FILE
    names = attested.names_of({kind: found.weights})
    if not names:
        meant = (f"{digests.get(kind, 'another kind')[:12]}… ({name})" for name, digests in attested.subjects)
        raise GateFailed(
            f"{spec} is not what {file} attests: its digest is {found.weights[:12]}…, expected {' or '.join(meant)}; "
            "fetch the file again, or audit and attest this one"
        )
    if found.config is not None and not attested.configured(found.config):
        raise GateFailed(
            f"{spec}: its weights are what {file} attests, its config.json or processor is not; fetch them again, or "
            "audit and attest these"
        )
    if attested.result == FAILED:
        raise GateFailed(f"{spec} is {', '.join(names)} of {file}, whose result is {FAILED}; release another one")
    if attested.result == WARNED and not warned:
        raise GateFailed(
            f"{spec} is {', '.join(names)} of {file}, whose result is {WARNED}: some rule could not tell, or failed "
            "as a warning; accept that with --allow-warned, or release one that is PASSED"
        )
    print_line(console, f"{spec} is {', '.join(names)} of {file}: {attested.result}")
