"""Intervals and calibration: numbers about numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from .figure import BOOTSTRAP, CLUSTERED, FEWEST, WILSON, Figure
from .groups import Groups, cluster_variance, count_units, effective_units, grouped_mean

Floats = NDArray[np.float64]
Interval = tuple[float, float]
NO_INTERVAL = (math.nan, math.nan)
Z = 1.959963984540054
BINS = 15
_TAIL = 0.025
_DRAWS = 2000  # draws for each end of an interval of ECE
_STEPS = 20  # halvings that find it, to a millionth of its range
_ROUNDING = 1e-12  # a relative width that sums of the same numbers in another order can have
_OF_SUMS = 2  # times Satterthwaite's degrees of freedom; in simulations with skewed groups intervals then cover
_ROWS = 2048  # rows held as floats at once


def wilson(successes: float, n: float, z: float = Z) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927); (0, 1) where n is 0. z: the quantile of the normal
    distribution, by default that of 95 %."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    centre = share + z**2 / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    low = 0.0 if successes == 0 else (centre - spread) / scale
    return low, 1.0 if successes == n else (centre + spread) / scale


def mean_of(values: Floats, groups: Groups | None = None) -> Figure:
    """Return the mean of (n,) figures, with an interval by the bootstrap, which few figures have not; of groups, by
    `grouped_mean`."""
    n, mean = len(values), float(values.mean())
    if groups is not None:
        of_groups = grouped_mean(values, groups)
        return grouped_figure(mean, n, (of_groups.low, of_groups.high), groups, of_groups.effect, CLUSTERED)
    return bootstrapped(lambda counts: counts @ values / n, n, mean)


def bootstrapped(
    statistic: Callable[[Floats], Floats], n: int, value: float, groups: Groups | None = None, enough: bool = True
) -> Figure:
    """Return a figure of n samples with its interval by `bootstrap`, which few samples, or few groups, have not.
    enough: False where it has none for another reason."""
    figure, units = Figure(value, n, groups=groups.count if groups else 0), count_units(groups, n)
    if units < FEWEST or not enough:
        return figure
    low, high = bootstrap(statistic, n, [value], groups)[0]
    return replace(figure, low=low, high=high, interval=BOOTSTRAP)


def share_of(hits: Floats | NDArray[np.bool_], groups: Groups | None = None, together: int = 1) -> Figure:
    """Return the share of (n,) samples that are hits, with Wilson's interval; of groups, with that of as many
    independent samples as say as much, by the design effect, and Student's t (Korn and Graubard 1998). Its degrees of
    freedom are fewer where a few groups have most of the rare outcomes, by the kurtosis of the groups' sums. Where
    groups agree, each counts as one sample. together: how many intervals hold at once with 95 % (Bonferroni)."""
    if groups is None or not len(hits):
        return proportion(int(hits.sum()), len(hits), simultaneous_z(together))
    values, n = hits.astype(np.float64), len(hits)
    value, squares = float(values.mean()), np.square(groups.sums(values - values.mean()))
    alone = value * (1 - value) / max(n - 1, 1)
    effect = cluster_variance(values, groups) / alone if alone else math.nan
    samples = n / effect if effect > 0 else float(groups.count)
    of_sums = _OF_SUMS * float(squares.sum()) ** 2 / fourth if (fourth := float(squares @ squares)) else math.inf
    freedom = max(min(groups.effective, of_sums) - 1, 1)
    ends = wilson(value * samples, samples, float(stdtrit(freedom, 1 - _TAIL / together)))
    return grouped_figure(value, n, ends, groups, effect, CLUSTERED)


def grouped_figure(
    value: float, n: int, ends: Interval, groups: Groups, effect: float, interval: str = BOOTSTRAP
) -> Figure:
    """Return a figure of n samples in groups."""
    return Figure(value, n, *ends, interval, groups=groups.count, effect=effect)


def proportion(count: int, n: int, z: float = Z) -> Figure:
    """Return the share of a count among n samples, with Wilson's interval; nan where n is 0."""
    return Figure(count / n, n, *wilson(count, n, z), WILSON) if n else Figure(math.nan, 0)


def simultaneous_z(count: int) -> float:
    """Return the z with which `count` intervals all hold with a probability of 95 % or more (Bonferroni)."""
    return Z if count < 2 else float(-ndtri(_TAIL / count))


def calibration_error(confidence: Floats, correct: Floats) -> float:
    """Return the expected calibration error over 15 bins of equal width (Guo et al. 2017), a fraction."""
    if not len(confidence):
        return math.nan
    sums = np.bincount(_bins(confidence), confidence - correct, BINS)
    return float(np.abs(sums).sum() / len(confidence))


def calibration_gaps(confidence: Floats, correct: Floats) -> Floats:
    """Return (n, 15): confidence minus correctness of each sample in the column of its bin, 0 elsewhere."""
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), _bins(confidence)] = confidence - correct
    return gaps


