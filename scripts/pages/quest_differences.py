"""Which differences between formulas are beyond chance over several trainings, and which of the published ones show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from robustkit.common.differences import Difference, holm
from robustkit.results.tables import p_text
from scripts.zoo.evaluate import PARTS
from scripts.zoo.trainings import LEVEL, Trainings, seeds_needed, smallest_gap, spread_of

from .quest_figures import FIGURES, Figure
from .writing import markdown

AGAINST = (
    ("quest", "standard"),
    ("qnorm", "standard"),
    ("qknorm-hs", "standard"),
    ("qknorm-ds", "standard"),
    ("elliptical", "standard"),
    ("elliptical-quest", "standard"),
    ("elliptical-quest", "elliptical"),
)
UNRESOLVED = {"top1": 0.002, "nll": 0.005}
"""Published gaps below these are what another seed changes in the paper; there is no order to look for."""
SIZES = {condition: part.limit or 1000 for part in PARTS for condition in part.bits}
ORDERS = SHOWN, OPPOSITE, UNKNOWN = "shown", "the opposite", "cannot tell"


@dataclass(frozen=True)
class Tested:
    """How a figure of a formula differs from that of another, over seeds.

    p: after Holm's correction for the `tests` of its table. images_too: the same with images as a random effect.
    published: the difference in the paper.
    """

    formula: str
    against: str
    figure: Figure
    found: Difference
    p: float = math.nan
    tests: int = 1
    images_too: Difference | None = None
    published: float | None = None

    @property
    def is_beyond_chance(self) -> bool:
        return self.p < LEVEL

    @property
    def is_better(self) -> bool:
        return self.found.value * self.figure.better > 0

    @property
    def order(self) -> str:
        """Whether the published difference shows."""
        if not self.is_beyond_chance or self.published is None:
            return UNKNOWN
        return SHOWN if self.found.value * self.published > 0 else OPPOSITE

    def least(self, tests: int = 1) -> str:
        """Return the smallest difference that as many seeds find with a power of 80 % as one of so many tests, at the
        strictest of Holm's steps; a dash where all seeds differ alike.
        """
        gap = smallest_gap(spread_of(self.found), self.found.n, LEVEL / tests)
        if gap > 1 and self.figure.scale == 100:
            return "over 100"
        return f"{self.figure.scale * gap:.{self.figure.digits}f}" if math.isfinite(gap) else "–"

    def seeds(self, gap: float) -> str:
        """Return how many seeds show a gap as one of `tests`, with a power of 80 %."""
        sd = spread_of(self.found)
        if not math.isfinite(sd):
            return "–"
        count = seeds_needed(gap, sd, LEVEL / self.tests)
        return "over 1000" if count is None else str(count)


def corrected(tested: Sequence[Tested]) -> list[Tested]:
    """Return the same with Holm's p-values for all of them."""
    adjusted = holm([each.found.p_value for each in tested])
    return [replace(each, p=p, tests=len(tested)) for each, p in zip(tested, adjusted, strict=True)]


def from_standard(trainings: Trainings) -> list[Tested]:
    """Return how each figure of each formula differs from that of standard attention."""
    tested = []
    for formula in (name for name in trainings.formulas() if name != "standard"):
        for figure in FIGURES:
            found = trainings.difference(formula, "standard", figure.condition, figure.metric)
            if found is None:
                continue
            size = SIZES.get(figure.condition) if figure.metric == "top1" else None
            both = trainings.crossed(formula, "standard", figure.condition, size) if size else None
            tested.append(Tested(formula, "standard", figure, found, images_too=both))
    return corrected(tested)


def as_published(trainings: Trainings) -> list[Tested]:
    """Return the differences that the paper has, too, and that its seeds resolve."""
    tested = []
    for formula, against in AGAINST:
        for figure in FIGURES:
            sides = figure.papers([against, formula])
            found = trainings.difference(formula, against, figure.condition, figure.metric)
            if sides is None or found is None:
                continue
            gap = sides[1] - sides[0]
            if abs(gap) > UNRESOLVED.get(figure.metric, 0):
                tested.append(Tested(formula, against, figure, found, published=gap))
    return corrected(tested)


def standard_table(tested: Sequence[Tested]) -> str:
    """Return all differences from standard attention; what is beyond chance is bold."""
    count = len(tested)
    power = ("80 % power at", f"as one of {count}")
    heading = ("attention", "figure", "minus standard [95 %]", "p", "p (Holm)", "images random, too", *power)
    rows: list[Sequence[str]] = [heading]
    for each in tested:
        both = "" if each.images_too is None else each.figure.signed(each.images_too)
        cells = (each.figure.signed(each.found), p_text(each.found.p_value), _bold(p_text(each.p), each), both)
        rows.append((each.formula, each.figure.title, *cells, each.least(), each.least(count)))
    return markdown(rows)


def published_table(tested: Sequence[Tested]) -> str:
    """Return for each published difference whether it shows, and how many seeds that would take."""
    seeds = ("seeds: as published", "as here")
    heading = ("attention", "against", "figure", "published", "here [95 %]", "p (Holm)", "order", *seeds)
    rows: list[Sequence[str]] = [heading]
    for each in tested:
        figure, gap = each.figure, each.published or 0.0
        said = f"{figure.scale * gap:+.{figure.digits}f}"
        cells = (said, figure.signed(each.found), p_text(each.p), _bold(each.order, each))
        rows.append((each.formula, each.against, figure.title, *cells, each.seeds(gap), each.seeds(each.found.value)))
    return markdown(rows)


def _bold(text: str, each: Tested) -> str:
    return f"**{text}**" if each.is_beyond_chance else text
