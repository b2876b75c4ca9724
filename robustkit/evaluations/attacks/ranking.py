"""Rank attacks by what they found: a stronger one that leaves more standing than a weaker one is flagged.

An attack that looks for the smallest change has a curve, the accuracy at every radius, and so has the best of all,
which takes of each sample the smallest change that any attack found. The optimality of AttackBench (Cinà et al. 2024,
arXiv:2404.19460) says how near the one comes to the other. An attack of a fixed radius has one point of such a curve:
for it, the share of the samples broken by any attack within the radius that it broke itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.differences import sign_test
from ...common.figure import Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import Floats, bootstrapped, share_of
from ...common.plugins import built_in
from ...errors import RunError
from ...protocol.condition import CLEAN, samples_named
from ..aggregate import EXCEEDS, RecordReader, column_of, readable_rows
from ..condition import kind_of
from ..estimation import supported_rows
from ..family import Overview
from ..records import Bools, common_places
from . import BROKEN, TOP1, distance_norm, starts_from, supporting

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.manifest import Manifest


@dataclass(frozen=True)
class Sign:
    name: str
    figure: str
    """What was measured, in words, or `not measured`."""
    finding: Finding | None = None


def missing_evidence(figures: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> Sign | None:
    """Return what is wrong where an attack has no evidence, or only what was taken before it; None where it has.

    arguments: of run.json.
    """
    if figures is not None and "awaited" not in figures:
        return None
    if arguments.get("evidence") == "none":
        return Sign("evidence", "not taken", Finding.of("evidence/declined"))
    return Sign("evidence", "not there", Finding.of("evidence/missing"))


def checks_of(figures: Mapping[str, Any], stages: Mapping[str, int], n: int, averaged: bool) -> list[Sign]:
    """Return the checks of figures that were taken, as `gradient_masking.checks_of`, by the slice that judges them."""
    if (entry := built_in("functions").get("checks_of_evidence")) is None:
        why = "this installation is without the slice that judges it"
        return [Sign("evidence", why, Finding.of("evidence/failed", why=why))]
    judge: Callable[..., list[Sign]] = entry.load()
    return judge(figures, stages, n=n, averaged=averaged)


def raised_by(checks: Iterable[Sign]) -> list[Finding]:
    """Return the findings; one where several checks were not measured for the same reason."""
    alike: dict[tuple[str, str], list[Finding]] = {}
    for check in checks:
        if (finding := check.finding) is not None:
            unmeasured = finding.code == "masking/unmeasured"
            alike.setdefault(("", check.figure) if unmeasured else (check.name, check.figure), []).append(finding)
    names = [[finding.text.partition(":")[0] for finding in some[:-1]] for some in alike.values()]
    return [
        replace(some[-1], text=", ".join([*before, some[-1].text]))
        for before, some in zip(names, alike.values(), strict=True)
    ]


@dataclass(frozen=True)
class Outcomes:
    """Whether samples, by their ids, were predicted right under some condition."""

    ids: pa.ChunkedArray
    right: Bools

    @classmethod
    def of(cls, table: pa.Table) -> Outcomes:
        """Return the answers of a condition's readable rows."""
        return cls(table["sample_id"], table["correct"].fill_null(False).to_numpy().astype(bool))


def aligned_outcomes(rights: Sequence[Outcomes]) -> list[Bools]:
    """Return one array for each condition, of the samples that all of them have."""
    places = common_places([each.ids for each in rights])
    return [each.right[place] for each, place in zip(rights, places, strict=True)]


def evaluated(reading: RecordReader, condition: str, columns: Sequence[str]) -> pa.Table | None:
    """Return a checkpoint's readable rows under a condition; None where it is not evaluated yet."""
    try:
        return readable_rows(reading.run.table(reading.checkpoint, condition, [*columns, "error"]))
    except RunError:
        return None


