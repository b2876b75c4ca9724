"""What a run still lacks, and how computing it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..common.plugins import of_slice
from ..display.text import no_controls
from ..errors import RunError
from ..evaluations.condition import Cost
from ..evaluations.corruptions.evaluate import lines_on_device
from ..evaluations.parts import ENOUGH, RunPart
from ..evaluations.setup import unsuited_reason
from ..protocol.condition import CLEAN, Condition
from ..runs.folder import RunFolder
from ..runs.kept_images import ADVERSARIALS, PICTURES, strange_images
from ..runs.progress import Progress
from ..runs.untrusted import shard_number
from .plan import EVIDENCE, DescribedCheckpoint, Plan, PlannedCheckpoint
from .processes import Ranks
from .progress import PLAN, Estimate, Reporter, jobs_of, work_lines

UnitsOfShard = tuple[int, tuple[Condition, ...]]
"""A shard's number, and conditions that use the same files of it, which are decoded once."""


def pending_units(
    run: RunFolder,
    name: str,
    conditions: Sequence[Condition],
    shards: int,
    needed: Callable[[str, int], bool] = lambda text, shard: False,
    part: RunPart | None = None,
) -> list[UnitsOfShard]:
    """Return what lacks records, by shard: conditions on clean inputs together, each released corruption alone. needed:
    whether the adversarial images of a condition on a shard are. part: the units that count; None: all.
    """
    units = list[UnitsOfShard]()
    for shard in range(shards):
        lacking = [
            condition
            for condition in conditions
            if (part is None or part.holds(name, condition.text, shard, shards))
            and (
                not run.shard_path(name, condition.text, shard).is_file()
                or (
                    needed(condition.text, shard)
                    and not run.shard_path(name, condition.text, shard, ADVERSARIALS).is_file()
                )
            )
        ]
        clean = tuple(c for c in lacking if not c.released)
        units += [(shard, group) for group in (clean, *((c,) for c in lacking if c.released)) if group]
    return units


def checkpoint_groups(plan: Plan) -> list[tuple[DescribedCheckpoint, tuple[Condition, ...]]]:
    """Return each checkpoint with its conditions; then again with those that need what others found."""
    first = tuple(condition for condition in plan.conditions if not condition.waits)
    later = tuple(condition for condition in plan.conditions if condition.waits)
    every = ((planned, plan.suited(planned.name, some)) for some in (first, later) for planned in plan.contenders)
    return [(planned, some) for planned, some in every if some]


class PendingWork(NamedTuple):
    """What one of `checkpoint_groups` lacks, in JSON types."""

    units: list[tuple[int, list[str]]]
    """Shards, each with the texts of conditions to compute together."""
    doubted: list[str]
    """Attacks that lack evidence."""
    done: int
    """Units that exist."""
    lines: list[str]
    """On files that are not what was written for this run, and are made again."""
    checks_setup: bool
    unchecked: str
    """Why the set-up is not checked; empty where it is, or where that needs no word."""


def pending_work(plan: Plan, processes: int) -> list[PendingWork]:
    """Return what each of `checkpoint_groups` lacks. Files that are not what was written for this run are removed."""
    lines = [_without_strange(plan, planned, conditions) for planned, conditions in checkpoint_groups(plan)]
    return [_lacking(plan, *lot, some, processes) for lot, some in zip(checkpoint_groups(plan), lines, strict=True)]


