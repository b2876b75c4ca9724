"""Audits that end as soon as each rule of a policy is decided, shard by shard: `robustkit check --until-decided`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...cli.check import Gate, conclude, withdraw
from ...cli.options import GATE, GATE_ALONE, refuse_idle
from ...cli.terminal import audit_request, console, refuse_bad, usable
from ...display.console import print_as_it_is
from ...display.progress import ConsoleProgress
from ...errors import ProtocolError
from ...gate.policy import read_policy
from ...runs.folder import RunFolder


def check_until_decided(checkpoints: Sequence[str], options: dict[str, Any]) -> None:
    """Audit checkpoints until each rule is decided; then as `check_run`. options: of `check`, as click has them."""
    refuse_idle(GATE_ALONE, "not with --until-decided, which checks what it audits; leave out one of them")
    alone = ("verify_attestation", "allow_warned", "at_most", "quiet", "skip_bad")
    *_, at_most, quiet, skip_bad = (options.pop(name) for name in alone)
    gate = Gate(**{name: options.pop(name) for name in GATE if name in options})
    if (data_dir := options.pop("data_dir")) is None:
        raise ProtocolError("--until-decided without --data-dir; give a folder, a zip, or embedded:shapes")
    gate.refuse_attestation()
    gate.refuse_same_file(*map(Path, filter(None, (options["out"], gate.baseline))))
    withdraw(gate.files.values())
    policy = read_policy(gate.place)
    baseline = None if gate.baseline is None else RunFolder.existing(gate.baseline)
    asked = {"data_dir": data_dir, "groups": gate.groups, "groups_from": gate.groups_from}
    request = audit_request({"checkpoints": tuple(checkpoints), **asked, **options})
    from .sequential import until_decided

    side = console(stderr=True)
    with ConsoleProgress(side, quiet) as progress:
        run, outcome = until_decided(request, policy, baseline, at_most, progress, partial(print_as_it_is, side))
    print_as_it_is(console(), f"report: {run.path / 'report.html'}")
    refuse_bad(run, skip_bad)
    with usable(run.path):
        conclude(gate.compared(outcome, run), run, baseline, gate)
