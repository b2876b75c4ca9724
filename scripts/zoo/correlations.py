"""Rank correlations over trainings with a figure held fixed: between formulas, and within each."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from .power import LEVEL

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
