"""Test the checkpoints of a run against each other, in one family of tests: for the first page and its sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from weakref import WeakKeyDictionary

from ..errors import DamagedRecord, RunError
from ..evaluations.cells import Row
from ..evaluations.family import by_family, family_of
from ..evaluations.kinds import kind_of
from ..evaluations.results import Results
from ..runs.folder import RunFolder
from ..tasks.measures import metric_of
from ..tasks.task import task_of
from .comparison import Comparison, ComparisonRow, compare_with_first, corrected
from .paired import Side, paired_difference

MOST = 12
"""The number of checkpoints up to which every one is tested against every other; of more, each against the first."""
_HELD = 200_000  # figures of samples that all checkpoints may hold at once under one condition
_FOUND: WeakKeyDictionary[RunFolder, tuple[Sequence[Row], Tested]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Asked:
    """A row of the first page: what was asked. called: what people call the condition."""

    condition: str
    metric: str
    called: str

    @property
    def key(self) -> tuple[str, str]:
        """Condition and metric, as rows of the summary have them."""
        return self.condition, self.metric

    @property
    def family(self) -> str:
        """The name of the condition's family."""
        return family_of(kind_of(self.condition)).name


@dataclass(frozen=True)
class Tested:
    """The tests of a run. comparison: of each checkpoint with the first.

    rows: of all pairs, the earlier checkpoint first, those of the comparison before the others. p-values are Holm's
    over all of them, in the comparison, too. all_pairs: whether every checkpoint was tested against every other.
    """

    comparison: Comparison
    rows: tuple[ComparisonRow, ...]
    all_pairs: bool

    def of(self, key: tuple[str, str]) -> tuple[ComparisonRow, ...]:
        """Return the tests under a condition by a metric."""
        return tuple(row for row in self.rows if (row.condition, row.metric) == key)


def asked(results: Results) -> list[Asked]:
    """Return what the first page shows, in its order; of results that some checkpoint has."""
    manifest, headline = results.manifest, task_of(results.manifest).headline_metric
    keys = list(dict.fromkeys((row["condition"], row["metric"]) for row in results))
    found = []
    for family, conditions in by_family(dict.fromkeys(condition for condition, _ in keys)):
        own = [key for key in keys if key[0] in set(conditions)]
        found += [Asked(*key, family.called(key[0], manifest)) for key in family.front(own, headline)]
    return found


def pair_tests(results: Results) -> Tested:
    """Return the paired tests of a run's checkpoints, computed once for the same results of a run.

    They are kept as long as the run is held, since records lie behind them.
    """
    rows = list(results.rows)
    known = _FOUND.get(results.run)
    if known is None or known[0] != rows:
        known = _FOUND[results.run] = rows, _tested(results)
    return known[1]


def _tested(results: Results) -> Tested:
    names = results.manifest.names
    if len(names) < 2 or not len(results):
        return Tested(Comparison(()), (), True)
    comparison = compare_with_first(results.run)
    paired = {(row.condition, row.metric) for row in comparison.rows}
    keys = [entry.key for entry in asked(results) if entry.key in paired]
    others = list(_others(results, names[1:], keys)) if 2 < len(names) <= MOST else []
    if not others:
        return Tested(comparison, comparison.rows, len(names) <= MOST)
    comparison = corrected(comparison.pairs, None, others)
    return Tested(comparison, (*comparison.rows, *comparison.others), True)


def _others(results: Results, names: Sequence[str], keys: Sequence[tuple[str, str]]) -> Iterator[ComparisonRow]:
    """Yield the differences of the pairs without the first checkpoint, by what the first page shows."""
    sides = [Side(results.run, name) for name in names]
    for condition, metric in keys:
        for first, second in combinations(sides, 2):
            try:
                difference = paired_difference(first, second, condition, metric)
            except DamagedRecord:
                raise
            except RunError:  # records of one of them are not there yet
                continue
            yield ComparisonRow(first, second, condition, metric, difference)
        if results.manifest.data.n * len(sides) > _HELD:
            for side in sides:
                side.forget()


def points(metric: str) -> bool:
    """Whether differences by a metric are in points of percent."""
    return metric_of(metric).scale == 100
