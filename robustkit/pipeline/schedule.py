"""Compute what a run still lacks, in this process or together with others, which draw piece by piece."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.lock import in_turn, locked
from ..errors import ProtocolError, RunError
from ..protocol.condition import CLEAN
from ..runs.adversarials import remove_adversarials
from ..runs.links import refuse_links
from ..runs.progress import Progress
from . import cluster
from .manifest import prepare
from .opening import announced, await_same
from .outstanding import Lacking, lots, outstanding, pieces, ready, shards_of
from .plan import Plan
from .processes import Ranks
from .reporting import Reporter
from .worker import Worker

if TYPE_CHECKING:
    pass


Compute = Callable[[Plan, Progress, Callable[[str], None]], Reporter]
"""Write the records of a plan, and return what reports them."""


def carry_out(plan: Plan, progress: Progress, say: Callable[[str], None], instead: Compute | None = None) -> None:
    """Carry out a whole run, in this process, together with others that torchrun started, or on a Ray cluster.

    instead: computes the records in place of all these, in this process.

    run.json, summary and report are made by the first process only, which holds the folder's lock meanwhile. A part of
    a run holds it together with others, and makes neither summary nor report.

    Raises:
        RunError: another command is at work in the folder.
        ProtocolError: a Ray cluster is asked for by several processes.
    """
    ranks, run, part = Ranks.of_environment(), plan.run, plan.request.share
    if ranks.size > 1 and plan.request.ray is not None:
        raise ProtocolError(f"--ray in {ranks.size} processes of torchrun: Ray starts its own; leave torchrun out")
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, Any]:
            held.enter_context(locked(run.path, together=part is not None))
            refuse_links(run.path)
            digest = plan.digest()
            with in_turn(run.path):
                lines = prepare(plan, digest)
            for line in (*plan.lines, *lines):
                say(line)
            if part is None:  # others are writing
                run.sweep()
            return run.manifest.to_plain()

        await_same(run, ranks.share("run", begin))
        if instead is not None:
            reporter = instead(plan, progress, say)
        elif plan.request.ray is None:
            reporter = compute(plan, ranks, progress, say)
        else:
            reporter = cluster.compute(plan, progress, say)
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


def compute(plan: Plan, ranks: Ranks, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the records that are missing and, before them, the evidence on attacks; return what reports them.

    Raises:
        ModelError: a network fails on some batch; what was done before it is kept.
        RunError: a record cannot be written, or another process no longer gives a sign of life.
    """
    every: list[Lacking] = ranks.share("work", lambda: outstanding(plan, ranks.size))
    reporter = announced(plan, ranks, progress, say, every)
    worker, met = Worker(plan, reporter, say), False
    for (contender, own), (lacking, doubted, _, _, unchecked) in zip(lots(plan), every, strict=True):
        name, check = contender.name, [CLEAN.text] if unchecked is None else []
        if not lacking and not doubted and not check:
            continue
        later = own[0].waits
        if later and not met:  # what they need comes from any of the processes
            ranks.meet("later")
            met = True
        for _ in ranks.draw(f"set-up of {name}", check):
            worker.check_setup(name)
        # First, so that a doubt is known before hours are spent.
        for text in ranks.draw(f"evidence on {name}", doubted):
            worker.take_evidence(name, text)
        worker.compute(name, ranks.draw(f"units of {name}{', later' if later else ''}", lacking))
        for text in ranks.draw(f"evidence on {name}, again", doubted):
            worker.confirm_evidence(name, text)
    worker.rest()
    return reporter


def _check_complete(plan: Plan) -> None:
    """Raise RunError where records are missing although every process has said that it is done."""
    run, shards = plan.run, shards_of(plan)
    lacking = sum(
        len(piece.conditions)
        for contender in plan.contenders
        for piece in pieces(
            run, contender.name, ready(plan, contender.name, plan.conditions), shards, part=plan.request.share
        )
    )
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; make sure that "
            "all of them see this folder, and run the same command again"
        )