def _bins(confidence: Floats) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def calibration_interval(confidence: Floats, correct: Floats, groups: Groups | None = None) -> Interval:
    """Return a 95 % interval of `calibration_error` that holds its value, from one fixed stream; nan without samples.
    The estimate is too high, since noise never cancels across bins, and resampled ones more so: no percentile covers.
    So tests are inverted (Carpenter 1999): an end is the error just not refuted, at 2.5 %, by an estimate as large, or
    as small. Numbers per bin are resampled, outcomes are noise about each bin's gap: for the lower end about the
    measured gaps shrunk together, for the upper end about gaps spread like their noise, where they show least.
    groups: resampled as a whole; the noise of a bin is so many times wider as its gaps vary more between them.
    """
    n = len(confidence)
    if not n:
        return math.nan, math.nan
    bins = _bins(confidence)
    gaps = np.bincount(bins, confidence - correct, BINS) / n
    estimate = calibration_error(confidence, correct)
    share = np.bincount(bins, minlength=BINS) / n
    wide = np.where(share > 0, share, 1)
    generator = np.random.Generator(np.random.PCG64(0))
    sizes, wider = generator.multinomial(n, share, _DRAWS) / n / wide, np.ones(BINS)
    if groups is not None:
        sizes, wider = _grouped_bins(bins, confidence - correct, groups, generator)
        sizes = sizes / wide
    noise = wider * generator.standard_normal((_DRAWS, BINS))

    def spread(shrunk: float) -> Floats:
        """Return the noise of each gap, where probabilities of being right are off by so much from those measured."""
        right = np.clip(confidence - (shrunk * gaps / wide)[bins], 0, 1)
        return np.sqrt(np.bincount(bins, right * (1 - right), BINS)) / n

    def estimates(means: Floats, noisy: Floats) -> Floats:
        return np.abs(sizes * means + noise * noisy).sum(axis=1)  # type: ignore[no-any-return]

    def reaches(shrunk: float) -> bool:
        return float((estimates(shrunk * gaps, spread(shrunk)) >= estimate).mean()) > _TAIL

    low = 0.0 if reaches(0) else estimate * _first(reaches)
    noisy = np.maximum(spread(0), spread(1))
    if not noisy.any():
        return low, estimate
    hidden = np.copysign(noisy, gaps) / noisy.sum()

    return low, max(estimate, _first(lambda e: float((estimates(e * hidden, noisy) <= estimate).mean()) <= _TAIL))


def _grouped_bins(
    bins: NDArray[np.int64], gaps: Floats, groups: Groups, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the shares of samples in each bin when whole groups are drawn, (_DRAWS, BINS), and how much wider the
    noise of each bin's gap is than that of independent samples, at least 1."""
    cells = groups.codes * BINS + bins
    counts, sums = (np.bincount(cells, each, groups.count * BINS).reshape(-1, BINS) for each in (None, gaps))
    means = sums.sum(axis=0) / np.maximum(counts.sum(axis=0), 1)
    together = np.square(sums - counts * means).sum(axis=0) * groups.count / max(groups.count - 1, 1)
    alone = np.bincount(bins, np.square(gaps - means[bins]), BINS)
    sizes = generator.multinomial(groups.count, np.full(groups.count, 1 / groups.count), _DRAWS) @ counts
    wider = np.sqrt(np.maximum(1.0, np.divide(together, alone, out=np.ones(BINS), where=alone > 0)))
    return sizes / sizes.sum(axis=1, keepdims=True), wider


def _first(holds: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def bootstrap(
    statistic: Callable[[Floats], Floats], n: int, values: Sequence[float] | Floats, groups: Groups | None = None
) -> list[Interval]:
    """Return 95 % intervals of figures of n resampled samples, from one fixed stream, so that they repeat.

    statistic: from how often each sample was drawn, (R, n), to one or several figures per resample. values:
    the figures of the samples themselves, which their intervals hold. groups: drawn as a whole. See `intervals`.
    """
    return intervals(resampled_figures(statistic, n, groups), effective_units(groups, n), values)


ErrorPart = tuple[float, float]  # A squared standard error, and its degrees of freedom


def draws_interval(figures: Floats, groups: Groups | None = None) -> Interval:
    """Return the 95 % interval, over other samples and draws, of the mean of (n, D) figures in [0, 1]; nan for one."""
    error, freedom = error_of_parts(error_parts(figures, groups))
    if math.isnan(error):
        return math.nan, math.nan
    value, reach = float(figures.mean()), float(stdtrit(freedom, 1 - _TAIL)) * error if error else 0.0
    return max(0.0, value - reach), min(1.0, value + reach)


def error_parts(figures: Floats, groups: Groups | None = None) -> list[ErrorPart]:
    """Return the errors of samples, and of draws, in the mean of (n,) or (n, D) figures; rather too large (crossed)."""
    means = [figures.mean(axis=1), figures.mean(axis=0)] if figures.ndim > 1 else [figures]
    parts = [(float(m.var(ddof=1)) / len(m) if len(m) > 1 else math.nan, len(m) - 1.0) for m in means]
    return parts if groups is None else [(cluster_variance(means[0], groups), groups.count - 1.0), *parts[1:]]


def error_of_parts(parts: Sequence[ErrorPart]) -> tuple[float, float]:
    """Return the standard error of a sum of independent parts, and its degrees of freedom (Satterthwaite 1946)."""
    squared = math.fsum(part for part, _ in parts)
    if not squared > 0:
        return squared, math.inf
    return math.sqrt(squared), squared**2 / math.fsum(part**2 / freedom for part, freedom in parts if part)


def resampled_figures(statistic: Callable[[Floats], Floats], n: int, groups: Groups | None = None) -> Floats:
    """Return the figures of `bootstrap`'s resamples, (R, K), from which its intervals are made."""
    blocks = (statistic(block.astype(np.float64)) for block in _drawn(n, groups))
    return np.concatenate([np.atleast_2d(figures.T).T for figures in blocks])


def intervals(figures: Floats, n: float, values: Sequence[float] | Floats) -> list[Interval]:
    """Return the 95 % interval of each of K figures of n samples, which holds it, from those of R resamples, (R, K)."""
    with np.errstate(invalid="ignore"):  # infinite figures have no interval
        low, high = np.percentile(figures, percentiles(n), axis=0)
    return [include_estimate(*map(float, ends)) for ends in zip(values, low, high, strict=True)]


def percentiles(n: float) -> tuple[float, float]:
    """Return which percentiles of resamples of n samples are the ends of a 95 % interval. Those of the expanded
    percentile interval (Hesterberg 2015): plain ones are too narrow by sqrt(1 - 1/n) and Student's tails, and would
    hold the mean of 10 normal samples in 89 % instead of 95.
    """
    tail = 100 * float(ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, _TAIL))) if n > 1 else 0.0
    return tail, 100 - tail


