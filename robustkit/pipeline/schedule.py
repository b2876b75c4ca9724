"""Compute what a run still lacks, in this process or together with others, which draw piece by piece."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.lock import locked
from ..display.neutral import no_controls
from ..errors import RunError
from ..evaluations.attacks.evidence import bearing_evidence, gather_evidence, needs_evidence
from ..evaluations.attacks.gradient_masking import findings
from ..evaluations.family import family_of
from ..evaluations.setup import CHECK, check_setup, unsuited
from ..evaluations.setup_flags import setup_flags, setup_notes
from ..evaluations.subject import Settings, Subject
from ..protocol.condition import CLEAN, Condition
from ..runs.binding import provenance_of
from ..runs.folder import RunFolder
from ..runs.links import refuse_links
from ..runs.manifest import CheckpointEntry, Manifest
from ..runs.pictures import PicturePlan, strange_pictures
from ..runs.progress import Progress
from .announcement import jobs_of, work_lines
from .estimate import Estimate
from .manifest import prepare
from .plan import Contender, Plan
from .processes import Ranks
from .reporting import PLAN, Reporter
from .runner import Piece, pieces, run_units
from .shards import decoded

if TYPE_CHECKING:
    import torch

_SEEN = 60.0  # seconds
_FINER = 4
"""With fewer pieces of work per process, the conditions of a shard are drawn one by one."""


def carry_out(plan: Plan, progress: Progress, say: Callable[[str], None]) -> None:
    """Carry out a whole run, in this process or together with others that torchrun started.

    run.json, summary and report are made by the first process only, which holds the folder's lock meanwhile.

    Raises:
        RunError: another command is at work in the folder.
    """
    ranks, run = Ranks.of_environment(), plan.run
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, Any]:
            held.enter_context(locked(run.path))
            refuse_links(run.path)
            for line in (*plan.lines, *prepare(plan)):
                say(line)
            run.sweep()
            return run.manifest.to_plain()

        _await_same(run, ranks.share("run", begin))
        reporter = compute(plan, ranks, progress, say)
        ranks.finish()
        reporter.finish()
        if ranks.leads:
            if ranks.size > 1:
                _check_complete(plan)
            computed = reporter.estimate.elapsed
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
    by_text = {condition.text: condition for condition in plan.conditions}
    wanted = PicturePlan.of(manifest.pictures, plan.conditions)
    outstanding = ranks.share("work", lambda: [_lacking(plan, contender, ranks.size) for contender in plan.contenders])
    for line in [line for _, _, _, lines, _ in outstanding for line in lines] if ranks.leads else ():
        say(line)
    texts = {text for lacking, *_ in outstanding for _, some in lacking for text in some} if ranks.leads else set()
    conditions = (condition.under or condition for condition in plan.conditions if condition.text in texts)
    for line in dict.fromkeys(family_of(each.name).elsewhere(each, settings.device) for each in conditions):
        if line:
            say(line)
    reporter = _reporter(plan, ranks, progress, outstanding, settings.device)
    for contender, (lacking, doubted, _, _, unchecked) in zip(plan.contenders, outstanding, strict=True):
        check = [CLEAN.text] if unchecked is None else []
        if not lacking and not doubted:
            continue
        subject = contender.subject(settings)
        for _ in ranks.draw(f"set-up of {contender.name}", check):
            _check_setup(run, contender, subject, reporter, say)
        # First, so that a doubt is known before hours are spent.
        for text in ranks.draw(f"evidence on {contender.name}", doubted):
            _take_evidence(run, contender, subject, by_text[text], reporter, say)
        drawn = ranks.draw(f"units of {contender.name}", lacking)
        work = (Piece(shard, tuple(by_text[text] for text in texts)) for shard, texts in drawn)
        provenance = partial(_provenance, manifest, contender.entry, settings)
        run_units(run, subject, contender.supply, work, manifest.shard_size, provenance, reporter, wanted, say)
        subject.classifier.to("cpu")
    done = sum(there for _, _, there, *_ in outstanding)
    if done and ranks.leads:
        say(f"{done} units of work were there already and were not computed again")
    return reporter


def _reporter(
    plan: Plan, ranks: Ranks, progress: Progress, outstanding: Sequence[Any], device: torch.device
) -> Reporter:
    """Say what is to be done, and return what tells how far it is. outstanding: of each contender, as `_lacking`."""
    size, samples = plan.run.manifest.shard_size, len(plan.dataset.samples)
    card, classes = plan.request.card, len(plan.dataset.valid_labels or plan.dataset.class_names)
    jobs = []
    for contender, (lacking, doubted, *_, unchecked) in zip(plan.contenders, outstanding, strict=True):
        counts = dict.fromkeys((condition.text for condition in plan.conditions), 0)
        for shard, texts in lacking:
            for text in texts:
                counts[text] += min(size, samples - shard * size)
        wanted = [(condition, counts[condition.text]) for condition in plan.conditions]
        jobs += jobs_of(contender.name, wanted, doubted, card, classes, samples, unchecked is None)
    shards, checkpoints = _shards(plan), [contender.name for contender in plan.contenders]
    if ranks.leads:
        units = shards * len(plan.conditions) * len(checkpoints)
        there = sum(done for _, _, done, *_ in outstanding)
        doubted = sum(len(texts) for _, texts, *_ in outstanding)
        whys = [why for *_, why in outstanding]
        lines = work_lines(
            plan.conditions,
            len(checkpoints),
            samples,
            units,
            there,
            doubted,
            card,
            classes,
            whys.count(None),
            filter(None, whys),
        )
        for line in lines:
            PLAN.info(no_controls(line))
    estimate = Estimate(jobs, ranks.size)
    return Reporter(plan.run, checkpoints, plan.conditions, samples, shards, estimate, ranks, progress, device.type)


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


def _why_unchecked(plan: Plan, contender: Contender) -> str | None:
    """Return why the set-up of a checkpoint is not checked; empty where that needs no word, None where it is."""
    if not plan.checks_setup:
        return ""
    if CLEAN not in plan.conditions:
        return "clean images are not evaluated"
    if plan.run.evidence(contender.name, CLEAN.text) is not None:
        return "it was done before"
    return unsuited(plan.dataset) or None


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


def _provenance(manifest: Manifest, checkpoint: CheckpointEntry, settings: Settings, condition: str) -> dict[str, Any]:
    """Return where the rows of a checkpoint under a condition come from, for the metadata of their Parquet files."""
    beside = {"batch_size": settings.batch_size, "device": manifest.device, "versions": manifest.versions}
    return provenance_of(manifest, checkpoint, condition) | beside


def _lacking(
    plan: Plan, contender: Contender, processes: int
) -> tuple[list[tuple[int, list[str]]], list[str], int, list[str], str | None]:
    """Return shards with the texts of conditions to compute together; attacks that lack evidence; the number of units
    that exist; lines on files that are not what was written for this run, and are made again; and why the set-up is not
    checked, as `_why_unchecked`.
    """
    run, name, conditions = plan.run, contender.name, plan.conditions
    texts = [condition.text for condition in conditions]
    lines = [f"{path}: {why}; computed again" for path, why in _dropped(run.damaged(name, texts))]
    lines += [f"{path}: evidence: {why}; taken again" for path, why in _dropped(run.strange_evidence(name, texts))]
    strange = strange_pictures(run, name, texts)
    lines += [f"{path}: pictures: {why}; removed, the report goes without" for path, why in _dropped(strange)]
    shards = _shards(plan)
    lacking = pieces(run, name, conditions, shards)
    done = shards * len(conditions) - sum(len(piece.conditions) for piece in lacking)
    if processes > 1 and len(lacking) < _FINER * processes:
        lacking = [Piece(piece.shard, (condition,)) for piece in lacking for condition in piece.conditions]
    card = plan.request.card
    bearing = bearing_evidence(conditions, card) if contender.preprocessing else []
    doubted = [condition.text for condition in bearing if needs_evidence(run, name, condition, card)]
    unchecked = _why_unchecked(plan, contender) if lacking else ""
    return [(piece.shard, [c.text for c in piece.conditions]) for piece in lacking], doubted, done, lines, unchecked


def _shards(plan: Plan) -> int:
    return -(-len(plan.dataset.samples) // plan.run.manifest.shard_size)


def _dropped(files: Sequence[tuple[Path, str]]) -> Sequence[tuple[Path, str]]:
    for path, _ in files:
        path.unlink(missing_ok=True)
    return files


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
    run, shards = plan.run, _shards(plan)
    lacking = sum(
        len(piece.conditions)
        for contender in plan.contenders
        for piece in pieces(run, contender.name, plan.conditions, shards)
    )
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; make sure that "
            "all of them see this folder, and run the same command again"
        )
