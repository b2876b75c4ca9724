"""Carry out a request: compute what a run still lacks, in this process, with others of torchrun, or on a cluster."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from typing import Any

from ..common.files import in_turn, locked
from ..common.plugins import built_in, plugin_session
from ..display.text import no_controls
from ..errors import ProtocolError, RobustkitWarning, RunError, warn
from ..evaluations.aggregate import Results
from ..evaluations.presenting import finding_lines
from ..protocol.condition import CLEAN
from ..report.run import Run
from ..runs.folder import refuse_links
from ..runs.kept_images import remove_adversarials
from ..runs.progress import Progress
from .manifest import prepare_run
from .pending import (
    PendingWork,
    announce,
    await_same,
    checkpoint_groups,
    computable,
    count_shards,
    pending_units,
    pending_work,
)
from .plan import Compute, Plan, plan_of
from .processes import Ranks
from .progress import Reporter, Silent
from .request import Request
from .units import Worker

_LOG = logging.getLogger("robustkit")


def run(request: Request, progress: Progress | None = None, say: Callable[[str], None] | None = None) -> Run:
    """Carry out a request, and return the run.

    progress: listens to units and samples as they are done. say: takes a line for the user; without one, each flag of
    the results is a RobustkitWarning. The logger `robustkit` gets the same lines at INFO, and below it `robustkit.plan`
    what all will cost and `robustkit.progress` what is finished.

    Raises:
        RobustkitError: anything that is wrong with the request, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """

    def heard(line: str) -> None:
        _LOG.info(no_controls(line))
        if say is not None:
            say(line)

    with plugin_session(), request.noted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobustkitWarning)  # of assumptions; the set-up check says more about them
            planned = plan_of(request)
        planned.run.asked = tuple(dict.fromkeys(condition.text for condition in planned.conditions))
        carry_out(planned, progress or Silent(), heard)
        if say is None and request.share is None and (planned.run.path / "summary.json").is_file():
            for line in finding_lines(Results.of(planned.run, planned.run.summary())):
                warn(line)
    return planned.run


def carry_out(plan: Plan, progress: Progress, say: Callable[[str], None], instead: Compute | None = None) -> None:
    """Carry out a whole run: in this process, with others of torchrun, on a Ray cluster, or by `instead` in this
    process. The first process makes run.json, summary and report, and holds the folder's lock; a part of a run shares
    it and makes neither summary nor report. Raises RunError where another command is at work, ProtocolError for Ray in
    several.
    """
    ranks, run, part, instead = Ranks.of_environment(), plan.run, plan.request.share, instead or plan.write
    if ranks.size > 1 and plan.request.ray is not None:
        raise ProtocolError(f"--ray in {ranks.size} processes of torchrun: Ray starts its own; run it without torchrun")
    if plan.request.ray is not None:
        instead = instead or _on_cluster()
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, Any]:
            held.enter_context(locked(run.path, together=part is not None))
            refuse_links(run.path)
            digest = plan.digest()
            with in_turn(run.path):
                lines = prepare_run(plan, digest)
            for line in (*plan.lines, *lines):
                say(line)
            if part is None:  # others are writing
                run.sweep()
            return run.manifest.to_plain()

        await_same(run, ranks.share("run", begin))
        reporter = compute(plan, ranks, progress, say) if instead is None else instead(plan, progress, say)
        ranks.finish()
        reporter.finish()
        if ranks.leads:
            if ranks.size > 1:
                _check_complete(plan)
            if part is not None:
                return
            computed = reporter.estimate.elapsed
            if not run.manifest.keeps_adversarials:
                remove_adversarials(run)
            plan.finish()
            run.forget_refusal()
            reporter.done(computed)


def _on_cluster() -> Compute:
    """Return what computes a run on a Ray cluster. Raises ProtocolError where its slice was deleted."""
    entry = built_in("clusters").get("ray")
    if entry is None:
        raise ProtocolError("--ray: this installation is without the slice robustkit/slices/cluster; leave it out")
    on_cluster: Compute = entry.load()
    return on_cluster


def compute(plan: Plan, ranks: Ranks, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the missing records, evidence last. ModelError where a network fails, RunError where a process is lost."""
    every = [PendingWork(*work) for work in ranks.share("work", lambda: pending_work(plan, ranks.size))]
    reporter = announce(plan, ranks, progress, say, every)
    worker, met = Worker(plan, reporter, say), False
    for (planned, conditions), work in zip(checkpoint_groups(plan), every, strict=True):
        name, check = planned.name, [CLEAN.text] if work.checks_setup else []
        if not work.units and not work.doubted and not check:
            continue
        later = conditions[0].waits
        if later and not met:  # what they need comes from any of the processes
            ranks.meet("later")
            met = True
        for _ in ranks.draw(f"set-up of {name}", check):
            worker.check_setup(name)
        for text in ranks.draw(f"before attacks on {name}", work.doubted):
            worker.take_evidence(name, text, before=True)
        worker.compute(name, ranks.draw(f"units of {name}{', later' if later else ''}", work.units))
        for text in ranks.draw(f"evidence on {name}", work.doubted):
            worker.take_evidence(name, text)
    worker.rest()
    return reporter


def _check_complete(plan: Plan) -> None:
    run, shards = plan.run, count_shards(plan)
    lacking = 0
    for name in (planned.name for planned in plan.contenders):
        conditions = computable(plan, name, plan.conditions)
        for _, texts in pending_units(run, name, conditions, shards, part=plan.request.share):
            lacking += len(texts)
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; make sure that "
            "all of them share this folder, and run the same command again"
        )
