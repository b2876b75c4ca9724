"""Which differences between formulas are beyond chance over several trainings, and which of the published ones show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from robustkit.common.differences import Difference, holm
from robustkit.display.format import p_value as p_text
from scripts.pages.writing import listed, markdown

from .evaluate import PARTS
from .figures import FIGURES, Figure
from .trainings import LEVEL, Contrast, Trainings, seeds_needed, smallest_gap

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
"""Published gaps up to these are what another seed changes in the paper; there is no order to look for."""
BITS = {condition for part in PARTS for condition in part.bits}
ORDERS = SHOWN, OPPOSITE, UNKNOWN = "shown", "the opposite", "cannot tell"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Tested:
    """How a figure of a formula differs from that of another.

    model: in that of all formulas; None where that cannot be. alone: by the pair's own seeds. p, p_alone: after Holm's
    correction for all `tests` of the family. images_too: the pair's own with images as a random effect, and p_images
    after Holm's correction for all of these. published: the difference in the paper.
    """

    formula: str
    against: str
    figure: Figure
    model: Contrast | None
    alone: Difference
    p: float = math.nan
    p_alone: float = math.nan
    p_images: float = math.nan
    tests: int = 1
    images_too: Difference | None = None
    published: float | None = None

    @property
    def found(self) -> Difference:
        """The difference that counts: of the model, or that of the pair alone where there is none."""
        return self.model.difference if self.model else self.alone

    @property
    def is_beyond_chance(self) -> bool:
        return self.p < LEVEL

    @property
    def is_better(self) -> bool:
        return self.found.value * self.figure.better > 0

    @property
    def leaning(self) -> str:
        """Whether it is `more` or `less` robust, or `equally`."""
        return "more" if self.is_better else "less" if self.found.value else "equally"

    @property
    def is_resolved(self) -> bool:
        """Whether the paper has it, and more than another seed changes there."""
        limit = UNRESOLVED.get(self.figure.metric, 0.0)
        return self.published is not None and abs(self.published) > limit + _ROUNDING

    @property
    def order(self) -> str:
        """Whether the published difference shows."""
        if not self.is_beyond_chance or self.published is None:
            return UNKNOWN
        return SHOWN if self.found.value * self.published > 0 else OPPOSITE

    @property
    def leaves_published_out(self) -> bool:
        """Whether the published difference is outside of the interval."""
        return self.published is not None and not self.found.ci_low <= self.published <= self.found.ci_high

    def gap(self, tests: int = 1) -> float:
        """Return the smallest difference that as many seeds find with a power of 80 % as one of so many tests, at the
        strictest of Holm's steps; nan where all seeds differ alike.
        """
        if self.model is None:
            return math.nan
        return smallest_gap(self.model.spread, self.alone.n, LEVEL / tests)

    def could_show(self, tests: int = 1) -> bool:
        """Whether there is such a difference that could be: up to 100 points, or the whole level of the other side."""
        return self.gap(tests) <= (1.0 if self.figure.scale == 100 else abs(self.alone.first))

    def least(self, tests: int = 1) -> str:
        """Return the smallest difference in the figure's unit; a dash where there is none that could be."""
        return f"{self.figure.scale * self.gap(tests):.{self.figure.digits}f}" if self.could_show(tests) else "–"

    def seeds(self, gap: float) -> str:
        """Return how many seeds show a gap as one of `tests`, with a power of 80 %; a dash of none, and of one that the
        level of the other side leaves no room for.
        """
        level = self.alone.first + gap
        if self.model is None or level < 0 or (self.figure.scale == 100 and level > 1):
            return "–"
        return seeds_text(gap, self.model.spread, self.tests)


def seeds_text(gap: float, sd: float, tests: int) -> str:
    """Return how many seeds show a gap as one of so many tests, with a power of 80 %; a dash where none is to be shown.

    sd: of the differences by seed.
    """
    if not gap or not math.isfinite(sd):
        return "–"
    count = seeds_needed(gap, sd, LEVEL / tests)
    return "over 1000" if count is None else str(count)