def distances_of(read: pa.Table) -> Floats:
    """Return the distance (n,) of each sample, with infinity where no wrong point was found."""
    distances = column_of(read, "distance")
    distances[np.isnan(distances)] = np.inf
    return distances


class Strengths:
    """What each attack of a checkpoint found. Conditions that were not given are read from the records."""

    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.manifest = reading, reading.manifest
        self._tables: dict[str, pa.Table | None] = {}
        self._alike: dict[tuple[str, str], dict[str, Floats]] = {}
        self._grouped: dict[tuple[str, str], Groups | None] = {}
        self._starts = {starts_from(text) for text in self.manifest.claims} | {CLEAN.text}

    def take(self, condition: str, read: pa.Table) -> None:
        if "distance" in read.column_names:
            self._tables[condition] = read.select(["sample_id", "distance"])
        elif condition in self._starts or condition in self.manifest.claims:
            self._tables[condition] = read.select(["sample_id", "correct", self.manifest.norm(condition)])

    def optimality(self, condition: str) -> Iterator[Figure]:
        """Yield the optimality of an attack for the smallest change, over n samples right when clean; else nothing."""
        sizes = self._sizes(distance_norm(condition), starts_from(condition))
        if condition not in sizes or len(sizes) < 2:
            return
        smallest = np.minimum.reduce([*sizes.values()])
        end = float(smallest[np.isfinite(smallest)].max(initial=0.0))  # of the best curve
        # The mean of the gains is the area between the clean accuracy and the attack's curve.
        gains, best = end - np.minimum(sizes[condition], end), end - np.minimum(smallest, end)
        if not best.sum() > 0:
            return
        value, n = float(gains.sum() / best.sum()), len(best)
        groups = self._grouped[distance_norm(condition), starts_from(condition)]
        with np.errstate(invalid="ignore", divide="ignore"):
            yield bootstrapped(lambda counts: counts @ gains / (counts @ best), n, value, groups)

    def broken(self, condition: str) -> Iterator[Figure]:
        """Yield the share of the n samples broken within an attack's radius that it broke; nothing without others."""
        claims = self.manifest.claims
        claim = claims[condition]
        sizes = self._sizes(claim.norm, starts_from(condition))
        others = [text for text in sizes if text != condition and (text not in claims or claims[text].eps == claim.eps)]
        if condition not in sizes or not others:
            return
        broke = np.isfinite(sizes[condition])
        every = broke | np.logical_or.reduce([size <= claim.eps + EXCEEDS for size in sizes.values()])
        if every.any():
            groups = self._grouped[claim.norm, starts_from(condition)]
            yield share_of(broke[every], chosen_groups(groups, every))

    def _sizes(self, norm: str, start: str) -> Mapping[str, Floats]:
        """Return the smallest change (n,) per attack in a norm on the images of `start`, infinity where none was found.

        Of samples that all have and that are right before; without attacks on some samples, empty in normalised units.
        """
        if (norm, start) in self._alike:
            return self._alike[norm, start]
        sizes = self._alike[norm, start] = dict[str, Floats]()
        if self.manifest.protocol.space == "normalised":
            return sizes
        fixed = {text for text, claim in self.manifest.claims.items() if claim.norm == norm and claim.eps > 0}
        whole = [text for text in self.manifest.conditions if not samples_named(text) and starts_from(text) == start]
        attacks = [text for text in whole if text in fixed or distance_norm(text) == norm]
        tables = {text: table for text in attacks if (table := self.table(text)) is not None}
        clean = self.table(start)
        if clean is None or len(tables) < 2:
            return sizes
        right = set(compress(clean["sample_id"].to_pylist(), Outcomes.of(clean).right))
        ids = [table["sample_id"].to_pylist() for table in tables.values()]
        common = sorted(right.intersection(*ids))
        self._grouped[norm, start] = self.reading.groups(common)
        for (text, table), names in zip(tables.items(), ids, strict=True):
            places = dict(zip(names, range(len(names)), strict=True))
            far = distances_of(table) if "distance" in table.column_names else None
            size = np.where(Outcomes.of(table).right, np.inf, column_of(table, norm)) if far is None else far
            sizes[text] = size[[places[name] for name in common]]
        return sizes

    def table(self, condition: str) -> pa.Table | None:
        if condition not in self._tables:
            names = ["sample_id", "correct", "linf", "l2", "distance"]
            self._tables[condition] = evaluated(self.reading, condition, names)
        return self._tables[condition]


