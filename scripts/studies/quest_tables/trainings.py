"""Compare formulas over several trainings: what another seed would change is part of every interval."""

from __future__ import annotations

import base64
import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, norm, rankdata, t

from robustkit.common.differences import Difference, of_means
from robustkit.errors import RobustkitError

from .evaluate import name_in

POWER, LEVEL, MOST_SEEDS = 0.8, 0.05, 1000
STEPS, DRAWS = 10_000, 20_000


def power(gap: float, sd: float, seeds: int, level: float = LEVEL) -> float:
    """Return how often a paired t-test of so many seeds would find a gap. sd: of the differences by seed.

    By the test of `trainings.contrast`, which takes the larger of two estimates of the spread, a gap that is found four
    times out of five is as large within a twentieth (simulated). Not so of smaller ones: with the degrees of freedom of
    all formulas some are found about every second time, where a paired t-test hardly finds any.
    """
    if sd == 0:
        return 1.0 if gap else level
    edge, shift = t.ppf(1 - level / 2, seeds - 1), abs(gap) / sd * math.sqrt(seeds)
    edges = edge * _spreads(seeds - 1)
    return float((ndtr(shift - edges) + ndtr(-shift - edges)).mean())


@functools.cache
def _spreads(freedom: int) -> NDArray[np.float64]:
    """Return evenly likely estimates of a standard deviation of 1, (STEPS,). Means over them are the non-central t's
    tails, which SciPy's `nct` has nan for here and there.
    """
    shares = (np.arange(STEPS) + 0.5) / STEPS
    spreads: NDArray[np.float64] = np.sqrt(chi2.ppf(shares, freedom) / freedom)
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


@functools.cache
def level_if_wild(seeds: int, formulas: int, level: float = LEVEL, times: float = 3.0) -> float:
    """Return how often the test of `trainings.contrast` finds a difference that is not there, where the seeds of one
    formula spread so many times as wide as those of the others; simulated.
    """
    rng, found, rounds = np.random.default_rng(0), 0, 10
    freedom = (seeds - 1) * (formulas - 1)
    by_pair, by_model = (t.ppf(1 - level / 2, many) for many in (seeds - 1, freedom))
    for _ in range(rounds):
        table = rng.standard_normal((DRAWS, formulas, seeds))
        table[:, 1] *= times
        rest = table - table.mean(axis=2, keepdims=True) - table.mean(axis=1, keepdims=True)
        rest += table.mean(axis=(1, 2), keepdims=True)
        gaps = table[:, 1] - table[:, 0]
        own, model = gaps.var(axis=1, ddof=1), 2 * (rest**2).sum(axis=(1, 2)) / freedom
        reach = np.where(own > model, by_pair, by_model) * np.sqrt(np.maximum(own, model) / seeds)
        found += int((abs(gaps.mean(axis=1)) > reach).sum())
    return found / (rounds * DRAWS)


def smallest_correlation(n: int, groups: int, level: float = LEVEL) -> float:
    """Return the partial rank correlation within groups that n values show about seven times out of ten.

    By Fisher's z, with the variance of ranks by Fieller (1957), one value held fixed and a mean taken from each group,
    it would be four out of five; intervals over resampled trainings find fewer (simulated).
    """
    left = n - (groups - 1) - 1
    reach = float(norm.ppf(1 - level / 2) + norm.ppf(POWER)) * math.sqrt(1.06 / (left - 3))
    return math.tanh(reach)


Floats = NDArray[np.float64]
Groups = NDArray[np.str_]

_ALL_ORDERS = 7  # groups: up to here all orders of them are looked at, above so many random ones
_ORDERS = 5040
_ROUNDING = 1e-9


def partial_rank_correlation(x: Floats, y: Floats, held: Floats, groups: Groups | None = None) -> float:
    """Return Spearman's correlation of x and y, (n,), with `held` fixed: the partial correlation of their ranks.

    groups: (n,), such as formulas: the correlation is then of the differences from the mean of a value's own group.
    """
    rows = [values[None] if groups is None else _centred(values[None], groups) for values in (x, y, held)]
    return float(_partial(*rows)[0])


def correlation_interval(
    x: Floats, y: Floats, held: Floats, groups: Groups, draws: int = 2000, seed: int = 0, level: float = LEVEL
) -> tuple[float, float]:
    """Return the percentile interval of `partial_rank_correlation` within groups over resampled trainings, 95 % unless
    `level` says otherwise; nan without one. Trainings are drawn again within each group, and each draw has means of its
    own, since they are of few.
    """
    rng, n = np.random.default_rng(seed), len(x)
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


def chance_between(x: Floats, y: Floats, held: Floats, groups: Groups) -> float:
    """Return how often a correlation over all values is as far from 0 as the one seen, where what a group's mean of x
    has beyond its mean of `held` is chance: the share of all orders of the groups, of 5040 random ones above seven.

    Values of one group are alike, so that n values are not n independent ones, and a test that took them so would find
    correlations of anything with anything that differs by group. What is moved between groups are the residuals of
    their means on those of `held` (Freedman and Lane 1983, J. Bus. Econ. Stat. 1): x and y may both follow it.

    x, y, held, groups: (n,). nan where there is no correlation.
    """
    names, place = np.unique(groups, return_inverse=True)
    count = len(names)
    means, of_held = (np.array([v[place == group].mean() for group in range(count)]) for v in (x, held))
    slope = np.polyfit(of_held, means, 1) if np.ptp(of_held) > 0 else np.array([0.0, means.mean()])
    fitted = np.polyval(slope, of_held)
    orders = group_orders(count)
    moved = (x - means[place]) + (fitted + (means - fitted)[orders])[:, place]
    moved[0] = x  # the order as it is, without rounding
    found = np.abs(_partial(moved, *(np.broadcast_to(values, moved.shape) for values in (y, held))))
    return float((found >= found[0] - _ROUNDING).mean()) if math.isfinite(found[0]) else math.nan


def group_orders(count: int) -> NDArray[np.int64]:
    """Return the orders of groups that are looked at, (R, count), the one as they are first."""
    if count <= _ALL_ORDERS:
        return np.array(list(itertools.permutations(range(count))))
    rng = np.random.default_rng(0)
    return np.array([np.arange(count), *(rng.permutation(count) for _ in range(_ORDERS - 1))])


def _centred(values: Floats, groups: Groups) -> Floats:
    """Return the differences (R, n) from the mean of the own group."""
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
    """What `scripts/studies/quest_tables/evaluate.py` kept of the trainings of one family and recipe.

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
