"""Run `robustkit check --verify-attestation`: compare a checkpoint's files with what a statement is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..display.console import print_line
from ..errors import GateFailed, ProtocolError
from ..gate.attestation import FAILED, FILE, SHARDS, WARNED, read_attestation
from ..models.file_digests import file_digests


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