CHANCE = 0.001  # probability below which more survivors of the stronger attack are no chance: McNemar's, one-sided
LEAST = 0.01  # share of the samples that must differ as well between two attacks, whose random starts differ
_ORDER = "masking/attacks-in-order"
OFTEN = 0.25  # the same chance between an attack and no attack, after which fewer samples are right, if any change
CONTRADICTED = 0.02  # the same chance between an attack and the PGD of its own evidence
_STRENGTH = {"clean": 0, "corruption": 0, **dict.fromkeys(("spsa", "square", "fab"), 0.5), "fgsm": 1}
_STRENGTH |= {"pgd": 2, "apgd": 2, "autoattack": 3}
_STEPS = {"pgd": 20, "apgd": 100, "autoattack": 100}  # where the text has none
_TRAVEL = 2.0  # radii that an attack's steps must be able to go to be compared with one step of a whole radius


def out_of_order(manifest: Manifest, condition: str, rights: Mapping[str, Outcomes]) -> list[Finding]:
    """Return what is odd about an attack next to clean and weaker attacks, whose answers `rights` has."""
    pairs, start = [], starts_from(condition)
    for weaker in rights:
        if not _is_above(manifest, condition, weaker):
            continue
        ours, theirs, *clean = aligned_outcomes([rights[name] for name in (condition, weaker, start) if name in rights])
        if clean and _labels(manifest, condition) != "true":  # the way from a wrong prediction may lead to a right one
            ours, theirs = ours[clean[0]], theirs[clean[0]]
        more, fewer = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        if weaker == start:  # a share above clean says that the attack did worse than none
            odd = more > fewer and (not fewer or sign_test(more, fewer) <= OFTEN)
        else:
            odd = more - fewer > LEAST * len(ours) and sign_test(more, fewer) < CHANCE
        if odd:
            what = "correct that were wrong before the attack" if weaker == start else f"correct that {weaker} broke"
            pairs.append(f"it left {more} of {len(ours)} samples {what}, and {fewer} the other way round")
    return [Finding.of(_ORDER, figure=", ".join(pairs))] if pairs else []


def contradicted(
    manifest: Manifest, condition: str, outcomes: Outcomes, figures: Mapping[str, Any] | None
) -> list[Finding]:
    """Return a finding where an attack left standing what the PGD of its evidence broke. figures: not trusted."""
    ids, fell, steps = (figures or {}).get("sample_ids"), (figures or {}).get("fell"), (figures or {}).get("loss_steps")
    claim, name = manifest.claims.get(condition), kind_of(condition)
    if not (isinstance(ids, list) and isinstance(fell, list) and isinstance(steps, list) and len(ids) == len(fell)):
        return []
    if claim is None or not claim.eps or not steps or not isinstance(steps[-1], int):
        return []
    strong = _STRENGTH.get(name, 0) >= _STRENGTH["pgd"] and _steps(condition) >= steps[-1]
    if not strong or _travel(condition, claim.eps) < _TRAVEL:
        return []
    broke = {str(sample): bool(gone) for sample, gone in zip(ids, fell, strict=True) if gone in (0, 1)}
    answers = zip(outcomes.ids.to_pylist(), outcomes.right, strict=True)
    both = [(right, broke[sample]) for sample, right in answers if sample in broke]
    more, fewer = sum(right and gone for right, gone in both), sum(not right and not gone for right, gone in both)
    if not (more > fewer and sign_test(more, fewer) < CONTRADICTED):
        return []
    what = f"it left {more} of {len(both)} samples correct that PGD with {steps[-1]} steps broke as evidence"
    return [Finding.of(_ORDER, figure=f"{what}, and {fewer} the other way round")]


