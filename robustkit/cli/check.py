"""Run `robustkit check`: call the gate, and print and write its verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..common.files import write_whole
from ..errors import GateFailed, ProtocolError, RunError
from ..gate.output import as_json, counts, github_lines, junit, markdown, plain, sentence
from ..gate.policy import read_policy
from ..gate.verdicts import FAIL, PASS, Outcome, judge
from ..runs.folder import RunFolder

DEFAULT = Path("policy.toml")
_STYLES = {PASS: "green", FAIL: "bold red"}


def check_run(
    run: Path,
    *,
    policy: Path | None,
    baseline: Path | None,
    junit: Path | None,
    json_file: Path | None,
    init: bool,
    console: Any,
) -> None:
    """Check a run against a policy, print a line per verdict, and write what was asked for; or, with `init`, draft one.

    policy: `policy.toml` in the current folder if left out. In a GitHub workflow (GITHUB_ACTIONS, GITHUB_STEP_SUMMARY)
    annotations are also printed and a table is appended.

    Raises:
        GateFailed: some rule fails or is undecided.
        ProtocolError: the policy is malformed. RunError: a run is unusable, or a file cannot be written.
        NothingEvaluated: a run has no results.
    """
    existing, place = RunFolder.existing(run), policy or DEFAULT
    if init:
        others = (("--junit", junit), ("--json", json_file), ("--baseline", baseline))
        _draft(existing, place, [name for name, given in others if given], console)
        return
    if policy is None and not DEFAULT.is_file():
        raise ProtocolError(
            f"no --policy, and no {DEFAULT} here; write one from this run with robustkit check {run} --init"
        )
    rules = read_policy(place)
    outcome = judge(rules, existing, None if baseline is None else RunFolder.existing(baseline))
    show(outcome, console)
    _write(outcome, existing, baseline, junit, json_file)
    _tell_github(outcome, existing, console)
    if not outcome.passed:
        raise GateFailed(f"{run} does not meet {place}: {counts(outcome)}")
    console.print(f"{run} meets {place}: {counts(outcome)}", markup=False, highlight=False, emoji=False, soft_wrap=True)


def show(outcome: Outcome, console: Any) -> None:
    """Print a line for each verdict, in the order of the rules."""
    from rich.text import Text

    widest = max((len(plain(verdict.checkpoint)) for verdict in outcome.verdicts), default=0)
    for verdict in outcome.verdicts:
        warns = " (warning)" if verdict.rule.severity == "warning" and verdict.state != PASS else ""
        line = Text(f"{verdict.state:<11}", style=_STYLES.get(verdict.state, "yellow"))
        name = plain(verdict.checkpoint)
        line.append(f"  {name:<{min(widest, 40)}}  {sentence(verdict)}{warns}", style="default not bold")
        console.print(line, soft_wrap=True, highlight=False)


def _draft(run: RunFolder, place: Path, unused: list[str], console: Any) -> None:
    from ..gate.draft import draft

    if unused:
        raise ProtocolError(f"{', '.join(unused)}: --init writes a policy and checks nothing; leave out one of them")
    if place.exists():
        raise ProtocolError(f"{place} exists and is not overwritten; choose another file with --policy, or delete it")
    text = draft(run)
    _put(place, text.encode("utf-8"), "--policy")
    rules = text.count("\n[[rule]]")
    console.print(f"{place}: {rules} rules", markup=False, highlight=False, emoji=False, soft_wrap=True)


def _write(outcome: Outcome, run: RunFolder, baseline: Path | None, xml: Path | None, json_file: Path | None) -> None:
    if xml is not None:
        _put(xml, junit(outcome, run.path.resolve().name), "--junit")
    if json_file is not None:
        _put(json_file, as_json(outcome, str(run.path), None if baseline is None else str(baseline)), "--json")


def _put(path: Path, content: bytes, option: str) -> None:
    if path.is_dir():
        raise RunError(f"{option} {path}: is a folder; give the name of a file")
    try:
        write_whole(path, content, durable=False)
    except RunError as fault:
        raise RunError(str(fault).replace("choose a folder with --out", f"choose another file with {option}")) from None


def _tell_github(outcome: Outcome, run: RunFolder, console: Any) -> None:
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in github_lines(outcome):
            console.file.write(line + "\n")  # as it is: no wrapping, no colours
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown(outcome, run.path.resolve().name))
        except OSError as fault:
            said = f"note: the step summary {summary} cannot be written: {fault.strerror}"
            console.print(said, markup=False, highlight=False, emoji=False, soft_wrap=True)
