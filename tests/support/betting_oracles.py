"""Tests by betting as a person would keep the books: in fractions, a bettor and a sample at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def capitals(values: Sequence[float], bound: float, bets: Sequence[float], shares: Sequence[float]) -> list[Fraction]:
    """Return the capital after each value of all who bet that the mean is above a bound."""
    purses, after = [Fraction(share) for share in shares], []
    for value in values:
        for place, bet in enumerate(bets):
            stake = Fraction(bet) / Fraction(bound)
            purses[place] *= 1 + stake * (Fraction(value) - Fraction(bound))
        after.append(sum(purses, Fraction(0)))
    return after


def verdict(
    values: Sequence[float], bound: float, error: float, bets: Sequence[float], shares: Sequence[float]
) -> tuple[int, int]:
    """Return what is said about a mean, 1 for above, -1 for below, 0 for nothing, and after how many values."""
    above = capitals(values, bound, bets, shares)
    below = capitals([1 - value for value in values], 1 - bound, bets, shares)
    for place, (one, other) in enumerate(zip(above, below, strict=True), start=1):
        if one >= 1 / Fraction(error):
            return 1, place
        if other >= 1 / Fraction(error):
            return -1, place
    return 0, len(values)
