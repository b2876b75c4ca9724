"""Compute what a run still lacks, in this process or together with others, which draw piece by piece."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..common.lock import in_turn, locked
from ..display.neutral import no_controls
from ..errors import RunError
from ..evaluations.attacks.evidence import gather_evidence
from ..evaluations.attacks.gradient_masking import findings
from ..evaluations.family import family_of
from ..evaluations.setup import CHECK, check_setup
from ..evaluations.setup_flags import setup_flags, setup_notes
from ..evaluations.subject import Subject
from ..models.device import device_name
from ..protocol.condition import CLEAN, Condition
from ..runs.adversarials import remove_adversarials
from ..runs.binding import provenance_of
from ..runs.folder import RunFolder
from ..runs.links import refuse_links
from ..runs.manifest import CheckpointEntry, Manifest
from ..runs.pictures import PicturePlan
from ..runs.progress import Progress
from .announcement import jobs_of, work_lines
from .estimate import Estimate
from .manifest import prepare, versions
from .outstanding import Lacking, Piece, lots, outstanding, pieces, shards_of, units_of
from .plan import Contender, Plan
from .processes import Ranks
from .reporting import PLAN, Reporter
from .runner import run_units
from .shards import decoded

if TYPE_CHECKING:
    import torch

_SEEN = 60.0  # seconds


def carry_out(plan: Plan, progress: Progress, say: Callable[[str], None]) -> None:
    """Carry out a whole run, in this process or together with others that torchrun started.

    run.json, summary and report are made by the first process only, which holds the folder's lock meanwhile. A part of
    a run holds it together with others, and makes neither summary nor report.

    Raises:
        RunError: another command is at work in the folder.
    """
    ranks, run, part = Ranks.of_environment(), plan.run, plan.request.share
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

        _await_same(run, ranks.share("run", begin))
        reporter = compute(plan, ranks, progress, say)
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
            reporter.done(computed)


def compute(plan: Plan, ranks: Ranks, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the records that are missing and, before them, the evidence on attacks; return what reports them.

    Raises:
        ModelError: a network fails on some batch; what was done before it is kept.
        RunError: a record cannot be written, or another process no longer gives a sign of life.
    """
    run, manifest = plan.run, plan.run.manifest
    settings = replace(plan.request.settings, batch_size=manifest.batch_size)
    here = {"batch_size": settings.batch_size, "device": device_name(settings.device), "versions": versions()}
    by_text = {condition.text: condition for condition in plan.conditions}
    wanted = PicturePlan.of(manifest.pictures, plan.conditions)
    every: list[Lacking] = ranks.share("work", lambda: outstanding(plan, ranks.size))
    for line in [line for _, _, _, lines, _ in every for line in lines] if ranks.leads else ():
        say(line)
    texts = {text for lacking, *_ in every for _, some in lacking for text in some} if ranks.leads else set()
    conditions = (condition.under or condition for condition in plan.conditions if condition.text in texts)
    for line in dict.fromkeys(family_of(each.name).elsewhere(each, settings.device) for each in conditions):
        if line:
            say(line)
    reporter = _reporter(plan, ranks, progress, every, settings.device)
    met = False
    for (contender, own), (lacking, doubted, _, _, unchecked) in zip(lots(plan), every, strict=True):
        check = [CLEAN.text] if unchecked is None else []
        if not lacking and not doubted:
            continue
        passed = bool(own[0].source)
        if passed and not met:  # what is passed on comes from any of the processes
            ranks.meet("passed on")
            met = True
        subject = contender.subject(settings)
        for _ in ranks.draw(f"set-up of {contender.name}", check):
            _check_setup(run, contender, subject, reporter, say)
        # First, so that a doubt is known before hours are spent.
        for text in ranks.draw(f"evidence on {contender.name}", doubted):
            _take_evidence(run, contender, subject, by_text[text], reporter, say)
        drawn = ranks.draw(f"units of {contender.name}{', passed on' if passed else ''}", lacking)
        work = (Piece(shard, tuple(by_text[text] for text in texts)) for shard, texts in drawn)
        provenance = partial(_provenance, manifest, contender.entry, here)
        run_units(
            run, subject, contender.supply, work, manifest.shard_size, provenance, reporter, wanted, say, plan.handed
        )
        subject.classifier.to("cpu")
    done = sum(there for _, _, there, *_ in every)
    if done and ranks.leads:
        say(f"{done} units of work were there already and were not computed again")
    return reporter