def _lacking(
    plan: Plan, planned: DescribedCheckpoint, conditions: Sequence[Condition], lines: list[str], processes: int
) -> PendingWork:
    run, name, part = plan.run, planned.name, plan.request.share
    shards, able = count_shards(plan), computable(plan, planned.name, conditions)
    waiting = [condition.text for condition in conditions if condition not in able]
    why = "waits for the first phase of all parts; then rerun each part on a folder that contains it"
    lines += [f"{name}: {text} {why}" for text in waiting]
    conditions = able

    def needed(text: str, shard: int) -> bool:
        return text in plan.handed and (run.manifest.keeps_adversarials or _awaited(plan, name, text, shard))

    lacking = pending_units(run, name, conditions, shards, needed, part)
    done = sum(map(len, units_of(plan, name, conditions).values())) - sum(len(some) for _, some in lacking)
    if processes > 1 and len(lacking) < ENOUGH * processes:
        lacking = [(shard, (condition,)) for shard, some in lacking for condition in some]
    preprocessing = planned.preprocessing if isinstance(planned, PlannedCheckpoint) else None
    bearing = [each for each in conditions if each in plan.extents] if preprocessing else []
    measured = [each for each in (CLEAN, *bearing) if part is None or part.measures(name, each.text, shards)]
    doubted = [each.text for each in bearing if each in measured and _needs_evidence(plan, name, each)]
    checks = CLEAN in measured and not (conditions and conditions[0].waits)
    unchecked = _why_unchecked(plan, planned) if checks else ""
    units = [(shard, [c.text for c in some]) for shard, some in lacking]
    # A finished run is as it is.
    return PendingWork(units, doubted, done, lines, unchecked is None, (unchecked or "") if lacking else "")


def _needs_evidence(plan: Plan, name: str, condition: Condition) -> bool:
    needs_evidence: Callable[..., bool] = of_slice("evidence", EVIDENCE).needs_evidence
    return needs_evidence(plan.run, name, condition, plan.extents[condition])


def _awaited(plan: Plan, source: str, attack: str, shard: int) -> bool:
    """Whether some checkpoint is still to be scored on the adversarial images of a unit."""
    passed = (c for c in plan.conditions if c.source == source and c.under is not None and c.under.text == attack)
    names = [planned.name for planned in plan.contenders]
    pairs = ((name, c.text) for c in passed for name in names if plan.suited(name, [c]))
    return any(not plan.run.shard_path(*pair, shard).is_file() for pair in pairs)


def _without_strange(plan: Plan, planned: DescribedCheckpoint, conditions: Sequence[Condition]) -> list[str]:
    """Remove files that are not what was written for this run, except for other parts' own; return a line on each."""
    run, name, shards, part = plan.run, planned.name, count_shards(plan), plan.request.share

    def dropped(find: Callable[[str], Sequence[tuple[Path, str]]]) -> Iterator[tuple[Path, str]]:
        for text in (condition.text for condition in conditions):
            for path, why in find(text):
                shard = shard_number(path.stem)
                is_ours = part is None or (
                    part.measures(name, text, shards) if shard is None else part.holds(name, text, shard, shards)
                )
                if is_ours:
                    path.unlink(missing_ok=True)
                    yield path, why

    lines = [f"{path}: {why}; recomputed" for path, why in dropped(lambda text: run.damaged(name, [text]))]
    odd = dropped(lambda text: run.strange_evidence(name, [text]))
    lines += [f"{path}: evidence: {why}; recomputed" for path, why in odd]
    odd = dropped(lambda text: strange_images(run, PICTURES, name, [text]))
    lines += [f"{path}: pictures: {why}; removed; the report does without it" for path, why in odd]
    odd = dropped(lambda text: strange_images(run, ADVERSARIALS, name, [text]) if text in plan.handed else [])
    return [*lines, *(f"{path}: {why}; removed; recomputed where needed" for path, why in odd)]


def _why_unchecked(plan: Plan, planned: DescribedCheckpoint) -> str | None:
    """Return why the set-up of a checkpoint is not checked; empty where that needs no word, None where it is."""
    if not plan.checks_setup:
        return ""
    if CLEAN not in plan.conditions:
        return "clean images are not evaluated"
    if plan.run.evidence(planned.name, CLEAN.text) is not None:
        return "it was already done"
    return unsuited_reason(plan.dataset, scenes=plan.unjudged is not None) or None


