"""Turn the distances of a checkpoint's samples into results: the median, and accuracy at every radius."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.special import bdtr

from ...common.intervals import Floats, wilson
from ...protocol.card import number
from ..family import Summary
from ..rows import Number, Reading, Row, column_of, mean_of, readable
from ..strength import Strengths
from .beside import beside_flags
from .measures import FURTHEST, OPTIMALITY, RADII
from .slopes import Slopes, correlations, slopes_of
from .vocabulary import norm_of

COLUMNS = ("sample_id", "error", "correct", "distance", "nll")


class DistanceSummary(Summary):
    """The rows of each attack that looks for the smallest change."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.strengths, self.noted = reading, Strengths(reading), dict[str, list[str]]()

    def add(self, condition: str) -> list[Row]:
        table, notes = self.reading.joined(self.reading.shards(condition, COLUMNS))
        read = readable(table)
        flags = [*self.reading.flags(condition, table), *notes]
        if not len(read):
            return []
        distances = distances_of(column_of(read, "distance"))
        lost = int(np.isinf(distances).sum())
        if lost:
            flags.append(
                f"no wrong point was found for {lost} of {len(read)} samples; gradients may mislead the attack"
            )
        flags += beside_flags(self.reading, condition, read)
        self.strengths.take(condition, read)
        self.noted[condition] = flags
        figures = list(numbers(distances, norm_of(condition)))
        if self._slopes is not None:
            figures += correlations(read["sample_id"].to_pylist(), distances, self._slopes)
        return [(condition, *some, flags) for some in figures]

    @cached_property
    def _slopes(self) -> Slopes | None:
        return slopes_of(self.reading)

    def finish(self) -> Iterator[Row]:
        for condition, flags in self.noted.items():
            yield from ((condition, OPTIMALITY.name, *figure, flags) for figure in self.strengths.optimality(condition))


def distances_of(column: Floats) -> Floats:
    """Return distances with infinity, not nan, where no wrong point was found."""
    return np.where(np.isnan(column), np.inf, column)


def numbers(distances: Floats, norm: str) -> Iterator[Number]:
    """Yield metric, value, n and 95 % interval of the distances (n,) of samples."""
    n = len(distances)
    middle, (low, high) = float(np.sort(distances)[(n - 1) // 2]), median_interval(distances)
    yield "median_distance", _finite(middle), n, _finite(low), _finite(high)
    shares = np.minimum(distances, FURTHEST[norm]) / FURTHEST[norm]
    yield "distance_area", *mean_of(shares)
    for text in RADII[norm]:
        standing = int((distances > float(number(text))).sum())
        yield f"accuracy_at({text})", standing / n, n, *wilson(standing, n)


def median_interval(values: Floats) -> tuple[float, float]:
    """Return a 95 % interval of the median that asks nothing of the distribution: two of the values themselves.

    Of fewer than six values none is that sure.
    """
    n, ordered = len(values), np.sort(values)
    below = [k for k in range(n // 2 + 1) if bdtr(k - 1, n, 0.5) <= 0.025] if n else []
    if not below or below[-1] == 0:
        return math.nan, math.nan
    place = below[-1]
    return float(ordered[place - 1]), float(ordered[n - place])


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