def _reporter(plan: Plan, ranks: Ranks, progress: Progress, every: Sequence[Lacking], device: torch.device) -> Reporter:
    """Say what is to be done, and return what tells how far it is. every: what each of `lots` lacks."""
    size, samples = plan.run.manifest.shard_size, len(plan.dataset.samples)
    card, classes = plan.request.card, len(plan.dataset.valid_labels or plan.dataset.class_names)
    jobs = []
    for (contender, _), (lacking, doubted, *_, unchecked) in zip(lots(plan), every, strict=True):
        counts = dict.fromkeys((condition.text for condition in plan.conditions), 0)
        for shard, texts in lacking:
            for text in texts:
                counts[text] += min(size, samples - shard * size)
        wanted = [(condition, counts[condition.text]) for condition in plan.conditions]
        jobs += jobs_of(contender.name, wanted, doubted, card, classes, samples, unchecked is None)
    own = {contender.name: units_of(plan, contender.name, plan.conditions) for contender in plan.contenders}
    if ranks.leads:
        units = sum(len(shards) for of_one in own.values() for shards in of_one.values())
        there = sum(done for _, _, done, *_ in every)
        evidence = sum(len(texts) for _, texts, *_ in every)
        whys = [why for *_, why in every]
        lines = work_lines(
            plan.conditions,
            len(own),
            samples,
            units,
            there,
            evidence,
            card,
            classes,
            whys.count(None),
            filter(None, whys),
        )
        for line in lines:
            PLAN.info(no_controls(line))
    estimate = Estimate(jobs, ranks.size)
    return Reporter(plan.run, plan.conditions, samples, own, estimate, ranks, progress, device.type)


def _check_setup(
    run: RunFolder, contender: Contender, subject: Subject, progress: Progress, say: Callable[[str], None]
) -> None:
    """Look whether another normalisation or channel order fits better, and report it."""
    assert contender.preprocessing is not None
    settings, supply = subject.settings, contender.supply
    read = partial(decoded, supply.reader(CLEAN), workers=settings.workers, device=settings.device)
    if why := check_setup(run, subject, supply.dataset, contender.preprocessing, read, progress):
        say(f"{contender.name}: {CHECK} left out: {why}")
    evidence = run.evidence(contender.name, CLEAN.text)
    for flag in setup_flags(evidence):
        say(f"⚑ {contender.name}: {flag}")
    for note in setup_notes(evidence):
        say(f"{contender.name}: {note}")


def _take_evidence(
    run: RunFolder,
    contender: Contender,
    subject: Subject,
    condition: Condition,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Measure whether an attack's result can be trusted, and report what speaks against it."""
    assert contender.preprocessing is not None
    gather_evidence(run, subject, contender.supply.dataset, contender.preprocessing, condition, progress)
    for finding in findings(run.evidence(contender.name, condition.text) or {}):
        if finding.flag:
            say(f"⚑ {contender.name}, {condition.text}: {finding.flag}")


def _provenance(
    manifest: Manifest, checkpoint: CheckpointEntry, here: Mapping[str, Any], condition: str
) -> dict[str, Any]:
    """Return where the rows of a checkpoint under a condition come from, for the metadata of their Parquet files.

    here: how and on what this process computes.
    """
    return {**provenance_of(manifest, checkpoint, condition), **here}


def _await_same(run: RunFolder, manifest: dict[str, Any]) -> None:
    """Wait until this process sees the run.json that the first one wrote; a network file system may take a while."""
    began = time.monotonic()
    while (seen := run.read_manifest()) is None or seen.to_plain() != manifest:
        if time.monotonic() - began > _SEEN:
            raise RunError(
                f"{run.manifest_path} is not what the first process wrote; give an --out that all processes see"
            )
        time.sleep(0.1)


def _check_complete(plan: Plan) -> None:
    """Raise RunError where records are missing although every process has said that it is done."""
    run, shards = plan.run, shards_of(plan)
    lacking = sum(
        len(piece.conditions)
        for contender in plan.contenders
        for piece in pieces(run, contender.name, plan.conditions, shards, part=plan.request.share)
    )
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; make sure that "
            "all of them see this folder, and run the same command again"
        )
