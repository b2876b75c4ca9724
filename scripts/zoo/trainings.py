"""Compare formulas over several trainings: what another seed would change is part of every interval."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from robustkit.common.differences import Difference, of_means
from robustkit.errors import RobustkitError

from .evaluate import name_in

Floats = NDArray[np.float64]
Line = Mapping[str, Any]

CROSSED = "seeds and images as random effects"
JOINT = "seeds as blocks, all formulas in one model"
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Contrast:
    """How a formula differs from another. spread: the standard deviation of differences by seed, by the model of all
    formulas; of the two alone where their own seeds spread more.
    """

    difference: Difference
    spread: float


@dataclass(frozen=True)
class Trainings:
    """What `scripts/zoo/evaluate.py` kept of the trainings of one family and recipe.

    Raises:
        RobustkitError: two are of the same formula and seed, or they are of several recipes or data sets.
    """

    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        counted = Counter((line["attention"], line["seed"]) for line in self.lines)
        (formula, seed), count = max(counted.items(), key=lambda item: item[1], default=(("", 0), 0))
        if count > 1:
            raise RobustkitError(f"{count} trainings of {formula}, seed {seed}; a file holds those of one recipe")
        for field in ("recipe", "data"):
            usual = Counter(str(line[field]) for line in self.lines).most_common()
            if len(usual) > 1:
                odd = next(line["checkpoint"] for line in self.lines if line[field] == usual[-1][0])
                raise RobustkitError(f"{odd}: its {field} is not that of the others; a file holds trainings of one")

    def formulas(self) -> list[str]:
        """Return the formulas, standard first, then as often as there are seeds, then by name."""
        count = self.counts()
        return sorted(count, key=lambda name: (name != "standard", -count[name], name))

    def counts(self) -> Counter[str]:
        """Return how many trainings there are of each formula."""
        return Counter(line["attention"] for line in self.lines)

    def whole(self, condition: str) -> str:
        """Return the text of a condition in the lines: `pgd(eps=2/255,steps=20)` for `pgd`, the only one of its kind.

        Raises:
            RobustkitError: it is not the same in all lines.
        """
        names = {name: line["checkpoint"] for line in self.lines if (name := name_in(line, condition))}
        if len(names) > 1:
            (first, one), (second, other), *_ = names.items()
            raise RobustkitError(f"{one} has {first} and {other} {second}; a file holds trainings with one of them")
        return next(iter(names), condition)

    def column(self, condition: str, metric: str) -> list[float]:
        """Return a figure of each training, nan where it has none. condition: as in the lines, or its kind."""
        name = self.whole(condition)
        return [float(line["figures"].get(name, {}).get(metric, math.nan)) for line in self.lines]

    def values(self, formula: str, condition: str, metric: str) -> dict[int, float]:
        """Return a figure of each seed of a formula, where it is a number."""
        pairs = zip(self.lines, self.column(condition, metric), strict=True)
        return {line["seed"]: value for line, value in pairs if line["attention"] == formula and math.isfinite(value)}

    def right(self, formula: str, condition: str) -> dict[int, NDArray[np.bool_]]:
        """Return for each seed which samples were right, (n,).

        Raises:
            RobustkitError: the share of them is not the accuracy that is kept.
        """
        found, condition = {}, self.whole(condition)
        for line in self.lines:
            if line["attention"] == formula and condition in line["right"]:
                packed = np.frombuffer(base64.b64decode(line["right"][condition]), np.uint8)
                bits = np.unpackbits(packed, count=line["images"][condition]).astype(bool)
                accuracy = line["figures"].get(condition, {}).get("top1", math.nan)
                if not abs(bits.mean() - accuracy) < 1e-5:
                    raise RobustkitError(f"{line['checkpoint']}: {bits.mean():.4f} are right, and not {accuracy}")
                found[line["seed"]] = bits
        return found

    def difference(self, formula: str, against: str, condition: str, metric: str) -> Difference | None:
        """Return how a formula differs from another, paired by seed, by Student's t; None for fewer than two seeds."""
        sides = [self.values(name, condition, metric) for name in (against, formula)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if len(seeds) < 2:
            return None
        before, after = (np.array([side[seed] for seed in seeds]) for side in sides)
        return of_means(before, after, binary=False)

    def joint(self, formula: str, against: str, condition: str, metric: str) -> Contrast | None:
        """Return the same in one model of all formulas (`contrast`); None for fewer than two seeds of both, or where
        no figure differs by more than formula and seed.
        """
        alone = self.difference(formula, against, condition, metric)
        if alone is None:
            return None
        values = {name: self.values(name, condition, metric) for name in self.formulas()}
        return contrast({name: by_seed for name, by_seed in values.items() if by_seed}, formula, against, alone)

    def crossed(self, formula: str, against: str, condition: str) -> Difference | None:
        """Return the same of which samples were right, with the images as a second random effect (`crossed`)."""
        sides = [self.right(name, condition) for name in (against, formula)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if len(seeds) < 2:
            return None
        before, after = (np.stack([side[seed] for seed in seeds]).astype(float) for side in sides)
        return crossed(before, after)


def contrast(
    values: Mapping[str, Mapping[int, float]], formula: str, against: str, alone: Difference
) -> Contrast | None:
    """Return how a formula differs from another in a model of all: figure = formula + seed + rest, by least squares.

    values: by formula and seed. alone: the pair's own difference, paired by seed. The rest is taken to spread alike in
    all formulas, which gives its estimate many more degrees of freedom than a pair alone has; where the pair's own
    seeds spread more than that, it is the pair's own t-test that counts, so that a wild formula is not judged by tame
    ones. Where each formula has every seed, the difference is the same whether seeds are fixed or random effects.
    """
    names, seeds = list(values), sorted({seed for by_seed in values.values() for seed in by_seed})
    cells = [(name, seed) for name, by_seed in values.items() for seed in by_seed]
    design = np.zeros((len(cells), len(names) + len(seeds) - 1))
    for row, (name, seed) in enumerate(cells):
        design[row, names.index(name)] = 1
        if seed != seeds[0]:
            design[row, len(names) + seeds.index(seed) - 1] = 1
    y = np.array([values[name][seed] for name, seed in cells])
    effects, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(cells) - int(rank)
    weights = np.zeros(design.shape[1])
    weights[[names.index(formula), names.index(against)]] = 1, -1
    variance = float(((y - design @ effects) ** 2).sum()) / freedom
    error = math.sqrt(variance * float(weights @ np.linalg.pinv(design.T @ design) @ weights))
    own = spread_of(alone) / math.sqrt(alone.n)
    if own > error:
        return Contrast(alone, own * math.sqrt(alone.n))
    value = float(weights @ effects)
    if error <= _ROUNDING * max(1.0, abs(value)):
        return None
    reach, p_value = float(t.ppf(0.975, freedom)) * error, 2 * float(t.sf(abs(value) / error, freedom))
    found = Difference(value, alone.n, value - reach, value + reach, p_value, alone.first, alone.second, JOINT)
    return Contrast(found, error * math.sqrt(alone.n))


def crossed(before: Floats, after: Floats) -> Difference:
    """Return how the mean of figures (S, N) of S trainings on N images differs from that of S others, paired by both.

    Trainings and images are both samples of more of their kind: the model is D = mean + training + image + rest, whose
    variances come from the mean squares of a table without replication. Interval and test are those of readers and
    cases in radiology: Student's t with the degrees of freedom of Hillis (2007, Statistics in Medicine 26). No variance
    is below 0, that of trainings neither: two or three that agree by chance say nothing about other images.
    """
    d = after - before
    seeds, images = d.shape
    mean = float(d.mean())
    by_seed, by_image = d.mean(axis=1), d.mean(axis=0)
    rest = d - by_seed[:, None] - by_image + mean
    of_rest = float((rest**2).sum()) / ((seeds - 1) * (images - 1))
    of_seeds = max(images * float(by_seed.var(ddof=1)), of_rest)
    of_images = seeds * float(by_image.var(ddof=1))
    spread = of_seeds + max(of_images - of_rest, 0.0)
    first, second = float(before.mean()), float(after.mean())
    if spread == 0:
        return Difference(mean, seeds, math.nan, math.nan, math.nan, first, second, CROSSED)
    freedom = spread**2 / (of_seeds**2 / (seeds - 1)) if of_seeds else math.inf
    error = math.sqrt(spread / (seeds * images))
    reach = float(t.ppf(0.975, freedom)) * error
    p_value = 2 * float(t.sf(abs(mean) / error, freedom))
    return Difference(mean, seeds, mean - reach, mean + reach, p_value, first, second, CROSSED)


def spread_of(alone: Difference) -> float:
    """Return the standard deviation of differences by seed, from the interval of their t-test; nan where it has none,
    as where all are alike.
    """
    reach = (alone.ci_high - alone.ci_low) / 2
    return reach / float(t.ppf(0.975, alone.n - 1)) * math.sqrt(alone.n)


def means(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over seeds; nan for the latter where there is one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def spread(values: Sequence[float], digits: int) -> str:
    """Return `90.1 ± 0.4`, mean and standard deviation over seeds; the value of one; a dash of none that is finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "–"
    mean, sd = means(finite)
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if len(finite) > 1 else "")
