"""Intervals and tests where samples come in groups, such as frames of a video: samples of a group may resemble each
other, groups are independent.

Means: from sums of residuals over groups (cluster-robust, CR1; Liang and Zeger 1986) and Student's t with G - 1 degrees
of freedom; of fewer groups than `MANY` by inverting the wild cluster bootstrap of that statistic (Cameron, Gelbach and
Miller 2008), which keeps its level where groups are few or of unequal sizes. For anything else `intervals` resamples
whole groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, stdtr, stdtrit

from .figure import FEWEST

_Floats = NDArray[np.float64]
FEW, MANY = 6, 50
"""Groups from which the wild cluster bootstrap can refute at 5 %, and from which Student's t replaces it again."""
EXACT = 15
"""Groups up to which all signs are tried; of more, `_SIGNS` drawn ones."""
_SIGNS = 4096
_CHANCE, _SHUFFLES = 1e-4, 1000
_DEPTH, _DIGITS = 4, 4
_END = r"(?:\.\w+)?$"
_HALVINGS = 40
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each of n samples."""

    codes: NDArray[np.int64]
    """(n,), from 0 to `count` - 1."""
    count: int

    @classmethod
    def of(cls, names: Sequence[str]) -> Groups | None:
        """Return the groups that samples (n,) name, in the order of their names, which decides random signs and draws;
        None where each sample has its own."""
        return cls.numbered(np.unique(np.asarray(names, dtype=str), return_inverse=True)[1])

    @classmethod
    def numbered(cls, numbers: NDArray[np.int64]) -> Groups | None:
        """Return the groups whose numbers samples (n,) give, in the order of these; None where each has its own."""
        every, codes = np.unique(numbers, return_inverse=True)
        return cls(codes.astype(np.int64), len(every)) if len(every) < len(codes) else None

    @cached_property
    def sizes(self) -> _Floats:
        """The samples of each group, (count,)."""
        return np.bincount(self.codes, minlength=self.count).astype(np.float64)

    @property
    def effective(self) -> float:
        """As how many groups of one size they count (Kish 1965)."""
        return len(self.codes) ** 2 / float(self.sizes @ self.sizes)

    @cached_property
    def flipped_sizes(self) -> _Floats:
        """The sums over groups of their sizes, and of the squares of these, with the signs of the bootstrap, (R, 2)."""
        flipped: _Floats = _signs(self.count) @ np.stack([self.sizes, np.square(self.sizes)], axis=1)
        return flipped

    def sums(self, values: _Floats) -> _Floats:
        """Return the sum of (n,) values over each group, (count,)."""
        return np.bincount(self.codes, values, self.count).astype(np.float64, copy=False)

    def only(self, chosen: NDArray[np.bool_]) -> Groups | None:
        """Return the groups of the chosen samples; None where each of these has its own."""
        return Groups.numbered(self.codes[chosen])


def chosen_groups(groups: Groups | None, chosen: NDArray[np.bool_]) -> Groups | None:
    """Return the groups of the chosen of some samples; None where each of these has its own, as without groups."""
    return None if groups is None else groups.only(chosen)


def count_units(groups: Groups | None, n: int) -> int:
    """Return how many of n samples, or groups of them, are independent."""
    return n if groups is None else groups.count


def effective_units(groups: Groups | None, n: int) -> float:
    """Return the same, unequal groups counted as fewer of one size."""
    return n if groups is None else groups.effective


@dataclass(frozen=True)
class GroupedMean:
    """The mean of grouped samples. p_value: two-sided, of a mean of 0; nan where groups do not differ. effect: how many
    times the variance is that of independent samples; nan where these do not differ."""

    value: float
    low: float
    high: float
    p_value: float
    effect: float


def cluster_variance(values: _Floats, groups: Groups) -> float:
    """Return the variance of the mean of (n,) values (CR1); nan of one group."""
    residuals, count = groups.sums(values - values.mean()), groups.count
    return count / (count - 1) * float(residuals @ residuals) / len(values) ** 2 if count > 1 else math.nan


def grouped_mean(values: _Floats, groups: Groups) -> GroupedMean:
    """Return the mean of (n,) values with a 95 % interval, which holds 0 wherever the p-value is at least 0.05. Of one
    group, or where all groups agree, there is neither; equal values have themselves as interval."""
    n, count = len(values), groups.count
    if not np.isfinite(values).all():
        return GroupedMean(float(values.mean()), *[math.nan] * 4)
    value, robust = float(values.mean()), cluster_variance(values, groups)
    alone = float(np.square(values - value).sum()) / max(n - 1, 1) / n
    if not alone > (_ROUNDING * value) ** 2:  # all are the same
        return GroupedMean(value, value, value, math.nan, math.nan)
    effect = robust / alone
    error = math.sqrt(robust) if robust > 0 else math.nan
    if not error > _ROUNDING * abs(value):
        return GroupedMean(value, math.nan, math.nan, math.nan, effect)
    if not FEW <= count < MANY:
        reach = float(stdtrit(count - 1, 0.975)) * error
        p_value = 2 * float(stdtr(count - 1, -abs(value) / error))
        return GroupedMean(value, value - reach, value + reach, p_value, effect)
    wild = _Wild(groups.sums(values), groups)
    return GroupedMean(value, wild.end(value, -error), wild.end(value, error), wild.p_value(0.0), effect)


class _Wild:
    """The wild cluster bootstrap of a mean: under a null, residuals of each group keep or change their sign together.
    sums: (G,) of the groups."""

    def __init__(self, sums: _Floats, groups: Groups) -> None:
        sizes, signs = groups.sizes, _signs(groups.count)
        self.n, self.squares, self.flipped_sizes = len(groups.codes), float(sizes @ sizes), groups.flipped_sizes
        self.sums = float(sums @ sums), float(sums @ sizes)
        self.flipped_sums = signs @ np.stack([sums, sums * sizes], axis=1)

    def p_value(self, null: float) -> float:
        """Return the share of sign changes whose statistic is at least as large as that of the groups as they are."""
        shifts, crossed = (self.flipped_sums - null * self.flipped_sizes).T
        shifts = shifts / self.n
        squares = self.sums[0] - 2 * null * self.sums[1] + null**2 * self.squares
        spreads = squares - 2 * shifts * crossed + shifts**2 * self.squares
        with np.errstate(divide="ignore", invalid="ignore"):
            statistics = np.nan_to_num(np.square(shifts) / np.maximum(spreads, 0.0), nan=0.0, posinf=np.inf)
        return float((statistics >= statistics[0] * (1 - 1e-9)).mean())  # the first signs change nothing

    def end(self, value: float, step: float) -> float:
        """Return the end of the interval in the direction of `step`, a standard error: the mean just not refuted."""
        near, far = value, value + step
        while self.p_value(far) >= 0.05:
            if abs(far - value) > 1e6 * abs(step):
                return math.copysign(math.inf, step)
            near, far = far, far + 2 * (far - value)
        for _ in range(_HALVINGS):
            middle = (near + far) / 2
            near, far = (middle, far) if self.p_value(middle) >= 0.05 else (near, middle)
        return near


@dataclass(frozen=True)
class Suspicion:
    """Samples that may belong together. pattern: a regular expression that finds their groups in ids. effect: the
    design effect."""

    pattern: str
    groups: int
    effect: float


def suspected_groups(ids: Sequence[str], outcomes: _Floats, labels: NDArray[np.int64] | None) -> Suspicion | None:
    """Return how the outcomes (n,) of samples are significantly alike where their ids are: in folders, in sequences
    with a common stem, in stretches of one. Of several groupings that with the largest design effect counts, of those
    with enough groups for an interval, if there are any. labels: (n,); what classes explain is taken out first."""
    left = outcomes - outcomes.mean()
    if labels is not None:
        _, classes = np.unique(labels, return_inverse=True)
        left = outcomes - (np.bincount(classes, outcomes) / np.bincount(classes))[classes]
    suspicions = []
    for pattern, groups in _groupings(ids):
        effect = float(np.square(groups.sums(left)).sum() / np.square(left).sum()) if left.any() else 1.0
        freedom = len(ids) ** 2 / float(groups.sizes @ groups.sizes)
        if chdtrc(freedom, effect * freedom) < _CHANCE and _is_rare(left, groups):
            suspicions.append(Suspicion(pattern, groups.count, effect))
    enough = [each for each in suspicions if each.groups >= FEWEST]
    return max(enough or suspicions, key=lambda each: each.effect, default=None)


def _groupings(ids: Sequence[str]) -> Iterator[tuple[str, Groups]]:
    """Yield expressions that find a group in every id, and the groups: at most half as many as samples."""
    folders = [f"^(?:[^/]*/){{{depth}}}" for depth in range(1, _DEPTH + 1)]
    stretches = [rf"^(.*\d){digits}{_END}" for digits in (r"\d" * count for count in range(1, _DIGITS + 1))]
    for pattern in (*folders, rf"^(.*\D)\d+{_END}", *stretches):
        matches = [re.search(pattern, name) for name in ids]
        if all(matches):
            groups = Groups.of([match[match.re.groups] for match in matches if match])
            if groups is not None and 1 < groups.count <= len(ids) / 2:
                yield pattern, groups


def _is_rare(left: _Floats, groups: Groups) -> bool:
    """Whether no shuffle of what is left makes groups differ as much: few errors are far from normal."""
    generator, most = np.random.Generator(np.random.PCG64(0)), np.square(groups.sums(left)).sum()
    return not any(np.square(groups.sums(generator.permutation(left))).sum() >= most for _ in range(_SHUFFLES))


@lru_cache(maxsize=4)
def _signs(count: int) -> _Floats:
    """Return signs of `count` groups, (R, count), all of them or drawn ones; the first are all positive."""
    if count <= EXACT:
        negative = np.arange(2**count)[:, None] >> np.arange(count) & 1
    else:
        negative = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (_SIGNS, count))
        negative[0] = 0
    return 1 - 2 * negative.astype(np.float64)
