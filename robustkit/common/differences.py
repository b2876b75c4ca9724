"""Differences between two figures: intervals and p-values. Of the same samples they know of the pairing; of two groups
of samples, only shares are compared (`of_groups`, `hypergeometric_tail`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtrc, betainc, betaincinv, gammaln, stdtr, stdtrit

from .groups import Groups, grouped_mean
from .intervals import Floats, Interval, Z, error_of_parts, error_parts, wilson

MCNEMAR, MID_P = "McNemar's exact test", "McNemar's mid-p test"
STUDENT, NORMAL = "Student's t", "a normal approximation"
WILCOXON, CLUSTER_TEST = "Wilcoxon's signed-rank test", "a cluster-robust test"
_ROUNDING = 1e-12  # a standard error, relative to the mean, that sums of equal numbers can have
_HALVINGS = 60  # which find an end of an interval to a float's precision


@dataclass(frozen=True)
class Difference:
    """The second figure minus the first, of the same n samples, with a 95 % interval. The interval holds 0 wherever
    p_value (two-sided, of no difference) is at least 0.05; both are nan where the samples show no spread, except that
    the sign test gives the p-value where all differ alike. first, second: the two figures. test: its name.
    """

    value: float
    n: int
    ci_low: float
    ci_high: float
    p_value: float
    first: float = math.nan
    second: float = math.nan
    test: str = ""
    groups: int = 0
    """Groups that the samples are in; 0 where each is taken to be independent."""
    changed: tuple[int, int] | None = None
    """Of McNemar's test, how many samples are right the second time only, and the first only."""

    @property
    def complement(self) -> Difference:
        """The difference of 1 minus the second figure and 1 minus the first: of accuracies, where it is of errors."""
        turned = replace(self, value=-self.value, ci_low=-self.ci_high, ci_high=-self.ci_low)
        return replace(turned, first=1 - self.first, second=1 - self.second)

    def by_mid_p(self) -> Difference:
        """Return it with the mid-p form of McNemar's test (Fagerland, Lydersen and Laake 2013): less conservative, and
        at its level in practice though not in theory. Unchanged where another test was made."""
        if self.changed is None or not any(self.changed):
            return self
        low, high = of_outcomes(*self.changed, self.n, mid=True)
        return replace(self, ci_low=low, ci_high=high, p_value=_mcnemar(*self.changed, mid=True), test=MID_P)


def of_means(before: Floats, after: Floats, binary: bool, groups: Groups | None = None) -> Difference:
    """Return how the means of two (n,) figures differ; nan where some are not finite. binary: right or wrong. groups:
    samples of one may resemble each other, so that `grouped_mean` tests and bounds the differences."""
    n, test = len(before), CLUSTER_TEST if groups else MCNEMAR if binary else STUDENT
    with np.errstate(invalid="ignore"):
        differences: Floats = after - before
        first, second = float(before.mean()), float(after.mean())
    if not np.isfinite(differences).all():
        return Difference(math.nan, n, math.nan, math.nan, math.nan, first, second, test)
    value = float(differences.mean())
    if groups is not None:
        mean = grouped_mean(differences, groups)
        p_value = mean.p_value if math.isfinite(mean.p_value) else _mcnemar(groups.count if value else 0, 0)
        low, high = (mean.low, mean.high) if math.isfinite(mean.p_value) else (math.nan, math.nan)
        return Difference(value, n, low, high, p_value, first, second, test, groups.count)
    if binary:
        gained, lost = int((differences > 0).sum()), int((differences < 0).sum())
        ends, changed = of_outcomes(gained, lost, n), (gained, lost)
        return Difference(value, n, *ends, _mcnemar(gained, lost), first, second, test, changed=changed)
    error = float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    if error <= _ROUNDING * abs(value):
        return Difference(value, n, math.nan, math.nan, _mcnemar(n if value else 0, 0), first, second, test)
    reach = float(stdtrit(n - 1, 0.975)) * error
    p_value = 2 * float(stdtr(n - 1, -abs(value) / error))
    return Difference(value, n, value - reach, value + reach, p_value, first, second, test)


def of_draws(before: Floats, after: Floats, groups: Groups | None = None) -> Difference:
    """Return how the mean of (n, D) figures differs from that of (n, E) others, where each column is of its own random
    draw. The interval is of other samples and other draws: Student's t with both errors. As many draws on both sides
    are paired. groups: of the samples.
    """
    n, first, second = len(before), float(before.mean()), float(after.mean())
    if before.shape == after.shape:
        parts = error_parts(after - before, groups)
    else:
        per_draw = [part for side in (before, after) for part in error_parts(side)[1:]]
        parts = [error_parts(after.mean(axis=1) - before.mean(axis=1), groups)[0], *per_draw]
    error, freedom = error_of_parts(parts)
    value = second - first
    sides = first, second, STUDENT, groups.count if groups else 0
    if not error > 0:
        return Difference(value, n, math.nan, math.nan, math.nan if value else 1.0, *sides)
    reach, p_value = float(stdtrit(freedom, 0.975)) * error, 2 * float(stdtr(freedom, -abs(value) / error))
    return Difference(value, n, value - reach, value + reach, p_value, *sides)


