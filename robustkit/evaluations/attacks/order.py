"""Find stronger attacks that leave standing what a weaker one broke: they were misled, and the model is not robust."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...protocol.condition import part_of
from ..family import Overview
from ..right import Right, aligned, chance
from ..rows import Reading, Row
from ..strength import Strengths
from ..support import supported_rows
from .gradient_masking import Doubt
from .on_corrupted import starts_from
from .terms import FOUND, TOP1
from .vocabulary import supporting

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.manifest import Manifest

CHANCE = 0.001
"""Probability below which more survivors of the stronger attack are not chance: McNemar's exact test, one-sided."""
LEAST = 0.01
"""Share of the samples that must differ as well between two attacks, whose random starts differ."""
_CHECK, _ADVICE = "attacks in order: ", "a stronger attack cannot do less, gradients mislead it"
_INSTEAD = "run autoattack, Square with more queries, or an adaptive attack (BPDA, transfer)"
OFTEN = 0.25
"""The same chance between an attack and no attack, after which fewer samples are right, if any change."""
CONTRADICTED = 0.02
"""The same chance between an attack and the PGD of its own evidence."""
_STRENGTH = {
    "clean": 0,
    "corruption": 0,
    "spsa": 0.5,
    "square": 0.5,
    "fab": 0.5,
    "fgsm": 1,
    "pgd": 2,
    "apgd": 2,
    "autoattack": 3,
}
_STEPS = {"pgd": 20, "apgd": 100, "autoattack": 100}  # where the text has none
_TRAVEL = 2.0  # radii that an attack's steps must be able to go to be compared with one step of a whole radius


def is_compared(condition: str) -> bool:
    """Whether a condition is an attack, or one whose images attacks change, of those that have an order."""
    return _name(condition) in _STRENGTH


def order_flag(manifest: Manifest, condition: str, rights: Mapping[str, Right]) -> str:
    """Return what is odd about an attack compared with clean and the weaker attacks at the same eps, or "".

    rights: the answers under the conditions of one checkpoint.
    """
    pairs, start = [], starts_from(condition)
    for weaker in rights:
        if not _is_above(manifest, condition, weaker):
            continue
        ours, theirs, *clean = aligned([rights[name] for name in (condition, weaker, start) if name in rights])
        if clean and _labels(manifest, condition) != "true":  # the way from a wrong prediction may lead to a right one
            ours, theirs = ours[clean[0]], theirs[clean[0]]
        more, fewer = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        if weaker == start:  # a share above clean says that the attack did worse than none
            odd = more > fewer and (not fewer or chance(more, fewer) <= OFTEN)
        else:
            odd = more - fewer > LEAST * len(ours) and chance(more, fewer) < CHANCE
        if odd:
            what = "right that were wrong before it" if weaker == start else f"standing that {weaker} broke"
            pairs.append(f"it left {more} of {len(ours)} samples {what}, and {fewer} the other way round")
    return f"{_CHECK}{', '.join(pairs)}: {_ADVICE}; {_INSTEAD}" if pairs else ""


def contradiction(manifest: Manifest, condition: str, found: Right, figures: Mapping[str, Any] | None) -> str:
    """Return a flag where an attack left standing what the weaker PGD of its own evidence broke, or "".

    found: its answers. figures: of `examining.examine`, or what someone else put in their place.
    """
    ids, fell, steps = (figures or {}).get("sample_ids"), (figures or {}).get("fell"), (figures or {}).get("loss_steps")
    claim, name = manifest.claims.get(condition), _name(condition)
    if not (isinstance(ids, list) and isinstance(fell, list) and isinstance(steps, list) and len(ids) == len(fell)):
        return ""
    if claim is None or not claim.eps or not steps or not isinstance(steps[-1], int):
        return ""
    strong = _STRENGTH.get(name, 0) >= _STRENGTH["pgd"] and _steps(condition) >= steps[-1]
    if not strong or _travel(condition, claim.eps) < _TRAVEL:
        return ""
    broke = {str(sample): bool(gone) for sample, gone in zip(ids, fell, strict=True) if gone in (0, 1)}
    both = [
        (right, broke[sample])
        for sample, right in zip(found.ids.to_pylist(), found.right, strict=True)
        if sample in broke
    ]
    more, fewer = sum(right and gone for right, gone in both), sum(not right and not gone for right, gone in both)
    if not (more > fewer and chance(more, fewer) < CONTRADICTED):
        return ""
    return (
        f"{_CHECK}it left {more} of {len(both)} samples standing that PGD with {steps[-1]} steps broke for its "
        f"evidence, and {fewer} the other way round: {_ADVICE}; {_INSTEAD}"
    )


