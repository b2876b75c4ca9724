"""Say what a run will cost, before it begins and after its first batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..evaluations.attacks.cost import EVIDENCE, evidence_cost
from ..evaluations.attacks.evidence import SAMPLES
from ..evaluations.cost import Cost
from ..evaluations.family import Family, family_of
from ..evaluations.setup import CHECK, COST, FIRST
from ..protocol.card import Card
from ..protocol.condition import Condition
from .estimate import Estimate, Job, about

_EVIDENCE = "evidence"
_BEFORE = (_EVIDENCE, CHECK)
"""Kinds of what is measured before the conditions."""
_NOTABLE = 0.3  # share of the whole from which a kind of condition is named


def jobs_of(
    checkpoint: str,
    lacking: Sequence[tuple[Condition, int]],
    doubted: Sequence[str],
    card: Card,
    classes: int,
    every: int,
    checked: bool = False,
) -> list[Job]:
    """Return what is to be done for a checkpoint. lacking: conditions, each with its samples without a record.

    doubted: texts of the attacks on which evidence is taken. classes: of the model. every: samples of the run.
    checked: whether its set-up is to be checked.
    """
    jobs = [
        Job(
            checkpoint,
            condition.text,
            condition.name,
            condition.group,
            min(samples, -(-samples * condition.on // every)) if condition.on else samples,
            family_of(condition.name).cost(condition, card, classes),
        )
        for condition, samples in lacking
        if samples
    ]
    check = [Job(checkpoint, CHECK, CHECK, "", min(FIRST, every), COST)] if checked else []
    evidence = (
        Job(checkpoint, f"evidence on {text}", _EVIDENCE, "", min(SAMPLES, every), evidence_cost(text))
        for text in doubted
    )
    return [*check, *evidence, *jobs]


def work_lines(
    conditions: Sequence[Condition],
    checkpoints: int,
    samples: int,
    units: int,
    there: int,
    doubted: int,
    card: Card,
    classes: int,
    checked: int = 0,
    unchecked: Iterable[str] = (),
) -> list[str]:
    """Return lines on what is to be done. units: of work; there: how many of them have a record already. doubted: on
    how many attacks evidence is to be taken, for all checkpoints. checked: of how many checkpoints the set-up is
    checked; unchecked: why it is not of others.
    """
    what = (
        f"to do: {_count(checkpoints, 'checkpoint')}, {_count(len(conditions), 'condition')}, "
        f"{_count(samples, 'sample')}: {_count(units, 'unit')} of work"
    )
    if there:
        what += f", of which {there} {'is' if there == 1 else 'are'} there already"
    if there == units:
        return [what]
    costs = {
        each: family_of(each.name).cost(each, card, classes) * (min(each.on or samples, samples) / max(samples, 1))
        for each in conditions
    }
    total = sum(costs.values(), Cost(0))
    groups = {family.name: sum(some.values(), Cost(0)) for family, some in _by_family(costs).items()}
    parts = [f"{name} {cost}" for name, cost in groups.items()] if len(groups) > 1 else []
    lines = [
        what,
        f"passes for each sample and checkpoint, forward + backward: {total}"
        + (f"; of these {', '.join(parts)}" if parts else ""),
    ]
    lines += (line for family, some in _by_family(costs).items() for line in family.cost_lines(some))
    if checked:
        lines.append(f"{CHECK}: {_count(checked, 'time')} {COST} or more, for {_count(min(FIRST, samples), 'sample')}")
    lines += (f"{CHECK} left out: {why}" for why in dict.fromkeys(unchecked))
    if doubted:
        few = _count(min(SAMPLES, samples), "sample")
        lines.append(f"evidence on attacks: {_count(doubted, 'time')} {EVIDENCE} or more, for {few}")
    return lines


def estimate_line(estimate: Estimate, where: str) -> str:
    """Return a line on the time that all takes; empty where too little was measured."""
    measured = estimate.measured
    steep = any(job.cost.backwards for job in estimate.jobs.values())
    first = next((job for job in estimate.jobs.values() if job.kind not in _BEFORE), None)
    if first is None or not any(job.kind not in _BEFORE for job in measured):
        return ""
    if steep and not any(job.cost.backwards for job in measured) and len(measured) < 2:
        return ""
    usual, most = estimate.total(), estimate.most()
    if usual is None or most is None:
        return ""
    line = f"about {about(usual)} on {where}"
    if most > 1.2 * usual:
        line += f", at most {about(most)}"
    kinds = dict.fromkeys(job.kind for job in estimate.jobs.values() if job.kind not in _BEFORE)
    shares = {kind: estimate.most(kind) for kind in kinds}
    kind, largest = max(((kind, share or 0.0) for kind, share in shares.items()), key=lambda item: item[1])
    if len(kinds) > 1 and largest >= _NOTABLE * most:
        bound = any(job.cost.at_most for job in estimate.jobs.values() if job.kind == kind)
        line += f"; {kind} is {'at most' if bound else 'about'} {min(largest / most, 1):.0%} of it".replace("%", " %")
    return line


def _by_family(costs: Mapping[Condition, Cost]) -> dict[Family, dict[Condition, Cost]]:
    groups: dict[Family, dict[Condition, Cost]] = {}
    for condition, cost in costs.items():
        groups.setdefault(family_of(condition.name), {})[condition] = cost
    return groups


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