def of_ranks(before: Floats, after: Floats, groups: Groups | None = None) -> Difference:
    """Return the Hodges-Lehmann shift of (n,) figures, with Wilcoxon's signed-rank test and the interval that it
    inverts to. Figures may be infinite; where both are, they do not differ. Normal approximation, ties included; the
    test leaves differences of 0 out. groups: whose signed ranks are summed first (Rosner, Glynn and Lee 2006). first,
    second: the medians.
    """
    n = len(before)
    with np.errstate(invalid="ignore"):
        differences = np.where(before == after, 0.0, after - before)
    first, second = (float(np.median(side)) if n else math.nan for side in (before, after))
    if not n or np.isnan(differences).any():
        return Difference(math.nan, n, math.nan, math.nan, math.nan, first, second, WILCOXON)
    score = _signed_rank(differences, 0.0, groups)
    p_value = math.erfc(abs(score) / math.sqrt(2))
    low, high = (_shift(differences, score, groups) for score in (Z, -Z))
    value = (_shift(differences, 1e-9) + _shift(differences, -1e-9)) / 2  # between them the score is 0
    if p_value >= 0.05:  # samples without a difference are left out of the test, but not of the interval
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = (end if math.isfinite(end) else math.nan for end in (low, high))
    return Difference(value, n, low, high, p_value, first, second, WILCOXON, groups.count if groups else 0)


def _signed_rank(differences: Floats, shift: float, groups: Groups | None = None) -> float:
    """Return the standard score of Wilcoxon's signed-rank statistic of differences less a shift."""
    left = differences - shift
    differs = left != 0
    left = left[differs]
    if not len(left):
        return 0.0
    _, place, counts = np.unique(np.abs(left), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]  # equal sizes share the mean of their ranks
    signed = np.sign(left) * ranks
    parts = signed if groups is None else np.bincount(groups.codes[differs], signed)
    spread = math.sqrt((parts**2).sum())
    return float(signed.sum() / spread) if spread else 0.0


def _shift(differences: Floats, score: float, groups: Groups | None = None) -> float:
    """Return the shift at which the score passes `score`; infinite where none does."""
    finite = differences[np.isfinite(differences)]
    if not len(finite):
        return float(differences[0])
    low, high = float(finite.min()) - 1.0, float(finite.max()) + 1.0
    if _signed_rank(differences, low, groups) < score:
        return -math.inf
    if _signed_rank(differences, high, groups) > score:
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _signed_rank(differences, middle, groups) > score else (low, middle)
    return (low + high) / 2


def of_outcomes(gained: int, lost: int, n: int, mid: bool = False) -> Interval:
    """Return a 95 % interval of the share of n samples that are right, the second time less the first. gained, lost:
    how many are right the second time only, and the first only. It spans Tango's score interval (1998), that of Clopper
    and Pearson (1934) of the gained among the changed, which agrees with McNemar's exact test, and `rare_share_bound`.
    mid: that of mid-p instead of Clopper and Pearson's.
    """
    changed, value, reach = gained + lost, (gained - lost) / n, rare_share_bound(n)
    low = float(betaincinv(gained, lost + 1, 0.025)) if gained else 0.0
    high = float(betaincinv(gained + 1, lost, 0.975)) if lost else 1.0
    if mid:
        low, high = _mid_p_low(gained, lost), 1.0 - _mid_p_low(lost, gained)
    exact = tuple(changed / n * (2 * end - 1) for end in (low, high))
    score = -_score_end(lost, gained, n), _score_end(gained, lost, n)
    return max(-1.0, min(exact[0], score[0], value - reach)), min(1.0, max(exact[1], score[1], value + reach))


def _mid_p_low(hits: int, misses: int) -> float:
    """Return the share at which `hits` or more, the hits themselves counted half, have a chance of 2.5 %."""
    low, high = 0.0, hits / (hits + misses) if hits else 0.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        tail = float(bdtrc(hits, hits + misses, share) + bdtrc(hits - 1, hits + misses, share)) / 2
        low, high = (share, high) if tail < 0.025 else (low, share)
    return low


