"""Audits that end as soon as each rule of a policy is decided, shard by shard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from ...cli.check import Gate, conclude, withdraw
from ...cli.options import GATE, GATE_ALONE, GATE_VALUES, refuse_idle
from ...cli.terminal import audit_request, console, refuse_bad, usable
from ...common.environment import count_in
from ...common.plugins import plugin_session
from ...display.console import print_as_it_is
from ...display.progress import ConsoleProgress
from ...errors import ProtocolError
from ...gate.policy import Policy, read_policy
from ...gate.verdicts import UNDECIDED, Outcome
from ...pipeline.manifest import describe_plan
from ...pipeline.pending import PendingWork, announce, checkpoint_groups, pending_work
from ...pipeline.plan import Plan, plan_of
from ...pipeline.processes import Ranks
from ...pipeline.progress import Reporter
from ...pipeline.request import ClassificationRequest
from ...pipeline.scheduler import carry_out
from ...pipeline.units import Worker
from ...report.run import Run
from ...runs.description import without_option
from ...runs.folder import RunFolder
from ...runs.progress import Progress
from ...tasks.task import task_named
from .sequential import Trial, baseline_of, options_asked, trial_of

LOOK = 32  # samples in a unit of work, unless given or a batch is larger: how many are computed between two looks


def until_decided(
    request: ClassificationRequest,
    policy: Policy,
    baseline: RunFolder | None,
    at_most: int | None,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[Run, Outcome]:
    """Compute the records of a shuffled run that undecided rules need, by shards; return the run and the verdicts.
    request: without what the policy says. at_most: samples looked at. A stopped run goes on. Raises ProtocolError where
    a rule cannot be decided so, and RobustkitError as `run`, both before a file is written.
    """
    if count_in("WORLD_SIZE", 1) > 1:
        raise ProtocolError(
            "--until-decided in several processes: samples are evaluated one after another; run it without torchrun"
        )
    options = options_asked(policy)
    words = (*_command(sys.argv[1:]), *(word for option in options.items() for word in option), "--shuffle")
    asked: dict[str, Any] = {option.removeprefix("--"): value for option, value in options.items()}
    size = request.shard_size or max(LOOK, request.settings.batch_size)
    with plugin_session(), request.noted():
        request = replace(request, **asked, shuffle=True, shard_size=size)
        plan = plan_of(request)
        for name, texts in plan.unsuited.items():
            why = f"{texts[0]} is not evaluated on {name}, which has no gradients"
            raise ProtocolError(f"--until-decided: {why}; audit it in a run of its own")
        digest = plan.digest()
        plan = replace(plan, digest=lambda: digest, command=words, sequential=True)
        names = [planned.name for planned in plan.contenders]
        before = (
            None if baseline is None else baseline_of(baseline, describe_plan(plan, digest, plan.run.read_manifest()))
        )
        trial = trial_of(policy, names, plan.conditions, task_named(request.card.task), before)
        ids = [sample.id for sample in plan.dataset.samples][:at_most]
        carry_out(plan, progress, say, partial(_compute, trial, ids))
        return plan.run, trial.outcome(plan.run, baseline)


def _command(words: Sequence[str]) -> list[str]:
    """Return the words of the audit that completes the run, without what it evaluates."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in (*GATE_VALUES, "at_most"):
            words = without_option(words, parameter.opts[0])
    rest = [word for word in words if word not in ("--until-decided", "--details")]
    if "check" in rest:
        rest.remove("check")
    return ["robustkit", "audit", *rest]


def _compute(trial: Trial, ids: Sequence[str], plan: Plan, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the records that undecided rules need. ids: of the samples that may be looked at, in their order."""
    run, size, task = plan.run, plan.run.manifest.shard_size, task_named(plan.request.card.task)
    shards = [ids[start : start + size] for start in range(0, len(ids), size)]
    of_lots = [*zip(checkpoint_groups(plan), pending_work(plan, 1), strict=True)]
    every = [_wanted(trial, planned.name, len(shards), work) for (planned, _), work in of_lots]
    say(f"{len(trial.questions)} rules are checked after every {size} samples, up to {len(ids)}")
    reporter = announce(plan, Ranks.of_environment(), progress, say, every, len(ids))
    worker = Worker(plan, reporter, say)
    for ((planned, conditions), _), work in zip(of_lots, every, strict=True):
        name = planned.name
        if conditions[0].waits:  # no rule needs these
            continue
        if work.checks_setup:
            worker.check_setup(name)
        for text in work.doubted:
            worker.take_evidence(name, text, before=True)
        for shard, some in enumerate(shards):
            open_ = trial.open(name)
            if not open_:
                break
            needs = {text for question in open_ for text in question.needs}
            pieces = [
                (shard, [text for text in texts if text in needs]) for place, texts in work.units if place == shard
            ]
            worker.compute(name, [piece for piece in pieces if piece[1]])
            for question in open_:
                question.take(run, task, shard, some)
                if question.state != UNDECIDED:
                    status = f"{question.rule.name}: {question.state}"
                    say(f"{name}: {status} after {question.test.taken} of {len(ids)} samples")
        for text in work.doubted:
            worker.take_evidence(name, text)
    worker.rest()
    return reporter


def _wanted(trial: Trial, name: str, shards: int, work: PendingWork) -> PendingWork:
    needs = {text for question in trial.open(name) for text in question.needs}
    some = [(shard, [text for text in texts if text in needs]) for shard, texts in work.units if shard < shards]
    return work._replace(
        units=[piece for piece in some if piece[1]],
        doubted=[text for text in work.doubted if text in needs],
        checks_setup=work.checks_setup and bool(needs),
        unchecked=work.unchecked if needs else "",
    )


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
    request = audit_request({"checkpoints": tuple(checkpoints), "data_dir": data_dir, **options})
    side = console(stderr=True)
    with ConsoleProgress(side, quiet) as progress:
        run, outcome = until_decided(request, policy, baseline, at_most, progress, partial(print_as_it_is, side))
    print_as_it_is(console(), f"report: {run.path / 'report.html'}")
    refuse_bad(run, skip_bad)
    with usable(run.path):
        conclude(outcome, run, baseline, gate)
