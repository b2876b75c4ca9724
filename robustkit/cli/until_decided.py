"""Run `robustkit check --until-decided`: audit checkpoints until the rules of a policy are decided."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from ..errors import ProtocolError
from ..gate.policy import read_policy
from ..runs.folder import RunFolder
from ..runs.repeating import without_option
from .check import DEFAULT, conclude
from .idle import refuse_idle
from .progress import ConsoleProgress
from .terminal import AS_IT_IS, audit_request, console, refuse_bad, usable

_WITH_VALUE = ("policy", "baseline", "junit", "json_file", "attestation", "predicate")
_DRAFT = ("verify_attestation", "init", "every")
GATE = (*_WITH_VALUE, *_DRAFT, "details")
"""The options of `check` that are about verdicts."""
_GENERAL = ("runs", "until_decided", "config", "trust_config", "debug", "plugin")


def refuse_audit(runs: int) -> None:
    """Raise ProtocolError where options, or several arguments, have a meaning with --until-decided only."""
    every = [str(parameter.name) for parameter in click.get_current_context().command.params]
    others = [name for name in every if name not in (*GATE, *_GENERAL)]
    refuse_idle(others, "only with --until-decided; give that, or leave it out: a run says how it was computed")
    if runs != 1:
        raise ProtocolError(f"{runs} runs; expected one, or checkpoints with --until-decided")


def check_until_decided(checkpoints: Sequence[str], options: dict[str, Any]) -> None:
    """Audit checkpoints until each rule is decided, print the verdicts, and write what was asked for.

    options: of `check`, as click has them.

    Raises:
        GateFailed: some rule fails or is undecided. ProtocolError: a rule cannot be decided while samples come, or
            options do not fit together. RobustkitError: as an audit.
    """
    from ..pipeline.until_decided import until_decided

    refuse_idle(_DRAFT, "not with --until-decided, which checks what it audits; leave out one of them")
    gate = {name: options.pop(name) for name in GATE}
    at_most, quiet, skip_bad = (options.pop(name) for name in ("at_most", "quiet", "skip_bad"))
    if (data_dir := options.pop("data_dir")) is None:
        raise ProtocolError("--until-decided without --data-dir; give a folder, a zip, or embedded:shapes")
    if gate["predicate"] and gate["attestation"] is None:
        raise ProtocolError("--predicate: says what --attestation FILE holds; give both, or leave it out")
    place = gate["policy"] or DEFAULT
    policy = read_policy(place)
    baseline = None if gate["baseline"] is None else RunFolder.existing(gate["baseline"])
    request = audit_request(tuple(checkpoints), data_dir, options | {"command": _command(sys.argv[1:])})
    side = console(stderr=True)

    def say(line: str) -> None:
        side.print(line, **AS_IT_IS)

    with ConsoleProgress(side, quiet) as progress:
        run, outcome = until_decided(request, policy, baseline, at_most, progress, say)
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
        if parameter.name in (*_WITH_VALUE, "at_most"):
            words = without_option(words, parameter.opts[0])
    rest = [word for word in words if word not in ("--until-decided", "--details")]
    if "check" in rest:
        rest.remove("check")
    return ["robustkit", "audit", *rest]