def checks_of_order(findings: Sequence[Finding]) -> list[Sign]:
    ours = dict.fromkeys(each for each in findings if each.code == _ORDER)
    return [Sign("attacks in order", each.text.split(": ")[1], each) for each in ours]


def _is_above(manifest: Manifest, condition: str, weaker: str) -> bool:
    """Whether the attack must do at least what `weaker` does: at the same eps, and with steps enough for it."""
    strength, other = _STRENGTH.get(kind_of(condition), 0), _STRENGTH.get(kind_of(weaker), math.inf)
    claims, start = manifest.claims, starts_from(condition)
    if condition not in claims or not claims[condition].eps or strength <= other or 0 < other < 1:
        return False
    ours = claims[condition].norm, claims[condition].eps, _labels(manifest, condition), start
    if not other:
        return weaker == start and _labels(manifest, condition) == "true"
    if weaker not in claims:
        return False
    theirs = claims[weaker].norm, claims[weaker].eps, _labels(manifest, weaker), starts_from(weaker)
    enough = _travel(condition, claims[condition].eps) >= _TRAVEL and _steps(condition) >= _steps(weaker)
    return ours == theirs and enough


def _steps(condition: str) -> int:
    """Return the updates of an attack from its text, over all restarts; 1 for a single step."""
    counts = {key: int(count) for key, count in re.findall(r"(steps|restarts)=(\d+)", condition)}
    return counts.get("steps", _STEPS.get(kind_of(condition), 1)) * counts.get("restarts", 1)


def _travel(condition: str, eps: float) -> float:
    """Return how many radii the steps of PGD go in all; infinity for attacks that choose their own."""
    if kind_of(condition) != "pgd":
        return math.inf if _steps(condition) >= 10 else 0.0
    size = re.search(r"step_size=([\d.e+-]+)(\*eps)?", condition)
    step = 0.15 if size is None else float(size[1]) / (1 if size[2] else eps)
    return step * _steps(condition)


def _labels(manifest: Manifest, condition: str) -> str:
    return str(manifest.protocol.parameters.get(kind_of(condition), {}).get("labels", manifest.protocol.labels))


class OrderOfAttacks(Overview):
    """Which attacks left standing what weaker ones broke, and how much of what all of them broke each did."""

    def __init__(self, reading: RecordReader) -> None:
        self.manifest, self.rights = reading.manifest, dict[str, Outcomes]()
        self.evidence = partial(reading.run.evidence, reading.checkpoint)
        self.strengths, self.noted = Strengths(reading), dict[str, Sequence[Finding]]()

    def take(self, condition: str, read: pa.Table, findings: Sequence[Finding]) -> None:
        if kind_of(condition) in _STRENGTH:
            self.rights[condition] = Outcomes.of(read)
        self.strengths.take(condition, read)
        if condition in self.manifest.claims:
            self.noted[condition] = findings

    def rows(self) -> Iterator[Figure]:
        for condition, flags in self.noted.items():
            yield from (figure.of(condition, BROKEN.name, flags) for figure in self.strengths.broken(condition))
            if samples_named(condition):
                by = supporting(condition, self.manifest.conditions)
                tables = [self.strengths.table(text) for text in (condition, by)]
                table, others = (each and each.select(["sample_id", "correct"]) for each in tables)
                if table is not None and others is not None:
                    yield from supported_rows(condition, TOP1, table, by, others, flags)

    def findings(self) -> dict[str, list[Finding]]:
        by_condition = {}
        for condition, right in self.rights.items():
            raised = out_of_order(self.manifest, condition, self.rights)
            if condition in self.manifest.evidence:
                raised += contradicted(self.manifest, condition, right, self.evidence(condition))
            by_condition[condition] = raised
        return {condition: raised for condition, raised in by_condition.items() if raised}