def _score_end(gained: int, lost: int, n: int) -> float:
    """Return the largest difference of two paired shares that Tango's score test does not reject at 2.5 %."""
    low, high = (gained - lost) / n, 1.0
    for _ in range(_HALVINGS):
        delta = (low + high) / 2
        half = (2 * n - gained + lost) * delta - gained - lost  # of the quadratic of the likelihood's greatest point
        root = math.sqrt(max(0.0, half * half + 8 * n * lost * delta * (1 - delta)))
        share = (root - half) / (4 * n)  # lost, as a share
        spread = math.sqrt(max(0.0, n * (2 * share + delta * (1 - delta))))
        low, high = (delta, high) if n * delta - gained + lost <= Z * spread else (low, delta)
    return high


def of_resamples(
    before: float, after: float, resampled: Floats, n: int, fewest: int, groups: Groups | None = None
) -> Difference:
    """Return how two figures of n samples differ; resampled: (R,) the difference in each resample, for the standard
    error. Normal approximation; no interval and no p-value of fewer than `fewest` samples, or where that error is 0.
    groups: which were resampled and count in place of samples, by Student's t.
    """
    freedom, test = (math.inf, NORMAL) if groups is None else (groups.effective - 1.0, STUDENT)
    sides = before, after, test, groups.count if groups else 0
    with np.errstate(invalid="ignore"):
        value = after - before
    if not math.isfinite(value) or (n if groups is None else groups.count) < fewest:
        finite = value if math.isfinite(value) else math.nan
        return Difference(finite, n, math.nan, math.nan, math.nan, *sides)
    error = float(resampled[np.isfinite(resampled)].std(ddof=1))
    if not error:
        return Difference(value, n, math.nan, math.nan, math.nan if value else 1.0, *sides)
    if groups is not None:
        reach, p_value = float(stdtrit(freedom, 0.975)) * error, 2 * float(stdtr(freedom, -abs(value) / error))
        return Difference(value, n, value - reach, value + reach, p_value, *sides)
    p_value = math.erfc(abs(value) / error / math.sqrt(2))
    return Difference(value, n, value - Z * error, value + Z * error, p_value, *sides)


def of_groups(hits: int, n: int, other_hits: int, other_n: int) -> Interval:
    """Return Newcombe's 95 % interval of hits/n - other_hits/other_n, shares of two groups of samples (Newcombe 1998,
    method 10). Both groups have samples."""
    share, other = hits / n, other_hits / other_n
    (low, high), (other_low, other_high) = wilson(hits, n), wilson(other_hits, other_n)
    below, above = math.hypot(share - low, other_high - other), math.hypot(high - share, other - other_low)
    return share - other - below, share - other + above


def hypergeometric_tail(n: int, marked: int, drawn: int) -> Floats:
    """Return for each k from 0 to drawn + 1 the probability that `drawn` of n samples hold k of the `marked` or more:
    the p-value of Fisher's exact test, one-sided. (drawn + 2,)"""
    least, most = max(0, drawn + marked - n), min(drawn, marked)
    k = np.arange(least, most + 1, dtype=np.float64)

    def ways(of: float | Floats, chosen: float | Floats) -> Floats:
        return np.asarray(gammaln(of + 1.0) - gammaln(chosen + 1.0) - gammaln(of - chosen + 1.0))

    mass = np.exp(ways(marked, k) + ways(n - marked, drawn - k) - ways(n, drawn))
    tail = np.zeros(drawn + 2)
    tail[:least] = 1.0
    tail[least : most + 1] = np.minimum(mass[::-1].cumsum()[::-1], 1.0)
    return tail


def rare_share_bound(n: int) -> float:
    """Return how large a share may be, at 95 %, of what none of n samples shows (Clopper and Pearson 1934)."""
    return float(1 - 0.025 ** (1 / max(n, 1)))


def needed_unchanged(gap: float) -> float:
    """Return of how many samples without a change the interval of `of_outcomes` reaches no further than `gap`."""
    return 1.0 if gap >= 1 else max(math.log(0.025) / math.log1p(-gap), Z**2 * (1 - gap) / gap)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number (Holm 1979), in their order; nan stays, and counts."""
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: (math.isnan(p_values[i]), p_values[i]))):
        if not math.isnan(p_values[place]):
            largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
            adjusted[place] = largest
    return adjusted


def sign_test(more: int, fewer: int) -> float:
    """Return the chance of at least `more` heads in `more + fewer` throws of a fair coin."""
    return float(betainc(more, fewer + 1, 0.5)) if more else 1.0  # the tail of the binomial distribution


def _mcnemar(gained: int, lost: int, mid: bool = False) -> float:
    """Return the two-sided p-value of the exact binomial test of even odds; mid: what was seen counts half."""
    tail = ways = 1  # of k among those that changed, and of at most k
    for k in range(min(gained, lost)):
        ways = ways * (gained + lost - k) // (k + 1)
        tail += ways
    return float(min(1.0, (2 * tail - ways * mid) / 2 ** (gained + lost)))
