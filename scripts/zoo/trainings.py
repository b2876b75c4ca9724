"""Compare formulas over several trainings: what another seed would change is part of every interval."""

from __future__ import annotations

import base64
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, rankdata, t

from robustkit.common.differences import Difference, of_means
from robustkit.errors import RobustkitError

Floats = NDArray[np.float64]
Groups = NDArray[np.str_]
Line = Mapping[str, Any]

CROSSED = "seeds and images as random effects"
POWER, LEVEL, MOST_SEEDS = 0.8, 0.05, 1000
STEPS = 10_000


@dataclass(frozen=True)
class Trainings:
    """What `scripts/zoo/evaluate.py` kept of the trainings of one family and recipe.

    Raises:
        RobustkitError: two are of the same formula and seed.
    """

    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        counted = Counter((line["attention"], line["seed"]) for line in self.lines)
        (formula, seed), count = max(counted.items(), key=lambda item: item[1], default=(("", 0), 0))
        if count > 1:
            raise RobustkitError(f"{count} trainings of {formula}, seed {seed}; a file holds those of one recipe")

    def formulas(self) -> list[str]:
        """Return the formulas, standard first, then as often as there are seeds, then by name."""
        count = {line["attention"]: 0 for line in self.lines}
        for line in self.lines:
            count[line["attention"]] += 1
        return sorted(count, key=lambda name: (name != "standard", -count[name], name))

    def values(self, formula: str, condition: str, metric: str) -> dict[int, float]:
        """Return a figure of each seed of a formula."""
        return {
            line["seed"]: line["figures"][condition][metric]
            for line in self.lines
            if line["attention"] == formula and metric in line["figures"].get(condition, {})
        }

    def right(self, formula: str, condition: str, n: int) -> dict[int, NDArray[np.bool_]]:
        """Return for each seed which of n samples were right, (n,)."""
        found = {}
        for line in self.lines:
            if line["attention"] == formula and condition in line["right"]:
                packed = np.frombuffer(base64.b64decode(line["right"][condition]), np.uint8)
                found[line["seed"]] = np.unpackbits(packed, count=n).astype(bool)
        return found

    def difference(self, formula: str, against: str, condition: str, metric: str) -> Difference | None:
        """Return how a formula differs from another, paired by seed, by Student's t; None for fewer than two seeds."""
        sides = [self.values(name, condition, metric) for name in (against, formula)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if len(seeds) < 2:
            return None
        before, after = (np.array([side[seed] for seed in seeds]) for side in sides)
        return of_means(before, after, binary=False)

    def crossed(self, formula: str, against: str, condition: str, n: int) -> Difference | None:
        """Return the same of which samples were right, with the images as a second random effect (`crossed`)."""
        sides = [self.right(name, condition, n) for name in (against, formula)]
        seeds = sorted(sides[0].keys() & sides[1].keys())
        if len(seeds) < 2:
            return None
        before, after = (np.stack([side[seed] for seed in seeds]).astype(float) for side in sides)
        return crossed(before, after)


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


def power(gap: float, sd: float, seeds: int, level: float = LEVEL) -> float:
    """Return how often a paired t-test of so many seeds would find a gap. sd: of the differences by seed."""
    if sd == 0:
        return 1.0 if gap else level
    edge, shift = t.ppf(1 - level / 2, seeds - 1), abs(gap) / sd * math.sqrt(seeds)
    edges = edge * _spreads(seeds - 1)
    return float((ndtr(shift - edges) + ndtr(-shift - edges)).mean())


@functools.cache
def _spreads(freedom: int) -> Floats:
    """Return evenly likely estimates of a standard deviation of 1, (STEPS,). Means over them are the non-central t's
    tails, which SciPy's `nct` has nan for here and there.
    """
    shares = (np.arange(STEPS) + 0.5) / STEPS
    spreads: Floats = np.sqrt(chi2.ppf(shares, freedom) / freedom)
    return spreads


def seeds_needed(gap: float, sd: float, level: float = LEVEL) -> int | None:
    """Return the fewest seeds that find a gap with a power of 80 %; None where 1000 do not."""
    low, high = 2, MOST_SEEDS
    if power(gap, sd, high, level) < POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(gap, sd, middle, level) >= POWER else (middle + 1, high)
    return low


def smallest_gap(sd: float, seeds: int, level: float = LEVEL) -> float:
    """Return the smallest gap that so many seeds find with a power of 80 %."""
    return sd * _smallest_effect(seeds, level)


@functools.cache
def _smallest_effect(seeds: int, level: float) -> float:
    low, high = 0.0, 1e5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, seeds, level) >= POWER else (middle, high)
    return high


def spread_of(difference: Difference) -> float:
    """Return the standard deviation of the differences by seed, from the interval of a t-test; nan where it has none,
    as where all are alike.
    """
    reach = (difference.ci_high - difference.ci_low) / 2
    return reach / float(t.ppf(0.975, difference.n - 1)) * math.sqrt(difference.n)


def partial_rank_correlation(x: Floats, y: Floats, held: Floats, groups: Groups | None = None) -> float:
    """Return Spearman's correlation of x and y, (n,), with `held` fixed: the partial correlation of their ranks.

    groups: (n,), such as formulas: the correlation is then of the differences from the mean of a value's own group.
    """
    return float(_partial(*(_centred(values[None], groups) for values in (x, y, held)))[0])


def correlation_interval(
    x: Floats,
    y: Floats,
    held: Floats,
    groups: Groups | None = None,
    draws: int = 2000,
    seed: int = 0,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Return the percentile interval of `partial_rank_correlation` over resampled trainings, 95 % unless `level` says
    otherwise; nan without one.

    Without groups it is of other trainings of the same formulas: figures that have nothing in common but that both
    differ by formula leave 0 out more often than the level says. With groups, trainings are drawn again within each,
    and each draw has means of its own, since they are of few.
    """
    rng, n = np.random.default_rng(seed), len(x)
    if groups is None:
        index = rng.integers(0, n, (draws, n))
    else:
        index = np.zeros((draws, n), np.int64)
        for name in np.unique(groups):
            own = np.flatnonzero(groups == name)
            index[:, own] = rng.choice(own, (draws, len(own)))
    found = _partial(*(_centred(values[index], groups) for values in (x, y, held)))
    finite = found[np.isfinite(found)]
    if not len(finite):
        return math.nan, math.nan
    low, high = np.quantile(finite, [level / 2, 1 - level / 2])
    return float(low), float(high)


def _centred(values: Floats, groups: Groups | None) -> Floats:
    """Return the differences (R, n) from the mean of the own group; the values themselves without groups."""
    if groups is None:
        return values
    centred = values.copy()
    for name in np.unique(groups):
        centred[:, groups == name] -= values[:, groups == name].mean(axis=1, keepdims=True)
    return centred


def _partial(*columns: Floats) -> Floats:
    """Return the partial rank correlation (R,) in each row of x, y and what is held fixed, (R, n)."""
    ranks = [rankdata(values, axis=1) for values in columns]
    ranks = [values - values.mean(axis=1, keepdims=True) for values in ranks]

    def together(a: int, b: int) -> Floats:
        product: Floats = (ranks[a] * ranks[b]).sum(axis=1)
        return product / np.sqrt((ranks[a] ** 2).sum(axis=1) * (ranks[b] ** 2).sum(axis=1))

    with np.errstate(invalid="ignore", divide="ignore"):
        xy, xh, yh = together(0, 1), together(0, 2), together(1, 2)
        partial: Floats = (xy - xh * yh) / np.sqrt((1 - xh**2) * (1 - yh**2))
    return partial


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