def findings_of(flags: Sequence[str]) -> list[Doubt]:
    """Return those flags of a result that are about attacks in order."""
    ours = dict.fromkeys(flag for flag in flags if flag.startswith(_CHECK))
    return [
        Doubt(_CHECK[:-2], flag.removeprefix(_CHECK).removesuffix(f": {_ADVICE}; {_INSTEAD}"), flag, _INSTEAD)
        for flag in ours
    ]


def _is_above(manifest: Manifest, condition: str, weaker: str) -> bool:
    """Whether the attack must do at least what `weaker` does: at the same eps, and with steps enough for it."""
    name, other = _name(condition), _name(weaker)
    if not (name in _STRENGTH and other in _STRENGTH and _STRENGTH[name] > _STRENGTH[other]):
        return False
    claim, beside = manifest.claims.get(condition), manifest.claims.get(weaker)
    if claim is None or not claim.eps:
        return False
    if 0 < _STRENGTH[other] < 1:
        return False
    if not _STRENGTH[other]:
        return weaker == starts_from(condition) and _labels(manifest, condition) == "true"
    same = beside is not None and (claim.norm, claim.eps) == (beside.norm, beside.eps)
    same &= _labels(manifest, condition) == _labels(manifest, weaker)
    same &= starts_from(condition) == starts_from(weaker)
    return same and _travel(condition, claim.eps) >= _TRAVEL and _steps(condition) >= _steps(weaker)


def _name(condition: str) -> str:
    return condition.partition("(")[0]


def _steps(condition: str) -> int:
    """Return the updates of an attack from its text, over all restarts; 1 for a single step."""
    counts = {key: int(count) for key, count in re.findall(r"(steps|restarts)=(\d+)", condition)}
    return counts.get("steps", _STEPS.get(_name(condition), 1)) * counts.get("restarts", 1)


def _travel(condition: str, eps: float) -> float:
    """Return how many radii the steps of PGD can go in all; infinity for attacks that choose their own steps."""
    if _name(condition) != "pgd":
        return math.inf if _steps(condition) >= 10 else 0.0
    size = re.search(r"step_size=([\d.e+-]+)(\*eps)?", condition)
    step = 0.15 if size is None else float(size[1]) / (1 if size[2] else eps)
    return step * _steps(condition)


def _labels(manifest: Manifest, condition: str) -> str:
    protocol = manifest.protocol
    parameters = protocol.parameters.get(_name(condition), {})
    return str(parameters.get("labels", protocol.labels))


class OrderOfAttacks(Overview):
    """Which attacks left standing what weaker ones broke, and how much of what all of them broke each did."""

    def __init__(self, reading: Reading) -> None:
        self.manifest, self.rights = reading.manifest, dict[str, Right]()
        self.evidence = partial(reading.run.evidence, reading.checkpoint)
        self.strengths, self.noted = Strengths(reading), dict[str, Sequence[str]]()

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        if is_compared(condition):
            self.rights[condition] = Right.of(read)
        self.strengths.take(condition, read)
        if condition in self.manifest.claims:
            self.noted[condition] = flags

    def rows(self) -> Iterator[Row]:
        for condition, flags in self.noted.items():
            yield from ((condition, FOUND.name, *figure, [*flags]) for figure in self.strengths.found(condition))
            if part_of(condition):
                by = supporting(condition, self.manifest.conditions)
                tables = [self.strengths.table(text) for text in (condition, by)]
                table, others = (each and each.select(["sample_id", "correct"]) for each in tables)
                if table is not None and others is not None:
                    yield from supported_rows(condition, TOP1, table, by, others, flags)

    def flags(self) -> dict[str, list[str]]:
        found = {}
        for condition, right in self.rights.items():
            flags = [order_flag(self.manifest, condition, self.rights)]
            if condition in self.manifest.evidence:
                flags.append(contradiction(self.manifest, condition, right, self.evidence(condition)))
            found[condition] = [flag for flag in flags if flag]
        return {condition: flags for condition, flags in found.items() if flags}
