"""The interval of a share measured in two phases: a cheap look at all samples, a dear one at some of the rest."""

from __future__ import annotations

import math

from scipy.special import betaincinv

from .intervals import Interval, Z, wilson

_FEW = 5
_HALVINGS = 60


def two_phase_share(n: int, standing: int, drawn: int, kept: int) -> tuple[float, Interval]:
    """Return (standing / n) · (kept / drawn), the estimated share of all samples that stand, and its 95 % interval.

    Of n samples `standing` stand after the first phase; `drawn` of those, picked at random, went through the second,
    and `kept` still stand. Both phases are samples of the same population, so the interval inverts the score test of
    the product of two proportions (Cochran 1977, chapter 12, has the design). It holds what leaving out costs and what
    n costs: with drawn = standing it is Wilson's of kept out of n. Where fewer than five of those drawn went one way,
    it is recovered from Wilson's interval of the first phase and the exact one of the second (Clopper and Pearson
    1934), whose distances from the estimates add up in squares (MOVER: Zou and Donner 2008, Statistics in Medicine 27).
    """
    if drawn == standing:
        return kept / n, wilson(kept, n)
    share = standing / n * (kept / drawn)
    if min(kept, drawn - kept) < _FEW:
        return share, _recovered(standing / n, wilson(standing, n), kept / drawn, clopper_pearson(kept, drawn))

    def end(bound: float) -> float:
        """Return the share that is just not refuted between the estimate and a bound."""
        inside, outside = share, bound
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            refuted = _score(middle, n, standing, drawn, kept) > Z**2
            inside, outside = (inside, middle) if refuted else (middle, outside)
        return inside

    return share, (end(0.0), end(1.0))


def _recovered(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Return the interval of the product of two independent shares from the intervals of each."""
    low, high = (
        math.hypot(second * (first - one), first * (second - other))
        for one, other in zip(of_first, of_second, strict=True)
    )
    return max(first * second - low, 0.0), min(first * second + high, 1.0)


def _score(share: float, n: int, standing: int, drawn: int, kept: int) -> float:
    """Return the score statistic of a share, which is chi-squared with one degree of freedom where it is the truth.

    The likeliest share p that stands after the first phase, if `share` stands after both, solves a quadratic equation.
    """
    a, b, c = n - kept, standing - kept + share * (n - drawn), share * (standing - drawn)
    first = min(max((b + math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a), share), 1.0)
    return _off(standing, n, first) + _off(kept, drawn, share / first)


def _off(count: int, n: int, share: float) -> float:
    """Return how far a count is from its mean, squared, over its variance."""
    variance = n * share * (1 - share)
    if variance <= 0:
        return 0.0 if math.isclose(count, n * share, abs_tol=1e-9) else math.inf
    return (count - n * share) ** 2 / variance


def clopper_pearson(successes: int, n: int) -> Interval:
    """Return the exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 0.025))
    return low, 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 0.975))