def computable(plan: Plan, name: str, conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that can be computed: a part waits for records of all parts that a condition draws from."""
    missing, alone = plan.run.missing_units, plan.request.share is None
    some = plan.suited(name, conditions)
    return tuple(c for c in some if alone or c.after is None or not missing(name, c.after.text))


def units_of(plan: Plan, name: str, conditions: Sequence[Condition]) -> dict[str, list[int]]:
    """Return the shards of a checkpoint that this command is about, by the text of a condition."""
    n, part = count_shards(plan), plan.request.share
    able = {each.text for each in plan.suited(name, conditions)}

    def holds(text: str, shard: int) -> bool:
        return text in able and (part is None or part.holds(name, text, shard, n))

    return {each.text: [shard for shard in range(n) if holds(each.text, shard)] for each in conditions}


def count_shards(plan: Plan) -> int:
    return -(-len(plan.dataset.samples) // plan.run.manifest.shard_size)


_SEEN = 60.0  # seconds


def announce(
    plan: Plan,
    ranks: Ranks,
    progress: Progress,
    say: Callable[[str], None],
    every: Sequence[PendingWork],
    at_most: int | None = None,
) -> Reporter:
    """Say what was found, is there, and is to be done; return what tells how far it is. every: what each of
    `checkpoint_groups` lacks. at_most: the first samples, where no others are asked for.
    """
    device = plan.request.settings.device
    if ranks.leads:
        for line in (line for work in every for line in work.lines):
            say(line)
        asked = {text for work in every for _, some in work.units for text in some}
        conditions = [condition.under or condition for condition in plan.conditions if condition.text in asked]
        for line in lines_on_device(conditions, device):
            say(line)
        if done := sum(work.done for work in every):
            say(f"{done} units of work were already done and were not recomputed")
    samples, size = len(plan.dataset.samples[:at_most]), plan.run.manifest.shard_size
    card, classes = plan.request.card, len(plan.dataset.valid_labels or plan.dataset.class_names)
    jobs = []

    def doubting(texts: Sequence[str]) -> dict[str, tuple[int, Cost]]:
        extents = {each.text: (extent.samples, extent.cost(each)) for each, extent in plan.extents.items()}
        return {text: extents[text] for text in texts}

    for (planned, _), work in zip(checkpoint_groups(plan), every, strict=True):
        counts = dict.fromkeys((condition.text for condition in plan.conditions), 0)
        for shard, texts in work.units:
            for text in texts:
                counts[text] += min(size, samples - shard * size)
        counted = [(condition, counts[condition.text]) for condition in plan.conditions]
        jobs += jobs_of(planned.name, counted, doubting(work.doubted), card, classes, samples, work.checks_setup)
    by_checkpoint = {
        planned.name: {
            text: [shard for shard in shards if shard * size < samples]
            for text, shards in units_of(plan, planned.name, plan.conditions).items()
        }
        for planned in plan.contenders
    }
    if ranks.leads:
        units = sum(len(shards) for of_one in by_checkpoint.values() for shards in of_one.values())
        finished = sum(work.done for work in every)
        evidence = [part for work in every for part in doubting(work.doubted).values()]
        checked, whys = sum(work.checks_setup for work in every), [work.unchecked for work in every if work.unchecked]
        whole = (plan.conditions, len(by_checkpoint), samples, units, finished, evidence, card, classes)
        for line in work_lines(*whole, checked, whys):
            PLAN.info(no_controls(line))
    estimate = Estimate(jobs, ranks.size, accelerated=device.type != "cpu")
    return Reporter(plan.run, plan.conditions, samples, by_checkpoint, estimate, ranks, progress, device.type)


def await_same(run: RunFolder, manifest: dict[str, Any]) -> None:
    """Wait until this process sees the run.json that the first one wrote. RunError where it never does."""
    began = time.monotonic()
    while (seen := run.read_manifest()) is None or seen.to_plain() != manifest:
        if time.monotonic() - began > _SEEN:
            remedy = "give an --out that all processes share"
            raise RunError(f"{run.manifest_path} is not what the first process wrote; {remedy}")
        time.sleep(0.1)
