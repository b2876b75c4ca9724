"""Read an in-toto Statement of someone else, and tell whether a checkpoint's files are its subject."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import json_of, reason
from ..errors import RunError
from .attestation import FAILED, FILE, PASSED, PREDICATES, SHARDS, STATEMENT, WARNED
from .output import plain

Descriptors = tuple[tuple[str, dict[str, str]], ...]
"""Names, each with its digests by kind."""
_MOST = 16 << 20  # bytes of a statement


@dataclass(frozen=True)
class Attested:
    """What a statement says."""

    path: Path
    subjects: Descriptors
    configuration: Descriptors
    result: str

    def names_of(self, digests: Mapping[str, str]) -> list[str]:
        """Return the subjects that have one of these digests."""
        return [name for name, said in self.subjects if digests.items() & said.items()]

    def configured(self, digest: str) -> bool:
        """Whether the configuration has this SHA-256."""
        return any(said.get(FILE) == digest for _, said in self.configuration)


def read_attestation(path: Path) -> Attested:
    """Return what a file attests. Raises RunError where it is no statement that `check --attestation` writes."""
    try:
        content = json_of(path, _MOST)
    except (OSError, ValueError) as fault:
        raise _strange(path, f"cannot be read ({plain(reason(fault))[:80]})") from None
    content = content if isinstance(content, dict) else {}
    predicate = content.get("predicate")
    if content.get("_type") != STATEMENT or not isinstance(predicate, dict):
        raise _strange(path, f"has no _type {STATEMENT} with a predicate")
    if content.get("predicateType") not in PREDICATES.values():
        raise _strange(path, f"has the predicateType {plain(str(content.get('predicateType')))[:80]!r}")
    if (result := predicate.get("result")) not in (PASSED, WARNED, FAILED):
        raise _strange(path, f"has the result {plain(str(result))[:80]!r}")
    subjects, configuration = _descriptors(content.get("subject")), _descriptors(predicate.get("configuration"))
    if not (subjects and configuration):
        raise _strange(path, "has a subject or a configuration without digests")
    return Attested(path, subjects, configuration, result)


def _descriptors(part: Any) -> Descriptors:
    """Return names and digests; none where something has another form."""
    found = list[tuple[str, dict[str, str]]]()
    for entry in part if isinstance(part, list) else ():
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if not isinstance(digest, dict) or not digest:
            return ()
        known = {kind: str(digest[kind]).lower() for kind in (FILE, SHARDS) if kind in digest}
        found.append((plain(str(entry.get("name", "_"))), known))
    return tuple(found)


def _strange(path: Path, what: str) -> RunError:
    return RunError(
        f"{path}: {what}; expected an in-toto Statement as robustkit check --attestation writes it, unsigned"
    )
