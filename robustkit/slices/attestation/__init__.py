"""Write verdicts as an in-toto Statement v1, and compare a checkpoint's files with what a statement is about.

A lock is written before a run: the digests of what decides its verdicts. A check of the run says whether all is as it
was locked, and the attestation carries the lock. When it was written is not proven: publish or sign it before you run.

Sources: in-toto Attestation Framework, `spec/v1/statement.md` and `spec/predicates/test-result.md`. The predicate of
figures is our own; docs/reference/robustness-v0.1.schema.json is its schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import click

from ...cli.check import STATEMENT, put
from ...cli.options import GATE, GROUPS
from ...cli.terminal import audit_request, console
from ...common.figure import Figure
from ...common.files import check_plain, json_of, reason_of
from ...display.console import print_as_it_is, print_line
from ...errors import CheckpointError, GateFailed, ProtocolError, RunError
from ...gate.output import none_unless_finite, plain_line, rule_names
from ...gate.policy import read_policy
from ...gate.verdicts import FAIL, PASS, UNDECIDED, Outcome, Verdict
from ...runs.folder import RunFolder
from ...runs.manifest import CheckpointEntry, Manifest, digest_of
from ...runs.metadata import groups_of_run, sample_ids

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
    """Return a statement about the checkpoints that rules are about, the same for the same records and policy. Raises
    ProtocolError where no rule is about a checkpoint, RunError where the weights of one came from no file."""
    judged = {verdict.checkpoint for verdict in outcome.verdicts}
    judged |= {each for name in judged for each in run.methods.get(name, ())}
    entries = [entry for entry in run.checkpoints if entry.name in judged]
    if not entries:
        raise ProtocolError(
            f"{outcome.policy.path}: no rule concerns a checkpoint, so nothing can be attested; expected one such as "
            "'top1 under clean >= 0.7'"
        )
    if predicate == "test-result":
        more: dict[str, Any] = _tests(outcome)
    else:
        names = {entry.name for entry in entries}
        figures = [_figure(row) for row in outcome.rows if row.checkpoint in names]
        version = metadata.version("robustkit-audit")
        more = {"robustkit": version, "seed": run.seed, "dtype": run.deciding.dtype, "figures": figures}
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
    for verdict, name in zip(outcome.verdicts, rule_names(outcome.verdicts), strict=True):
        tests[_state(verdict)].append(
            plain_line(f"{verdict.checkpoint}: {name}" if several and verdict.checkpoint else name)
        )
    return {f"{state.lower()}Tests": names for state, names in tests.items()}


def _figure(row: Figure) -> dict[str, Any]:
    low, high = none_unless_finite(row.low), none_unless_finite(row.high)
    has_interval = low is not None and high is not None
    return {
        "checkpoint": plain_line(row.checkpoint),
        "condition": plain_line(row.condition),
        "metric": plain_line(row.metric),
        "value": none_unless_finite(row.value),
        "n": int(row.n),
        "interval": {"low": low, "high": high, "level": _LEVEL} if has_interval else None,
        "flags": [plain_line(str(each)) for each in row.findings],
    }


def _subject(entry: CheckpointEntry) -> dict[str, Any]:
    """Return a checkpoint by its digest; formula and part of the file decide figures, too, and are said next to it."""
    kind = _kind(entry)
    if kind == TENSORS or not _HEX.fullmatch(entry.sha256 or ""):
        remedy = "save its weights to a file, audit that, and attest the new run"
        raise RunError(f"{entry.name} ({entry.spec}) came from no file whose SHA-256 could be attested; {remedy}")
    details = {key: plain_line(getattr(entry, key)) for key in ("arch", "attention", "weights")}
    return _descriptor(entry.name, entry.sha256, kind) | {"annotations": details}


def _kind(entry: CheckpointEntry) -> str:
    if entry.path is None:
        return TENSORS
    return SHARDS if PurePath(entry.path).suffix == ".json" else FILE


def _configuration(
    outcome: Outcome, run: Manifest, entries: list[CheckpointEntry], baseline: Manifest | None
) -> Iterator[dict[str, Any]]:
    yield _descriptor(f"policy {PurePath(outcome.policy.path).name}", outcome.policy.digest)
    yield _descriptor(f"card {run.protocol.tag}", run.protocol.digest)
    if outcome.lock:
        yield _descriptor(*outcome.lock)
    count = f"{'at most ' if run.is_sequential else ''}{run.data.n}"
    yield _descriptor(f"data {run.data.name}, {count} samples", run.data.digest)
    for entry in entries:
        if entry.code_sha256:
            yield _descriptor(f"code or config of {entry.name}", entry.code_sha256)
    for entry in baseline.checkpoints if baseline else ():
        yield _descriptor(f"baseline {entry.name}", entry.sha256, _kind(entry))


def _descriptor(name: str, digest: str | None, kind: str = FILE) -> dict[str, Any]:
    return {"name": plain_line(name), "digest": {kind: digest or ""}}


Descriptors = tuple[tuple[str, dict[str, str]], ...]  # Names, each with its digests by kind
_MOST = 16 << 20  # bytes of a statement


@dataclass(frozen=True)
class Attested:
    subjects: Descriptors
    configuration: Descriptors
    result: str

    def names_of(self, digests: Mapping[str, str]) -> list[str]:
        return [name for name, own in self.subjects if digests.items() & own.items()]


def read_attestation(path: Path) -> Attested:
    """Return what a file attests. Raises RunError where it is no statement that `check --attestation` writes."""
    try:
        content = json_of(path, _MOST)
    except (OSError, ValueError) as fault:
        raise _strange(path, f"cannot be read ({plain_line(reason_of(fault))[:80]})") from None
    content = content if isinstance(content, dict) else {}
    predicate = content.get("predicate")
    if content.get("_type") != STATEMENT or not isinstance(predicate, dict):
        raise _strange(path, f"has no _type {STATEMENT} with a predicate")
    if content.get("predicateType") not in PREDICATES.values():
        raise _strange(path, f"has the predicateType {plain_line(str(content.get('predicateType')))[:80]!r}")
    if (result := predicate.get("result")) not in (PASSED, WARNED, FAILED):
        raise _strange(path, f"has the result {plain_line(str(result))[:80]!r}")
    subjects, configuration = _descriptors(content.get("subject")), _descriptors(predicate.get("configuration"))
    if not (subjects and configuration):
        raise _strange(path, "has a subject or a configuration without digests")
    return Attested(subjects, configuration, result)


def _descriptors(part: Any) -> Descriptors:
    """Return names and digests; none where something has another form."""
    subjects = list[tuple[str, dict[str, str]]]()
    for entry in part if isinstance(part, list) else ():
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if not isinstance(digest, dict) or not digest:
            return ()
        digests = {kind: str(digest[kind]).lower() for kind in (FILE, SHARDS) if kind in digest}
        subjects.append((plain_line(str(entry.get("name", "_"))), digests))
    return tuple(subjects)


def _strange(path: Path, what: str) -> RunError:
    expected = "expected an in-toto Statement as robustkit check --attestation writes it, unsigned"
    return RunError(f"{path}: {what}; {expected}")


@dataclass(frozen=True)
class FileDigests:
    """SHA-256 (hex) as an audit states them. weights: of the file; where `sharded`, of the lines `SHA-256 NAME` of all.
    config: of the files that say how the network is built; None where the audit has none."""

    weights: str
    sharded: bool = False
    config: str | None = None


def file_digests(spec: str) -> FileDigests:
    """Return the digests of what is behind a spec. Raises CheckpointError or ModelError where it cannot be read."""
    from ...models.checkpoint import sha256
    from ...models.hugging_face import files_of, is_sharded
    from ...models.specs import digest_of_shards, find, is_index, shards_of
    from ...models.transformers_config import read_folder

    def digest(path: Path) -> str:
        try:
            check_plain(path)
            return sha256(path)
        except OSError as fault:
            raise CheckpointError(f"{path}: cannot be read ({reason_of(fault)}); check the path") from None

    if spec.startswith("timm:"):
        raise CheckpointError(f"{spec}: comes from no file, so there is no digest to compare; expected a file")
    file = find(spec)
    if is_index(file.path):
        parts = ((file.name, digest(file)) for file in shards_of(file.path))
        return FileDigests(digest_of_shards(parts), sharded=True)
    if not file.transformers:
        return FileDigests(digest(file.path))
    config, files = read_folder(file.path).digest, files_of(file.path)
    if not is_sharded(file.path):
        return FileDigests(digest(files[0]), config=config)
    return FileDigests(digest_of_shards((file.name, digest(file)) for file in files), sharded=True, config=config)


def verify(spec: str, file: Path | None, warned: bool, options: Mapping[str, Any]) -> None:
    """Print whose result a statement is; its signature is not looked at. options: the others of `check`, as click has
    them, which mean nothing here. Raises GateFailed where it is about other files, or its result is FAILED, or WARNED
    and that is not accepted (warned)."""
    if file is None:
        idle = "--allow-warned: changes what --verify-attestation accepts"
        raise ProtocolError(f"{idle}; give both, or leave it out")
    parameters = click.get_current_context().command.params
    if others := [parameter.opts[0] for parameter in parameters if options.get(parameter.name or "")]:
        raise ProtocolError(f"{', '.join(others)}: --verify-attestation checks no run; leave out one of them")
    attested, digests = read_attestation(file), file_digests(spec)
    kind = SHARDS if digests.sharded else FILE
    names = attested.names_of({kind: digests.weights})
    if not names:
        meant = (f"{digests.get(kind, 'another kind')[:12]}… ({name})" for name, digests in attested.subjects)
        raise GateFailed(
            f"{spec} is not what {file} attests: its digest is {digests.weights[:12]}…, expected {' or '.join(meant)}; "
            "fetch the file again, or audit and attest this one"
        )
    if digests.config is not None and all(digest.get(FILE) != digests.config for _, digest in attested.configuration):
        remedy = "fetch them again, or audit and attest these"
        raise GateFailed(f"{spec}: its weights are what {file} attests, its config.json or processor is not; {remedy}")
    attests = f"{spec} is {', '.join(names)} of {file}"
    if attested.result == FAILED:
        raise GateFailed(f"{attests}, whose result is {FAILED}; release another one")
    if attested.result == WARNED and not warned:
        raise GateFailed(
            f"{attests}, whose result is {WARNED}: some rule was inconclusive, or failed as a warning; accept that "
            "with --allow-warned, or release one that is PASSED"
        )
    print_line(console(), f"{attests}: {attested.result}")


LOCK = "robustkit lock 1"
_IDLE = ("until_decided", "at_most", "quiet", "skip_bad")
_LOCKED = ("policy", "card", "data", "samples", "seed", "groups")


def write_lock(checkpoints: Sequence[str], options: Mapping[str, Any]) -> None:
    """Write what is decided before checkpoints are audited: `check --lock FILE --policy FILE --data-dir DIR`. options:
    of `check`, as click has them."""
    from ...pipeline.plan import plan_of

    place, policy = Path(options["lock"]), read_policy(Path(options["policy"] or "policy.toml"))
    values = {name: value for name, value in options.items() if name in GROUPS or name not in (*GATE, *_IDLE)}
    plan = plan_of(audit_request({"checkpoints": tuple(checkpoints), **values}))
    samples, ids = plan.metadata, [sample.id for sample in plan.dataset.samples]
    names = None if samples is None else samples.group_names
    card = plan.request.card
    content = {
        "_type": LOCK,
        "policy": policy.digest,
        "card": card.digest,
        "data": plan.digest(),
        "samples": _digest(sorted(ids)),
        "seed": plan.request.seed,
        "groups": None if names is None else _of_groups(dict(zip(ids, names, strict=True))),
        "about": f"{policy.path}, {card.tag}, {plan.dataset.name}, {len(ids)} samples",
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    text = json.dumps(content | {"digest": digest_of(content)}, indent=1, ensure_ascii=False)
    put(place, (text + "\n").encode(), "--lock")
    print_as_it_is(console(), f"lock: {place}")


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _of_groups(names: Mapping[str, str]) -> str:
    """Return a digest of which samples belong together, whatever their groups are called."""
    numbers: dict[str, int] = {}
    return _digest([f"{name}\t{numbers.setdefault(names[name], len(numbers))}" for name in sorted(names)])


def compare_lock(file: Path, outcome: Outcome, run: RunFolder) -> Outcome:
    """Return the outcome with a note that the run is as it was locked, or what differs. Raises RunError for a file that
    is no lock, or was altered."""
    try:
        content = json_of(file, _MOST)
    except (OSError, ValueError) as fault:
        raise RunError(f"{file}: cannot be read ({plain_line(reason_of(fault))[:80]}); give a file of --lock") from None
    if not isinstance(content, dict) or content.get("_type") != LOCK:
        raise RunError(f"{file}: no lock; expected a file that check --lock wrote before the run")
    digest = content.pop("digest", None)
    if digest != digest_of(content):
        raise RunError(f"{file}: was altered after it was written; restore it, since it proves nothing now")
    manifest, groups = run.manifest, groups_of_run(run)
    ids = sample_ids(run)
    codes = groups.of(ids) if groups is not None else None
    of_run = {
        "policy": outcome.policy.digest,
        "card": manifest.protocol.digest,
        "data": manifest.data.digest,
        "samples": _digest(sorted(ids)),
        "seed": manifest.seed,
        "groups": None if codes is None else _of_groups(dict(zip(ids, map(str, codes.codes.tolist()), strict=True))),
    }
    differences = [(name, of_run[name], content.get(name)) for name in _LOCKED if of_run[name] != content.get(name)]
    changes = [f"{name} {_short(here)} instead of {_short(there)}" for name, here, there in differences]
    when = plain_line(str(content.get("written")))[:40]
    if changes:
        return replace(outcome, notes=(*outcome.notes, f"not as locked in {file} ({when}): {'; '.join(changes)}"))
    note = f"locked before the run, as {file} says ({when}): {', '.join(_LOCKED)}"
    return replace(outcome, notes=(*outcome.notes, note), lock=(f"lock {file.name}", digest))


def _short(value: Any) -> str:
    return "none" if value is None else plain_line(str(value))[:12]
