"""Whether the mean of a stream of values in [0, 1] is above or below a bound, decided at any time that one likes.

A bettor begins with a capital of 1 and bets before each value that the mean is above the bound. Where it is not, the
game is not in their favour: the capital is a non-negative supermartingale, and the probability that it ever reaches 1/a
is at most a (Ville 1939), however often and for whatever reason one looks. So a capital of 1/a refutes that the mean is
at most the bound, with an error of a.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS-B 86(1): capital
processes, and diversified Kelly betting. docs/concepts/statistics.md has the formulas.
"""

from __future__ import annotations

import math

import numpy as np

from .intervals import Floats

_STEPS = np.arange(13)
BETS = 0.99 * 2.0 ** (-_STEPS / 2)
"""What each bettor bets, as a share of the most that no value can ruin: from 0.99 down to 1/65."""
SHARES = 2.0 ** (-_STEPS / 6) / (2.0 ** (-_STEPS / 6)).sum()
"""The share of the capital that each begins with: a quarter of a step's bet less, an eighth of the capital less."""


class Capital:
    """The capital of those who bet that a mean is above a bound in (0, 1).

    It needs no variance and tunes nothing: the best of the bets soon holds nearly all of it.
    """

    def __init__(self, bound: float) -> None:
        self._logs, self._bets, self._bound = np.log(SHARES), BETS / bound, bound

    def take(self, values: Floats) -> Floats:
        """Bet on further values, (n,) in [0, 1]; return the logarithm of the capital after each of them, (n,)."""
        growth = np.log1p(np.outer(values - self._bound, self._bets)).cumsum(axis=0)
        every = self._logs + growth
        if len(values):
            self._logs = every[-1]
        return np.asarray(np.logaddexp.reduce(every, axis=1))


class SequentialTest:
    """A test of whether the mean of a stream of values is above or below a bound, looked at after every value.

    bound: in (0, 1). error: the most that the probability may be of saying `above` where the mean is at most the bound,
    and of saying `below` where it is at least the bound. The bettors of the two sides do not know of each other.

    said: 1 for above, -1 for below, 0 while nothing is decided. taken: values until then; later ones are not looked at.
    total: their sum.
    """

    def __init__(self, bound: float, error: float) -> None:
        self.bound, self.error = bound, error
        self.said, self.taken, self.total = 0, 0, 0.0
        self._above, self._below = Capital(bound), Capital(1 - bound)

    def take(self, values: Floats) -> None:
        """Take further values, (n,). Raises ValueError where one is outside [0, 1], or no number."""
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"values from {values.min()} to {values.max()}; expected values in [0, 1]")
        if self.said:
            return
        enough = -math.log(self.error)
        reached = [side >= enough for side in (self._above.take(values), self._below.take(1 - values))]
        ends = [int(side.argmax()) if side.any() else len(values) for side in reached]
        used = min(min(ends) + 1, len(values))
        if min(ends) < len(values):
            self.said = 1 if ends[0] < ends[1] else -1
        self.taken += used
        self.total += float(values[:used].sum())

    @property
    def mean(self) -> float:
        """The mean of the values that were taken; nan without any."""
        return self.total / self.taken if self.taken else math.nan
