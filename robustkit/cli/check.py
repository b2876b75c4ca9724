"""Run `robustkit check`: judge a run, print and write the verdicts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.files import write_whole
from ..common.plugins import of_slice
from ..display.console import print_as_it_is, print_line, print_tables
from ..errors import GateFailed, ProtocolError, RunError
from ..gate import output
from ..gate.checked import check
from ..gate.verdicts import FAIL, PASS, UNDECIDED, Outcome
from ..report.pages import show_gate
from ..runs.description import why_not_repeated
from ..runs.folder import OWN, RunFolder
from .terminal import console

DEFAULT = Path("policy.toml")
STATEMENT = "https://in-toto.io/Statement/v1"  # the `_type` of what --attestation writes
_HEAD = 4096  # bytes of a file that tell whether a check wrote it
_OWN = (b"<testsuites ", b'"policy": ', STATEMENT.encode())
_STYLES = {PASS: "green", FAIL: "bold red", UNDECIDED: "yellow"}


@dataclass(frozen=True)
class Gate:
    """The options about verdicts, as click has them. every: draft a rule on every figure. details: print what passes,
    too."""

    policy: Path | None
    baseline: Path | None
    junit: Path | None
    json_file: Path | None
    attestation: Path | None
    predicate: str | None
    init: bool
    every: bool
    details: bool
    groups: str | None = None
    groups_from: str | None = None
    lock: Path | None = None

    def compared(self, outcome: Outcome, run: RunFolder) -> Outcome:
        """Return the outcome with what `--lock` says about the run."""
        return outcome if self.lock is None else of_slice("compare_lock", "--lock")(self.lock, outcome, run)

    @property
    def place(self) -> Path:
        return self.policy or DEFAULT

    @property
    def files(self) -> dict[str, Path]:
        named = {"--junit": self.junit, "--json": self.json_file, "--attestation": self.attestation}
        return {option: path for option, path in named.items() if path is not None}

    def refuse_attestation(self) -> None:
        """Raise ProtocolError for an idle --predicate, PluginError where nothing attests."""
        if self.attestation is not None:
            of_slice("attest", "--attestation")
        elif self.predicate:
            raise ProtocolError("--predicate: chooses the content of --attestation FILE; give both, or leave it out")

    def refuse_same_file(self, *runs: Path) -> None:
        """Raise ProtocolError where a file would replace the policy, another one that is asked for, or a part of a
        run."""
        taken = {(run / name).resolve(): str(run) for run in runs for name in OWN}
        taken[self.place.resolve()] = "--policy"
        for option, path in self.files.items():
            if (other := taken.setdefault(path.resolve(), option)) != option:
                raise ProtocolError(f"{option} {path}: is also the file of {other}; give another one")


def check_run(run: Path, gate: Gate) -> None:
    """Check a run against a policy (or, with `init`, draft one), print what does not pass, and write the files; in
    a GitHub workflow (GITHUB_ACTIONS, GITHUB_STEP_SUMMARY) also annotations and a table. Raises GateFailed."""
    withdraw(gate.files.values())
    existing = RunFolder.existing(run)
    if gate.init:
        of_slice("draft", "--init")(existing, gate)
        return
    if gate.every:
        raise ProtocolError("--all: only for a draft; give --init, or leave it out")
    gate.refuse_attestation()
    if gate.policy is None and not DEFAULT.is_file():
        remedy = f"write one from this run with robustkit check {run} --init"
        raise ProtocolError(f"no --policy, and no {DEFAULT} here; {remedy}")
    gate.refuse_same_file(run, *filter(None, [gate.baseline]))
    checked = check(existing, gate.place, gate.baseline, gate.groups, gate.groups_from)
    conclude(gate.compared(checked.outcome, existing), existing, checked.baseline, gate)


def withdraw(files: Iterable[Path]) -> None:
    """Delete what an earlier check wrote, so that nobody reads it as the result of this one; nothing else."""
    for path in files:
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                head = file.read(_HEAD)
            if path.is_file() and any(mark in head for mark in _OWN):
                path.unlink()


def withdraw_named(words: Sequence[str]) -> None:
    """Do so for the files that the words of a check name, whether or not these are understood."""
    named = list[Path]()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in ("--junit", "--json", "--attestation"):
            named.append(Path(value if equals else following))
    withdraw(named)


def conclude(outcome: Outcome, run: RunFolder, baseline: RunFolder | None, gate: Gate) -> None:
    """Print the verdicts and write the requested files. Raises GateFailed where some rule fails or is undecided."""
    screen = console()
    for note in outcome.notes:
        print_line(screen, f"note: {note}")
    _show(outcome, screen, gate.details)
    if gate.junit is not None:
        put(gate.junit, output.junit(outcome, run.path.resolve().name), "--junit")
    if gate.json_file is not None:
        put(gate.json_file, output.to_json(outcome, str(run.path), str(baseline.path) if baseline else None), "--json")
    if gate.attestation is not None:
        attest, released = of_slice("attest", "--attestation"), baseline.manifest if baseline else None
        statement = attest(outcome, run.manifest, released, gate.predicate or "test-result")
        put(gate.attestation, statement, "--attestation")
    if not (gate.groups or gate.groups_from):  # else it is about other intervals than those of the page
        run.keep_gate(gate.place.name, "passed" if outcome.passed else f"not passed, {output.count_verdicts(outcome)}")
        show_gate(run)
    _tell_github(outcome, run, screen)
    if not outcome.passed:
        raise GateFailed(f"{run.path} does not meet {gate.place}: {output.count_verdicts(outcome)}")
    idle = all(rule.severity == "warning" for rule in outcome.policy.rules)
    more = "; every rule has severity warning, so none can fail" if idle else ""
    print_line(screen, f"{run.path} meets {gate.place}: {output.count_verdicts(outcome)}{more}")


def _show(outcome: Outcome, screen: Any, details: bool) -> None:
    """Print what does not pass, worst first, then what passes, and the commands that evaluate what is missing."""
    urgent, passed = output.by_urgency(outcome)
    if rows := (*urgent, *(passed if details else ())):
        print_tables(screen, [output.verdict_table(rows)], "the --json file", _STYLES)
    if passed and not details:
        print_line(screen, f"{PASS}: {len(passed)} of {len(outcome.verdicts)}; --details lists them")
    every = [*filter(None, (verdict.command or verdict.completes for verdict in urgent))]
    if commands := dict.fromkeys(command for command in every if not why_not_repeated(command)):
        print_line(screen, "to compute the missing results, run:")
        print_as_it_is(screen, *commands)


def put(path: Path, content: bytes, option: str) -> None:
    """Write a file that an option names, whole. Raises RunError where it cannot be written."""
    if path.is_dir():
        raise RunError(f"{option} {path}: is a folder; give the name of a file")
    write_whole(path, content, durable=False, remedy=f"choose another file with {option}")


def _tell_github(outcome: Outcome, run: RunFolder, screen: Any) -> None:
    if os.environ.get("GITHUB_ACTIONS") == "true":
        stream = getattr(screen.file, "obeyed", screen.file)
        for line in output.github_lines(outcome):
            stream.write(line + "\n")  # as it is: no wrapping, no colours
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(output.markdown(outcome, run.path.resolve().name))
        except OSError as fault:
            print_line(screen, f"note: the step summary {summary} cannot be written: {fault.strerror}")