def compared(trainings: Trainings) -> list[Tested]:
    """Return how each figure of each formula differs from that of standard attention, and from that of another formula
    where the paper has that; with Holm's p-values for all of them.
    """
    pairs = [(name, "standard") for name in trainings.formulas() if name != "standard"]
    pairs += [pair for pair in AGAINST if pair not in pairs]
    tested = []
    for formula, against in pairs:
        for figure in FIGURES:
            alone = trainings.difference(formula, against, figure.condition, figure.metric)
            sides = figure.papers([against, formula]) if (formula, against) in AGAINST else None
            gap = sides[1] - sides[0] if sides else None
            if alone is None:
                continue
            model = trainings.joint(formula, against, figure.condition, figure.metric)
            has_bits = figure.metric == "top1" and figure.condition in BITS
            both = trainings.crossed(formula, against, figure.condition) if has_bits else None
            each = Tested(formula, against, figure, model, alone, images_too=both, published=gap)
            tested += [each] if against == "standard" or each.is_resolved else []
    adjusted = holm([each.found.p_value for each in tested])
    of_pairs = holm([each.alone.p_value for each in tested])
    of_images = iter(holm([each.images_too.p_value for each in tested if each.images_too]))
    return [
        replace(each, p=p, p_alone=own, p_images=next(of_images) if each.images_too else math.nan, tests=len(tested))
        for each, p, own in zip(tested, adjusted, of_pairs, strict=True)
    ]


def untested(trainings: Trainings) -> str:
    """Return which formulas have one training, so that nothing says how far another would move it; '' without any."""
    counts = trainings.counts()
    single = [name for name in trainings.formulas() if counts[name] == 1]
    if not single or len(single) == len(counts):
        return ""
    return f"Shown and not compared, with one training each: {listed(single)}."


def from_standard(tested: Sequence[Tested]) -> list[Tested]:
    """Return those from standard attention."""
    return [each for each in tested if each.against == "standard"]


def as_published(tested: Sequence[Tested]) -> list[Tested]:
    """Return those that the paper has, too, and that its seeds resolve, in the order of its comparisons."""
    found = [each for each in tested if each.is_resolved]
    return sorted(found, key=lambda each: AGAINST.index((each.formula, each.against)))


def standard_table(tested: Sequence[Tested]) -> str:
    """Return all differences from standard attention; what is beyond chance is bold."""
    power = ("80 % power at", f"as one of {tested[0].tests}", "seeds")
    heading = ("attention", "figure", "n", "minus standard [95 %]", "p", "p (Holm)", "pair alone, p", "images, too")
    rows: list[Sequence[str]] = [(*heading, "p (Holm)", *power)]
    for each in tested:
        both = (each.figure.signed(each.images_too), p_text(each.p_images)) if each.images_too else ("", "")
        p_values = (p_text(each.found.p_value), _bold(p_text(each.p), each), p_text(each.alone.p_value))
        cells = (each.figure.signed(each.found), *p_values, *both)
        ends = (each.least(), each.least(each.tests), "" if each.is_beyond_chance else each.seeds(each.found.value))
        rows.append((each.formula, each.figure.title, str(each.alone.n), *cells, *ends))
    return markdown(rows)


def published_table(tested: Sequence[Tested]) -> str:
    """Return for each published difference whether it shows, and where it does not, how many seeds that would take."""
    seeds = ("seeds: as published", "as here")
    heading = ("attention", "against", "figure", "published", "here [95 %]", "p (Holm)", "order", *seeds)
    rows: list[Sequence[str]] = [heading]
    for each in tested:
        figure, gap = each.figure, each.published or 0.0
        said = f"{figure.scale * gap:+.{figure.digits}f}"
        cells = (said, figure.signed(each.found), p_text(each.p), _bold(each.order, each))
        needed = (each.seeds(gap), each.seeds(each.found.value)) if each.order == UNKNOWN else ("–", "–")
        rows.append((each.formula, each.against, figure.title, *cells, *needed))
    return markdown(rows)


def _bold(text: str, each: Tested) -> str:
    return f"**{text}**" if each.is_beyond_chance else text
