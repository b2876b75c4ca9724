"""What a run still lacks, computed: by this process, or drawn with others piece by piece."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..common.lock import locked
from ..common.preprocessing import Preprocessing
from ..errors import RunError
from ..evaluations.attacks.evidence import bearing_evidence, gather_evidence, needs_evidence
from ..evaluations.attacks.gradient_masking import findings
from ..evaluations.subject import Subject
from ..evaluations.supply import Supply
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..runs.folder import RunFolder
from ..runs.links import refuse_links
from ..runs.pictures import PicturePlan, strange_pictures
from ..runs.progress import Progress
from .processes import Ranks
from .runner import Piece, pieces, run_units

_SEEN = 60.0  # seconds
_FINER = 4
"""With fewer pieces of work than this for each process, the conditions of a shard are drawn one by one."""


@dataclass(frozen=True)
class Job:
    """One checkpoint with what it will be shown.

    subject: makes it ready to compute. provenance: of what its records under a condition are, by its text.
    preprocessing: for the evidence on its attacks; None where none is taken.
    """

    name: str
    subject: Callable[[], Subject]
    images: Supply
    provenance: Callable[[str], Mapping[str, Any]]
    preprocessing: Preprocessing | None = None


def carry_out(
    run: RunFolder,
    prepare: Callable[[], list[str]],
    tasks: Callable[[], Sequence[Job]],
    conditions: Sequence[Condition],
    card: Card,
    finish: Callable[[], object],
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """A whole run, by this process or together with those that torchrun started beside it.

    prepare: writes run.json and returns lines for the user. tasks: with run.json written. finish: summary and report.
    prepare and finish are called in the first process only, which holds the folder's lock meanwhile.

    Raises:
        RunError: another command is at work in the folder.
    """
    ranks = Ranks.of_environment()
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, Any]:
            held.enter_context(locked(run.path))
            refuse_links(run.path)
            for line in prepare():
                say(line)
            run.sweep()
            return run.manifest.to_plain()

        _await_same(run, ranks.share("run", begin))
        ours = tasks()
        compute(run, ours, conditions, card, ranks, progress, say)
        ranks.finish()
        if ranks.leads:
            if ranks.size > 1:
                _check_complete(run, ours, conditions)
            finish()


def compute(
    run: RunFolder,
    tasks: Sequence[Job],
    conditions: Sequence[Condition],
    card: Card,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
) -> None:
    """Write the records that are missing and, before them, the evidence on attacks.

    Raises:
        ModelError: a network fails on some batch; what was done before it is kept.
        RunError: a record cannot be written, or another process is not heard of any more.
    """
    manifest = run.manifest
    shard_size = manifest.shard_size
    wanted = PicturePlan.of(manifest.pictures, conditions)
    by_text = {condition.text: condition for condition in conditions}
    progress = _Beating(progress, ranks)
    plan = ranks.share(
        "work", lambda: [_lacking(run, task, conditions, card, shard_size, ranks.size) for task in tasks]
    )
    for line in [line for *_, lines in plan for line in lines] if ranks.leads else ():
        say(line)
    for task, (lacking, doubted, *_) in zip(tasks, plan, strict=True):
        if not lacking and not doubted:
            continue
        subject = task.subject()
        # First, so that a doubt is heard before hours are spent.
        for text in ranks.draw(f"evidence on {task.name}", doubted):
            assert task.preprocessing is not None
            gather_evidence(run, subject, task.images.dataset, task.preprocessing, by_text[text], progress)
            for finding in findings(run.evidence(task.name, text) or {}):
                if finding.flag:
                    say(f"⚑ {task.name}, {text}: {finding.flag}")
        drawn = ranks.draw(f"units of {task.name}", lacking)
        work = (Piece(shard, tuple(by_text[text] for text in texts)) for shard, texts in drawn)
        run_units(run, subject, task.images, work, shard_size, task.provenance, progress, wanted, say)
        subject.classifier.to("cpu")
    done = sum(there for _, _, there, _ in plan)
    if done and ranks.leads:
        say(f"{done} units of work were there already and were not computed again")


def _lacking(
    run: RunFolder, task: Job, conditions: Sequence[Condition], card: Card, shard_size: int, processes: int
) -> tuple[list[tuple[int, list[str]]], list[str], int, list[str]]:
    """Shards with the texts of conditions to compute together; attacks that lack evidence; units that are there; lines
    on files that are not what was written for this run, and are made anew.
    """
    texts = [condition.text for condition in conditions]
    lines = [f"{path}: {why}; computed anew" for path, why in _dropped(run.damaged(task.name, texts))]
    lines += [f"{path}: evidence: {why}; taken anew" for path, why in _dropped(run.strange_evidence(task.name, texts))]
    strange = strange_pictures(run, task.name, texts)
    lines += [f"{path}: pictures: {why}; removed, the report goes without" for path, why in _dropped(strange)]
    shards = -(-len(task.images.dataset.samples) // shard_size)
    found = pieces(run, task.name, conditions, shards)
    done = shards * len(conditions) - sum(len(piece.conditions) for piece in found)
    if processes > 1 and len(found) < _FINER * processes:
        found = [Piece(piece.shard, (one,)) for piece in found for one in piece.conditions]
    bearing = bearing_evidence(conditions, card) if task.preprocessing else []
    doubted = [one.text for one in bearing if needs_evidence(run, task.name, one, card)]
    return [(piece.shard, [one.text for one in piece.conditions]) for piece in found], doubted, done, lines


def _dropped(files: Sequence[tuple[Path, str]]) -> Sequence[tuple[Path, str]]:
    for path, _ in files:
        path.unlink(missing_ok=True)
    return files


def _await_same(run: RunFolder, manifest: dict[str, Any]) -> None:
    """Wait until this process sees the run.json that the first one wrote; a network's file system may take its time."""
    began = time.monotonic()
    while (seen := run.read_manifest()) is None or seen.to_plain() != manifest:
        if time.monotonic() - began > _SEEN:
            raise RunError(
                f"{run.manifest_path} is not what the first process wrote; give an --out that all processes see"
            )
        time.sleep(0.1)


def _check_complete(run: RunFolder, tasks: Sequence[Job], conditions: Sequence[Condition]) -> None:
    """Raises RunError where records are missing although every process has said that it is done."""
    size = int(run.manifest.shard_size)
    lacking = sum(
        len(piece.conditions)
        for task in tasks
        for piece in pieces(run, task.name, conditions, -(-len(task.images.dataset.samples) // size))
    )
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; see to it that "
            "all of them have this folder, and run the same command again"
        )


@dataclass(frozen=True)
class _Beating:
    """Progress that is a sign of life, too."""

    inner: Progress
    ranks: Ranks

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.ranks.beat()
        self.inner.start(checkpoint, condition, samples)

    def advance(self, samples: int) -> None:
        self.ranks.beat()
        self.inner.advance(samples)

    def stage(self, name: str, standing: int, share: float) -> None:
        self.ranks.beat()
        self.inner.stage(name, standing, share)
