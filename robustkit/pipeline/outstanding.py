"""What a run still lacks: units of work, the evidence on attacks, and files that must be made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..evaluations.attacks.evidence import bearing_evidence, needs_evidence
from ..evaluations.setup import unsuited
from ..protocol.condition import CLEAN, Condition
from ..runs.adversarials import adversarials_path, strange_adversarials
from ..runs.folder import RunFolder
from ..runs.pictures import strange_pictures
from .plan import Contender, Plan

_FINER = 4
"""With fewer pieces of work per process, the conditions of a shard are drawn one by one."""


@dataclass(frozen=True)
class Piece:
    """A shard, by its number, and conditions that use the same files of it, which are decoded once."""

    shard: int
    conditions: tuple[Condition, ...]


def pieces(
    run: RunFolder,
    name: str,
    conditions: Sequence[Condition],
    shards: int,
    needed: Callable[[str, int], bool] = lambda text, shard: False,
) -> list[Piece]:
    """Return what lacks records, by shard: all conditions on clean inputs together, and each released corruption.

    needed: whether adversarial images are, of a condition on a shard: where they are not there, they are found again.
    """
    units = []
    for shard in range(shards):
        lacking = [
            condition
            for condition in conditions
            if not run.shard_path(name, condition.text, shard).is_file()
            or (needed(condition.text, shard) and not adversarials_path(run, name, condition.text, shard).is_file())
        ]
        clean = tuple(c for c in lacking if not c.released)
        units += [Piece(shard, group) for group in (clean, *((c,) for c in lacking if c.released)) if group]
    return units


def lots(plan: Plan) -> list[tuple[Contender, tuple[Condition, ...]]]:
    """Return each contender with its conditions; then again with those that need what others found."""
    own = tuple(condition for condition in plan.conditions if not condition.waits)
    later = tuple(condition for condition in plan.conditions if condition.waits)
    return [(contender, some) for some in (own, later) if some for contender in plan.contenders]


Lacking = tuple[list[tuple[int, list[str]]], list[str], int, list[str], str | None]
"""Shards with the texts of conditions to compute together; attacks that lack evidence; the number of units that exist;
lines on files that are not what was written for this run, and are made again; and why the set-up is not checked, as
`_why_unchecked`."""


def outstanding(plan: Plan, processes: int) -> list[Lacking]:
    """Return what is lacking of each of `lots`. Files that are not what was written for this run are removed."""
    lines = [_without_strange(plan, contender, conditions) for contender, conditions in lots(plan)]
    return [_lacking(plan, *lot, some, processes) for lot, some in zip(lots(plan), lines, strict=True)]


def _lacking(
    plan: Plan, contender: Contender, conditions: Sequence[Condition], lines: list[str], processes: int
) -> Lacking:
    run, name = plan.run, contender.name
    shards = shards_of(plan)

    def needed(text: str, shard: int) -> bool:
        return text in plan.handed and (run.manifest.keeps_adversarials or _awaited(plan, name, text, shard))

    lacking = pieces(run, name, conditions, shards, needed)
    done = shards * len(conditions) - sum(len(piece.conditions) for piece in lacking)
    if processes > 1 and len(lacking) < _FINER * processes:
        lacking = [Piece(piece.shard, (condition,)) for piece in lacking for condition in piece.conditions]
    card = plan.request.card
    bearing = bearing_evidence(conditions, card) if contender.preprocessing else []
    doubted = [condition.text for condition in bearing if needs_evidence(run, name, condition, card)]
    unchecked = _why_unchecked(plan, contender) if lacking and not conditions[0].waits else ""
    return [(piece.shard, [c.text for c in piece.conditions]) for piece in lacking], doubted, done, lines, unchecked


def _awaited(plan: Plan, source: str, attack: str, shard: int) -> bool:
    """Whether some checkpoint is still to be scored on the adversarial images of a unit."""
    return any(
        not plan.run.shard_path(contender.name, condition.text, shard).is_file()
        for condition in plan.conditions
        if condition.source == source and condition.under is not None and condition.under.text == attack
        for contender in plan.contenders
    )


def _without_strange(plan: Plan, contender: Contender, conditions: Sequence[Condition]) -> list[str]:
    """Remove files that are not what was written for this run; return a line on each."""
    run, name, texts = plan.run, contender.name, [condition.text for condition in conditions]
    lines = [f"{path}: {why}; computed again" for path, why in _dropped(run.damaged(name, texts))]
    lines += [f"{path}: evidence: {why}; taken again" for path, why in _dropped(run.strange_evidence(name, texts))]
    strange = strange_pictures(run, name, texts)
    lines += [f"{path}: pictures: {why}; removed, the report goes without" for path, why in _dropped(strange)]
    strange = strange_adversarials(run, name, [text for text in texts if text in plan.handed])
    return [*lines, *(f"{path}: {why}; removed, found again where it is needed" for path, why in _dropped(strange))]


def _why_unchecked(plan: Plan, contender: Contender) -> str | None:
    """Return why the set-up of a checkpoint is not checked; empty where that needs no word, None where it is."""
    if not plan.checks_setup:
        return ""
    if CLEAN not in plan.conditions:
        return "clean images are not evaluated"
    if plan.run.evidence(contender.name, CLEAN.text) is not None:
        return "it was done before"
    return unsuited(plan.dataset) or None


def shards_of(plan: Plan) -> int:
    """Return how many shards the samples of a run have."""
    return -(-len(plan.dataset.samples) // plan.run.manifest.shard_size)


def _dropped(files: Sequence[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    for path, why in files:
        path.unlink(missing_ok=True)
        yield path, why
