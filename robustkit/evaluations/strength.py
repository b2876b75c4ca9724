"""How strong the attacks of a run were, by the best that all attacks of the same norm found together.

An attack that looks for the smallest change has a curve, the accuracy at every radius, and so has the best of all,
which takes of each sample the smallest change that any attack found. The optimality of AttackBench (Cinà et al. 2024,
arXiv:2404.19460) says how near the one comes to the other. An attack of a fixed radius has one point of such a curve:
for it, the share of the samples broken by any attack within the radius that it broke itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..common.intervals import Floats, bootstrap, wilson
from ..errors import RunError
from ..protocol.condition import CLEAN, part_of
from .kinds import words_of
from .rows import EXCEEDS, FEWEST, Reading, column_of, readable

if TYPE_CHECKING:
    import pyarrow as pa

Figure = tuple[float, int, float, float]
"""A value, n, and the ends of its interval."""


class Strengths:
    """What each attack of a checkpoint found. Conditions that were not given are read from the records."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.manifest = reading, reading.manifest
        self._tables: dict[str, pa.Table | None] = {}
        self._alike: dict[tuple[str, str], dict[str, Floats]] = {}
        self._starts = {_start(text) for text in self.manifest.claims} | {CLEAN.text}

    def take(self, condition: str, read: pa.Table) -> None:
        """Take the readable rows under a condition, which are otherwise read again."""
        if "distance" in read.column_names:
            self._tables[condition] = read.select(["sample_id", "distance"])
        elif condition in self._starts or condition in self.manifest.claims:
            self._tables[condition] = read.select(["sample_id", "correct", self.manifest.norm(condition)])

    def optimality(self, condition: str) -> Iterator[Figure]:
        """Yield the optimality of an attack that looks for the smallest change; nothing where there is none.

        n: the samples that are right when clean. The interval is of resampled samples, up to the same radius.
        """
        sizes = self._sizes(words_of(condition).distance_norm(condition), _start(condition))
        if condition not in sizes or len(sizes) < 2:
            return
        gains, best = gains_of(sizes[condition], np.minimum.reduce([*sizes.values()]))
        if not best.sum() > 0:
            return
        value, n = float(gains.sum() / best.sum()), len(best)

        def resampled(counts: Floats) -> Floats:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.divide(counts @ gains, counts @ best)

        bounds = bootstrap(resampled, n, [value])[0] if n >= FEWEST else (np.nan, np.nan)
        yield value, n, *bounds

    def found(self, condition: str) -> Iterator[Figure]:
        """Yield the share of all that was broken within the radius of an attack that it broke; nothing where no other
        attack of that radius, nor one without a radius, is in the run.

        n: the samples that were broken.
        """
        claim = self.manifest.claims[condition]
        sizes = self._sizes(claim.norm, _start(condition))
        beside = [text for text in sizes if text != condition and self._eps(text) in (None, claim.eps)]
        if condition not in sizes or not beside:
            return
        broke = np.isfinite(sizes[condition])
        every = broke | np.logical_or.reduce([size <= claim.eps + EXCEEDS for size in sizes.values()])
        if n := int(every.sum()):
            yield int(broke.sum()) / n, n, *wilson(int(broke.sum()), n)

    def _eps(self, condition: str) -> float | None:
        claim = self.manifest.claims.get(condition)
        return None if claim is None else claim.eps

    def _sizes(self, norm: str, start: str) -> Mapping[str, Floats]:
        """Return the size of the smallest change (n,) that each attack in a norm found, infinity where it found none,
        of the samples that all of them have and that are right before.

        start: the condition whose images they change: clean, or a corruption.
        """
        if (norm, start) not in self._alike:
            self._alike[norm, start] = self._gather(norm, start)
        return self._alike[norm, start]

    def _gather(self, norm: str, start: str) -> dict[str, Floats]:
        attacks = [text for text in self._attacks(norm) if _start(text) == start]
        tables = {text: table for text in attacks if (table := self.table(text)) is not None}
        clean = self.table(start)
        if clean is None or len(tables) < 2:
            return {}
        right = dict(zip(clean["sample_id"].to_pylist(), clean["correct"].fill_null(False).to_pylist(), strict=True))
        ids = [table["sample_id"].to_pylist() for table in tables.values()]
        common = sorted(set(ids[0]).intersection(*ids[1:]) & {name for name, is_right in right.items() if is_right})
        sizes = {}
        for (text, table), names in zip(tables.items(), ids, strict=True):
            places = dict(zip(names, range(len(names)), strict=True))
            sizes[text] = _found(table, norm)[[places[name] for name in common]]
        return sizes

    def _attacks(self, norm: str) -> Sequence[str]:
        """Return the attacks of a norm whose sizes are in the units of their radii, without those on a part of the
        samples.
        """
        if self.manifest.protocol.space == "normalised":
            return []
        claims = self.manifest.claims
        fixed = {text for text, claim in claims.items() if claim.norm == norm and claim.eps > 0}
        return [
            text
            for text in self.manifest.conditions
            if not part_of(text) and (text in fixed or words_of(text).distance_norm(text) == norm)
        ]

    def table(self, condition: str) -> pa.Table | None:
        """Return the rows that could be read; None where the condition is not evaluated yet."""
        if condition not in self._tables:
            try:
                names = ["sample_id", "error", "correct", "linf", "l2", "distance"]
                table = self.reading.run.table(self.reading.checkpoint, condition, names)
                self._tables[condition] = readable(table)
            except RunError:
                self._tables[condition] = None
        return self._tables[condition]


def gains_of(sizes: Floats, best: Floats) -> tuple[Floats, Floats]:
    """Return, for each sample (n,), by how much the attack and the best of all stay below the radius where the best
    curve ends, which is the largest finite size in it; nothing for a sample that none broke.

    The mean of the first is the area between the clean accuracy and the attack's curve.
    """
    finite = best[np.isfinite(best)]
    end = float(finite.max()) if len(finite) else 0.0
    return end - np.minimum(sizes, end), end - np.minimum(best, end)


def _start(condition: str) -> str:
    """Return the condition whose images an attack changes."""
    return words_of(condition).starts_from(condition)


def _found(table: pa.Table, norm: str) -> Floats:
    if "distance" in table.column_names:
        distances = column_of(table, "distance")
        return np.where(np.isnan(distances), np.inf, distances)
    right = table["correct"].fill_null(False).to_numpy().astype(bool)
    return np.where(right, np.inf, column_of(table, norm))
