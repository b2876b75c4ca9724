"""Run `robustkit check`: call the gate, and print and write its verdicts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.files import write_whole
from ..display.console import print_line, print_tables
from ..errors import GateFailed, ProtocolError, RunError
from ..gate.attestation import STATEMENT, as_statement
from ..gate.output import as_json, by_urgency, counts, github_lines, junit, markdown, table
from ..gate.policy import read_policy
from ..gate.verdicts import FAIL, PASS, UNDECIDED, Outcome, judge
from ..runs.description import repeat_of
from ..runs.files import OWN
from ..runs.folder import RunFolder

DEFAULT = Path("policy.toml")
_HEAD = 4096  # bytes of a file that tell whether a check wrote it
_OWN = (b"<testsuites ", b'"policy": ', STATEMENT.encode())
_STYLES = {PASS: "green", FAIL: "bold red", UNDECIDED: "yellow"}


def check_run(
    run: Path,
    *,
    policy: Path | None,
    baseline: Path | None,
    junit: Path | None,
    json_file: Path | None,
    attestation: Path | None,
    predicate: str | None,
    init: bool,
    every: bool,
    details: bool,
    console: Any,
) -> None:
    """Check a run against a policy, print what does not pass, and write what was asked for; or, with `init`, draft one.

    every: draft a rule on every figure. details: also print what passes. policy: `policy.toml` in the current folder if
    left out. In a GitHub workflow (GITHUB_ACTIONS, GITHUB_STEP_SUMMARY)
    annotations are also printed and a table is appended.

    Raises:
        GateFailed: some rule fails or is undecided.
        ProtocolError: the policy is malformed. RunError: a run is unusable, or a file cannot be written.
        NothingEvaluated: a run has no results.
    """
    withdraw([junit, json_file, attestation])
    existing, place = RunFolder.existing(run), policy or DEFAULT
    if init:
        others = (
            *(("--junit", junit), ("--json", json_file), ("--attestation", attestation)),
            *(("--baseline", baseline), ("--details", details)),
        )
        _draft(existing, place, [name for name, given in others if given], every, console)
        return
    if every:
        raise ProtocolError("--all: only for a draft; give --init, or leave it out")
    refuse_idle_predicate(predicate, attestation)
    if policy is None and not DEFAULT.is_file():
        raise ProtocolError(
            f"no --policy, and no {DEFAULT} here; write one from this run with robustkit check {run} --init"
        )
    refuse_same_file(place, junit, json_file, attestation, runs=[run] if baseline is None else [run, baseline])
    rules = read_policy(place)
    before = None if baseline is None else RunFolder.existing(baseline)
    outcome = judge(rules, existing, before)
    conclude(
        outcome,
        existing,
        place,
        before,
        junit=junit,
        json_file=json_file,
        attestation=attestation,
        predicate=predicate,
        details=details,
        console=console,
    )


def withdraw(files: Sequence[Path | None]) -> None:
    """Delete what an earlier check wrote, so that nobody reads it as the result of this one; nothing else."""
    for path in filter(None, files):
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                head = file.read(_HEAD)
            if path.is_file() and any(mark in head for mark in _OWN):
                path.unlink()


def withdraw_named(words: Sequence[str]) -> None:
    """Do so for the files that the words of a check name, whether or not these are understood."""
    named = list[Path | None]()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, given, value = word.partition("=")
        if option in ("--junit", "--json", "--attestation"):
            named.append(Path(value if given else following))
    withdraw(named)


def refuse_idle_predicate(predicate: str | None, attestation: Path | None) -> None:
    """Raise ProtocolError where a predicate is chosen for no file."""
    if predicate and attestation is None:
        raise ProtocolError("--predicate: says what --attestation FILE holds; give both, or leave it out")


def refuse_same_file(
    policy: Path, junit: Path | None, json_file: Path | None, attestation: Path | None, runs: Sequence[Path] = ()
) -> None:
    """Raise ProtocolError where a file would be written over the policy, over another one that is asked for, or over
    what runs consist of.
    """
    taken = {(run / name).resolve(): str(run) for run in runs for name in OWN}
    taken[policy.resolve()] = "--policy"
    for option, path in (("--junit", junit), ("--json", json_file), ("--attestation", attestation)):
        other = option if path is None else taken.setdefault(path.resolve(), option)
        if other != option:
            raise ProtocolError(f"{option} {path}: is the file of {other}; give another one")


def conclude(
    outcome: Outcome,
    run: RunFolder,
    place: Path,
    baseline: RunFolder | None,
    *,
    junit: Path | None,
    json_file: Path | None,
    attestation: Path | None,
    predicate: str | None,
    details: bool,
    console: Any,
) -> None:
    """Print the verdicts on a run, and write what was asked for. place: of the policy.

    Raises:
        GateFailed: some rule fails or is undecided. RunError: a file cannot be written.
    """
    show(outcome, console, details)
    _write(outcome, run, baseline, junit, json_file)
    if attestation is not None:
        released = None if baseline is None else baseline.manifest
        _put(attestation, as_statement(outcome, run.manifest, released, predicate or "test-result"), "--attestation")
    _tell_github(outcome, run, console)
    if not outcome.passed:
        raise GateFailed(f"{run.path} does not meet {place}: {counts(outcome)}")
    idle = all(rule.severity == "warning" for rule in outcome.policy.rules)
    more = "; every rule is of severity warning, so that none could fail it" if idle else ""
    print_line(console, f"{run.path} meets {place}: {counts(outcome)}{more}")


def show(outcome: Outcome, console: Any, details: bool = False) -> None:
    """Print what does not pass, worst first, each with what to do; then, with `details`, what passes, else how many;
    and the commands that evaluate what is missing.
    """
    urgent, passed = by_urgency(outcome)
    if shown := (*urgent, *(passed if details else ())):
        print_tables(console, [table(shown)], "the file of --json", _STYLES)
    if passed and not details:
        print_line(console, f"{PASS}: {len(passed)} of {len(outcome.verdicts)}; --details lists them")
    wanted = [*filter(None, (verdict.command or verdict.completes for verdict in urgent))]
    if commands := dict.fromkeys(command for command in wanted if not repeat_of(command).why_not):
        print_line(console, "what is missing is evaluated by:")
        for command in commands:
            _say(command, console)


def _say(line: str, console: Any) -> None:
    console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _draft(run: RunFolder, place: Path, unused: list[str], every: bool, console: Any) -> None:
    from ..gate.draft import draft

    if unused:
        raise ProtocolError(f"{', '.join(unused)}: --init writes a policy and checks nothing; leave out one of them")
    if place.exists():
        raise ProtocolError(f"{place} exists and is not overwritten; choose another file with --policy, or delete it")
    text = draft(run, every)
    _put(place, text.encode("utf-8"), "--policy")
    rules = text.count("\n[[rule]]")
    _say(f"{place}: {rules} rules; read them, then: robustkit check {run.path} --policy {place}", console)


def _write(
    outcome: Outcome, run: RunFolder, baseline: RunFolder | None, xml: Path | None, json_file: Path | None
) -> None:
    if xml is not None:
        _put(xml, junit(outcome, run.path.resolve().name), "--junit")
    if json_file is not None:
        _put(json_file, as_json(outcome, str(run.path), None if baseline is None else str(baseline.path)), "--json")


def _put(path: Path, content: bytes, option: str) -> None:
    if path.is_dir():
        raise RunError(f"{option} {path}: is a folder; give the name of a file")
    try:
        write_whole(path, content, durable=False)
    except RunError as fault:
        raise RunError(str(fault).replace("choose a folder with --out", f"choose another file with {option}")) from None


def _tell_github(outcome: Outcome, run: RunFolder, console: Any) -> None:
    if os.environ.get("GITHUB_ACTIONS") == "true":
        stream = getattr(console.file, "obeyed", console.file)
        for line in github_lines(outcome):
            stream.write(line + "\n")  # as it is: no wrapping, no colours
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown(outcome, run.path.resolve().name))
        except OSError as fault:
            print_line(console, f"note: the step summary {summary} cannot be written: {fault.strerror}")
