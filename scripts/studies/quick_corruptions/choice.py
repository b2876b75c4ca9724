"""The three corruptions at one severity whose mean error is nearest to that of a whole set, and how near it is.

Every function takes checkpoints as `Errors`; `chosen` looks at every severity with every three kinds, so that a result
depends on nothing but the errors and the order of kinds, which decides between equals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

SEVERITIES, KINDS = (1, 2, 3, 4, 5), 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """A checkpoint on n images of a data set. wrong: by kind, how many were misclassified at severities 1 to 5.
    apart: it takes no part in any choice.
    """

    data: str
    name: str
    n: int
    wrong: Mapping[str, Sequence[int]]
    apart: bool = False

    def table(self, kinds: Sequence[str]) -> Floats:
        """Return the errors, (kinds, severities), in points."""
        return 100 * np.array([self.wrong[kind] for kind in kinds], float) / self.n

    def mean(self, kinds: Sequence[str], severities: Sequence[int] = SEVERITIES) -> float:
        """Return the mean error of kinds over severities, in points."""
        return float(self.table(kinds)[:, [severity - 1 for severity in severities]].mean())


@dataclass(frozen=True)
class Choice:
    kinds: tuple[str, ...]
    severity: int

    def miss(self, checkpoint: Errors, kinds: Sequence[str]) -> float:
        """Return by how many points the mean of this choice is above that of all kinds at all severities."""
        return checkpoint.mean(self.kinds, (self.severity,)) - checkpoint.mean(kinds)


@dataclass(frozen=True)
class Miss:
    """By how many points an estimate is above the mean of the whole set. choice: what made the estimate."""

    checkpoint: Errors
    points: float
    choice: Choice


def root_mean_square(checkpoints: Sequence[Errors], misses: Iterable[float]) -> float:
    """Return the root of the mean square miss, in which each data set weighs the same."""
    return math.sqrt(float(_weights(checkpoints) @ np.square([*misses])))


def _weights(checkpoints: Sequence[Errors]) -> Floats:
    of = Counter(checkpoint.data for checkpoint in checkpoints)
    return np.array([1 / len(of) / of[checkpoint.data] for checkpoint in checkpoints])


def ranked(checkpoints: Sequence[Errors], kinds: Sequence[str]) -> list[tuple[float, Choice]]:
    """Return all choices with their root mean square miss, the best first."""
    tables = np.stack([checkpoint.table(kinds) for checkpoint in checkpoints])
    places = np.array([*combinations(range(len(kinds)), KINDS)])
    misses = tables[:, places].mean(2) - tables.mean((1, 2))[:, None, None]  # (checkpoints, choices, severities)
    scores = np.sqrt(np.einsum("c,cks->ks", _weights(checkpoints), misses**2)).round(9)
    every = [
        (float(scores[row, severity - 1]), Choice(tuple(kinds[place] for place in places[row]), severity))
        for severity in SEVERITIES
        for row in range(len(places))
    ]
    return sorted(every, key=lambda scored: scored[0])


def chosen(checkpoints: Sequence[Errors], kinds: Sequence[str]) -> Choice:
    """Return the choice with the least root mean square miss over the checkpoints that are not apart."""
    return ranked([checkpoint for checkpoint in checkpoints if not checkpoint.apart], kinds)[0][1]


def judged(checkpoints: Sequence[Errors], kinds: Sequence[str]) -> list[Miss]:
    """Return how far off the estimate of each checkpoint is by a choice that did not see it."""
    of_all, misses = chosen(checkpoints, kinds), []
    for judge in checkpoints:
        others = [each for each in checkpoints if each is not judge]
        choice = of_all if judge.apart else chosen(others, kinds)
        misses.append(Miss(judge, choice.miss(judge, kinds), choice))
    return misses


def of_other_data(checkpoints: Sequence[Errors], kinds: Sequence[str]) -> list[Miss]:
    """Return the same by choices that saw no checkpoint of the same data set; none where there is one data set."""
    choosers = [checkpoint for checkpoint in checkpoints if not checkpoint.apart]
    misses = []
    for data in dict.fromkeys(checkpoint.data for checkpoint in checkpoints):
        if others := [each for each in choosers if each.data != data]:
            choice = chosen(others, kinds)
            mine = [each for each in checkpoints if each.data == data]
            misses += [Miss(each, choice.miss(each, kinds), choice) for each in mine]
    return misses