def basic_ends(drawn: Floats, value: float, groups: Groups | None, n: int, most: float = 1.0) -> Interval:
    """Return the 95 % interval of a figure of n samples by the basic bootstrap, from (R,) resamples. A sample that is
    drawn twice makes mAP larger, so that percentiles of resamples would be too high (Davison and Hinkley 1997, 5.2).
    Of a perfect figure, or one of 0, resamples say nothing: its interval is Wilson's of as many samples."""
    finite, units = drawn[np.isfinite(drawn)], n if groups is None else groups.count
    if min(n, units) < FEWEST or not len(finite):
        return NO_INTERVAL
    if min(abs(value), abs(value - most)) < _ROUNDING and (abs(finite - value) < _ROUNDING).all():
        return wilson(value * units, units)
    low, high = np.percentile(finite, percentiles(n if groups is None else groups.effective))
    low, high = include_estimate(value, 2 * value - float(high), 2 * value - float(low))
    return max(low, 0.0), min(high, most)


def include_estimate(value: float, low: float, high: float) -> Interval:
    """Return an interval widened to its own estimate, so that rules about both agree; a width of rounding becomes 0."""
    if 0 <= high - low <= _ROUNDING * max(abs(low), abs(high)) < math.inf:
        return value, value
    return min(low, value), max(high, value)  # nan stays nan


def resampled_sums(
    rows: Callable[[slice], Floats], n: int, resample: bool = True, groups: Groups | None = None
) -> Floats:
    """Sum over n samples and over each of `bootstrap`'s resamples of them, (1 + R, K), a block of rows at a time. rows:
    from a slice of samples to their figures, (…, K), whole numbers, so that order makes no difference. resample: False
    gives (1, K).
    """
    counts = np.concatenate([np.ones((1, n), np.uint8), *(_drawn(n, groups) if resample else ())])
    total: Floats = np.zeros(())
    for start in range(0, n, _ROWS):
        some = slice(start, start + _ROWS)
        total = total + counts[:, some].astype(np.float64) @ rows(some)
    return total


def _drawn(n: int, groups: Groups | None) -> Iterable[NDArray[np.uint8]]:
    """Return how often each of n samples is drawn in each resample, as `_resamples`; those of a group together."""
    if groups is None:
        return _resamples(n)
    counts = np.concatenate(_resamples(groups.count))
    return (block[:, groups.codes] for block in np.array_split(counts, max(1, n * len(counts) // 1_000_000)))


@lru_cache(maxsize=2)
def _resamples(n: int) -> list[NDArray[np.uint8]]:
    """Yield how often each of n samples is drawn in each resample, in blocks of at most a million figures."""
    generator = np.random.Generator(np.random.PCG64(0))
    resamples = int(min(1000, max(200, 5_000_000 // max(n, 1))))
    counts = np.empty((resamples, n), np.uint8)
    for row in counts:
        row[:] = np.bincount(generator.integers(0, n, n), minlength=n)
    return np.array_split(counts, max(1, counts.size // 1_000_000))
