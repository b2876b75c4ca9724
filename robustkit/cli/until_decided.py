"""Run `robustkit check --until-decided`: audit checkpoints until the rules of a policy are decided."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..errors import ProtocolError
from ..gate.policy import read_policy
from ..pipeline.until_decided import until_decided
from ..runs.description import without_option
from ..runs.folder import RunFolder
from .arguments import GATE, GATE_ALONE, GATE_VALUES, refuse_idle
from .check import DEFAULT, conclude, refuse_idle_predicate, refuse_same_file, withdraw
from .progress import ConsoleProgress
from .terminal import AS_IT_IS, audit_request, console, refuse_bad, usable


def check_until_decided(checkpoints: Sequence[str], options: dict[str, Any]) -> None:
    """Audit checkpoints until each rule is decided, print the verdicts, and write what was asked for.

    options: of `check`, as click has them.

    Raises:
        GateFailed: some rule fails or is undecided. ProtocolError: a rule cannot be decided while samples come, or
            options do not fit together. RobustkitError: as an audit.
    """
    refuse_idle(GATE_ALONE, "not with --until-decided, which checks what it audits; leave out one of them")
    gate = {name: options.pop(name) for name in GATE}
    at_most, quiet, skip_bad = (options.pop(name) for name in ("at_most", "quiet", "skip_bad"))
    if (data_dir := options.pop("data_dir")) is None:
        raise ProtocolError("--until-decided without --data-dir; give a folder, a zip, or embedded:shapes")
    refuse_idle_predicate(gate["predicate"], gate["attestation"])
    place = gate["policy"] or DEFAULT
    runs = [Path(path) for path in (options["out"], gate["baseline"]) if path]
    refuse_same_file(place, gate["junit"], gate["json_file"], gate["attestation"], runs)
    withdraw([gate["junit"], gate["json_file"], gate["attestation"]])
    policy = read_policy(place)
    baseline = None if gate["baseline"] is None else RunFolder.existing(gate["baseline"])
    request = audit_request({"checkpoints": tuple(checkpoints), "data_dir": data_dir, **options})
    side, command = console(stderr=True), _command(sys.argv[1:])

    def say(line: str) -> None:
        side.print(line, **AS_IT_IS)

    with ConsoleProgress(side, quiet) as progress:
        run, outcome = until_decided(request, policy, baseline, at_most, command, progress, say)
    screen = console()
    screen.print(f"report: {run.path / 'report.html'}", **AS_IT_IS)
    refuse_bad(run, skip_bad)
    with usable(run.path):
        kept = ("junit", "json_file", "attestation", "predicate", "details")
        conclude(outcome, run, place, baseline, **{name: gate[name] for name in kept}, console=screen)


def _command(words: Sequence[str]) -> list[str]:
    """Return the words of the audit that completes the run, without what it evaluates."""
    parameters = click.get_current_context().command.params
    for parameter in parameters:
        if parameter.name in (*GATE_VALUES, "at_most"):
            words = without_option(words, parameter.opts[0])
    rest = [word for word in words if word not in ("--until-decided", "--details")]
    if "check" in rest:
        rest.remove("check")
    return ["robustkit", "audit", *rest]
