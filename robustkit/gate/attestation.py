"""Write verdicts as an in-toto Statement v1, and read one of somebody else.

Sources: in-toto Attestation Framework, `spec/v1/statement.md` and `spec/predicates/test-result.md`. The predicate of
figures is our own; docs/reference/robustness-v0.1.schema.json is its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

from ..common.files import json_of, reason
from ..errors import ProtocolError, RunError
from ..evaluations.metrics import SummaryRow
from ..runs.manifest import CheckpointEntry, Manifest
from .output import finite, names_of, plain
from .verdicts import FAIL, PASS, UNDECIDED, Outcome, Verdict

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATES = {
    "test-result": "https://in-toto.io/attestation/test-result/v0.1",
    "robustness": "pkg:pypi/robustkit-audit?predicate=robustness-v0.1",
}
"""The type of each predicate, by what `--predicate` calls it."""
PASSED, WARNED, FAILED = "PASSED", "WARNED", "FAILED"
FILE, SHARDS, TENSORS = "sha256", "robustkitShards", "robustkitTensors"
"""What the digest of weights is of: one file; the lines `SHA-256 NAME` of the files that an index names; tensors that
came without a file.
"""
_LEVEL = 0.95
_HEX = re.compile(r"[0-9a-f]{64}")


def as_statement(outcome: Outcome, run: Manifest, baseline: Manifest | None, predicate: str) -> bytes:
    """Return a statement about the checkpoints that rules are about. The same records and policy give the same bytes.

    predicate: a key of `PREDICATES`.

    Raises:
        ProtocolError: no rule is about a checkpoint. RunError: the weights of one came from no file.
    """
    judged = {verdict.checkpoint for verdict in outcome.verdicts}
    entries = [entry for entry in run.checkpoints if entry.name in judged]
    if not entries:
        raise ProtocolError(
            f"{outcome.policy.path}: no rule is about a checkpoint, so nothing can be attested; expected one such as "
            "'top1 under clean >= 0.7'"
        )
    more = _tests(outcome) if predicate == "test-result" else _figures(outcome, run, {entry.name for entry in entries})
    configuration = [*_configuration(outcome, run, entries, baseline)]
    result = max(map(_state, outcome.verdicts), key=(PASSED, WARNED, FAILED).index)  # the worst of the rules
    contents = {
        "_type": STATEMENT,
        "subject": [_subject(entry) for entry in entries],
        "predicateType": PREDICATES[predicate],
        "predicate": {"result": result, "configuration": configuration, **more},
    }
    return (json.dumps(contents, indent=1, ensure_ascii=False) + "\n").encode()


def _state(verdict: Verdict) -> str:
    """Return how a rule ended: one that is undecided, or fails as a warning, neither passes nor fails."""
    if verdict.state == FAIL:
        return WARNED if verdict.rule.severity == "warning" else FAILED
    return {PASS: PASSED, UNDECIDED: WARNED}[verdict.state]


def _tests(outcome: Outcome) -> dict[str, list[str]]:
    """Return the names of the rules by how they ended; in front of each its checkpoint, where there are several."""
    several = len({verdict.checkpoint for verdict in outcome.verdicts if verdict.checkpoint}) > 1
    tests: dict[str, list[str]] = {PASSED: [], WARNED: [], FAILED: []}
    for verdict, name in zip(outcome.verdicts, names_of(outcome.verdicts), strict=True):
        tests[_state(verdict)].append(
            plain(f"{verdict.checkpoint}: {name}" if several and verdict.checkpoint else name)
        )
    return {f"{state.lower()}Tests": names for state, names in tests.items()}


def _figures(outcome: Outcome, run: Manifest, names: set[str]) -> dict[str, Any]:
    """Return all results of these checkpoints, with what decides them besides the configuration."""
    return {
        "robustkit": metadata.version("robustkit-audit"),
        "seed": run.seed,
        "dtype": run.deciding.dtype,
        "figures": [_figure(row) for row in outcome.rows if row["checkpoint"] in names],
    }


def _figure(row: SummaryRow) -> dict[str, Any]:
    low, high = finite(row["ci_low"]), finite(row["ci_high"])
    known = low is not None and high is not None
    return {
        "checkpoint": plain(row["checkpoint"]),
        "condition": plain(row["condition"]),
        "metric": plain(row["metric"]),
        "value": finite(row["value"]),
        "n": int(row["n"]),
        "interval": {"low": low, "high": high, "level": _LEVEL} if known else None,
        "flags": [plain(flag) for flag in row["flags"]],
    }


def _subject(entry: CheckpointEntry) -> dict[str, Any]:
    """Return a checkpoint by its digest. What it is besides its file is said next to it: formula and part of the file
    decide figures, too.
    """
    kind = _kind(entry)
    if kind == TENSORS or not _HEX.fullmatch(entry.sha256 or ""):
        raise RunError(
            f"{entry.name} ({entry.spec}) came from no file whose SHA-256 could be attested; save its weights to a "
            "file, audit that, and attest the new run"
        )
    said = {key: plain(getattr(entry, key)) for key in ("arch", "attention", "weights")}
    return _descriptor(entry.name, entry.sha256, kind) | {"annotations": said}


def _kind(entry: CheckpointEntry) -> str:
    if entry.path is None:
        return TENSORS
    return SHARDS if PurePath(entry.path).suffix == ".json" else FILE


def _configuration(
    outcome: Outcome, run: Manifest, entries: list[CheckpointEntry], baseline: Manifest | None
) -> Iterator[dict[str, Any]]:
    yield _descriptor(f"policy {PurePath(outcome.policy.path).name}", outcome.policy.digest)
    yield _descriptor(f"card {run.protocol.tag}", run.protocol.digest)
    count = f"{'at most ' if run.is_sequential else ''}{run.data.n}"
    yield _descriptor(f"data {run.data.name}, {count} samples", run.data.digest)
    for entry in entries:
        if entry.code_sha256:
            yield _descriptor(f"code or config of {entry.name}", entry.code_sha256)
    for entry in baseline.checkpoints if baseline else ():
        yield _descriptor(f"baseline {entry.name}", entry.sha256, _kind(entry))


def _descriptor(name: str, digest: str | None, kind: str = FILE) -> dict[str, Any]:
    return {"name": plain(name), "digest": {kind: digest or ""}}


Descriptors = tuple[tuple[str, dict[str, str]], ...]
"""Names, each with its digests by kind."""
_MOST = 16 << 20  # bytes of a statement


@dataclass(frozen=True)
class Attested:
    """What a statement says."""

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
    return Attested(subjects, configuration, result)


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
    expected = "expected an in-toto Statement as robustkit check --attestation writes it, unsigned"
    return RunError(f"{path}: {what}; {expected}")
