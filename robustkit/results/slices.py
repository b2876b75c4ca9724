"""Slices: samples with the same values of some columns, how a checkpoint does on each, and on which it does worst.

Columns are those of the run's metadata, and two that need none: `class`, the name of the label, and `difficulty`,
quarters of the samples by the probability that the checkpoint gives the label of the clean image, exp(-NLL).

Weak slices are searched among the values of a column and the pairs of values of two, which each are a slice. A value is
tested against all other samples by Fisher's exact test, one-sided. A pair must be worse than these, and than the rest
of each of its two values: the largest of the three p-values is its own (an intersection-union test, Berger 1982).
Holm's correction is over all slices of a checkpoint under a condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import combinations, compress, count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..common.differences import holm, hypergeometric_tail, of_groups
from ..common.figure import Figure
from ..common.groups import Groups
from ..common.intervals import Floats, mean_of, proportion, share_of
from ..errors import DamagedRecord, RunError, unknown
from ..evaluations.aggregate import Gatherer
from ..evaluations.condition import results_and_singles, shows, stops_early
from ..evaluations.metrics import metric_named
from ..evaluations.records import CheckpointRecords
from ..protocol.condition import CLEAN
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..runs.metadata import REMEDY, metadata_of_run
from ..tasks.task import Task, task_of

if TYPE_CHECKING:
    import pyarrow as pa

CLASS, DIFFICULTY, MISSING = "class", "difficulty", "(missing)"
FEWEST = 20  # samples of a slice below which nothing is said about it
MOST = 5000  # slices that are tested
SHUFFLES, _WORK = 200, 1 << 26  # shuffles; figures to count in all, above which there are fewer, 50 or more
_ALPHA = 0.05
_NUMBERS, TEXTS = 12, 200  # different numbers of a column that stay as they are; texts of one that is searched
_NO_NUMBER = ("NA", "None")  # among numbers, R's and Python's missing value
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]  # of slices: half the memory, read often


# Columns


@dataclass(frozen=True)
class Attribute:
    """The value of each sample: codes (n,) are places in values. searched: whether weak slices are searched in it."""

    name: str
    values: tuple[str, ...]
    codes: Ints
    searched: bool = True

    def take(self, places: Ints) -> Attribute:
        return Attribute(self.name, self.values, self.codes[places], self.searched)


def attribute_of(name: str, texts: Sequence[str], codes: Ints) -> Attribute:
    """Return a column. texts: the different ones, empty for a missing one; codes: (n,) the place of each sample's.
    Numbers are in their order; more than 12 different ones are cut into quarters, named by their least and greatest."""
    if (numbers := _numbers(texts)) is None:
        named = [text or MISSING for text in texts]
        values, places = np.unique(np.array(named, dtype=object), return_inverse=True)
        return Attribute(name, tuple(values.tolist()), places.astype(np.int64)[codes], len(values) <= TEXTS)
    finite = np.isfinite(numbers)
    different, first, ranks = np.unique(numbers[finite], return_index=True, return_inverse=True)
    if len(different) > _NUMBERS:
        return _quarters(name, numbers[codes])
    places = np.full(len(texts), len(different))
    places[finite] = ranks
    written = [texts[place] for place in np.flatnonzero(finite)[first].tolist()]
    return Attribute(name, (*written, *([] if finite.all() else [MISSING])), places[codes])


def _numbers(texts: Sequence[str]) -> Floats | None:
    """Return the finite numbers that texts are, nan for an empty one or NA; None where a text is no number, all are
    empty, or they are codes: `007`, and whole numbers that are one float."""
    numbers, exact = np.full(len(texts), math.nan), set[Decimal]()
    for place, text in enumerate(texts):
        if not text or text in _NO_NUMBER:
            continue
        if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
            return None
        numbers[place] = number
        exact.add(Decimal(text))
    finite = numbers[np.isfinite(numbers)]
    return numbers if len(finite) and len(np.unique(finite)) == len(exact) else None


def _quarters(name: str, numbers: Floats) -> Attribute:
    """Return a column of numbers cut at their quartiles, nan where one is missing; (n,)."""
    finite, codes = np.isfinite(numbers), np.zeros(len(numbers), np.int64)
    edges = np.quantile(numbers[finite], (0.25, 0.5, 0.75))
    _, codes[finite] = np.unique(np.searchsorted(edges, numbers[finite]), return_inverse=True)
    parts = [numbers[finite & (codes == code)] for code in range(int(codes[finite].max()) + 1)]
    values = _ranges([(float(some.min()), float(some.max())) for some in parts])
    codes[~finite] = len(values)
    return Attribute(name, (*values, *([] if finite.all() else [MISSING])), codes)


def _ranges(ends: Sequence[tuple[float, float]]) -> list[str]:
    """Return `12.5 to 30` for each pair of ends, with as few digits as distinguish all ends that differ."""
    every = {end for pair in ends for end in pair}
    digits = next(each for each in count(4) if len({f"{end:.{each}g}" for end in every}) == len(every))
    return [" to ".join(dict.fromkeys(f"{end:.{digits}g}" for end in pair)) for pair in ends]


class Columns:
    """The columns by which the samples of a run are divided."""

    def __init__(self, run: RunFolder) -> None:
        table = metadata_of_run(run)
        self._ids: pa.Array | None = None
        self._columns_of_run: list[Attribute] = []
        self._last: list[tuple[pa.Array, SliceSearch]] = []  # of the last samples: conditions mostly share them
        if table is not None:
            self._ids = table["sample_id"].combine_chunks()
            for name in table.column_names[1:]:
                whole = table[name].combine_chunks()
                codes = whole.indices.to_numpy().astype(np.int64)
                self._columns_of_run.append(attribute_of(name, whole.dictionary.to_pylist(), codes))

    def of(self, side: CheckpointRecords, condition: str) -> dict[str, Attribute]:
        """Return the columns of the samples that could be read under a condition, in the order of their ids."""
        columns = self._without_difficulty(side, condition)
        if (difficulty := _difficulty(side, condition)) is not None:
            columns[DIFFICULTY] = difficulty
        return columns

    def _without_difficulty(self, side: CheckpointRecords, condition: str) -> dict[str, Attribute]:
        read = side.samples(condition, ["label"])
        columns = {}
        if self._ids is not None:
            places = _places(read.ids, self._ids)
            if (places < 0).any():
                raise DamagedRecord(f"{side.run.path}: a sample has no metadata; give them again: {REMEDY}")
            columns = {column.name: column.take(places) for column in self._columns_of_run}
        labels = read.columns["label"]
        if (labels >= 0).all():
            classes, codes = np.unique(labels.astype(np.int64), return_inverse=True)
            columns[CLASS] = Attribute(CLASS, _class_names(classes.tolist(), side.manifest), codes.astype(np.int64))
        return columns

    def search_in(self, side: CheckpointRecords, condition: str) -> SliceSearch:
        """Return which slices of the samples that could be read under a condition are tested."""
        ids = side.samples(condition, ["label"]).ids
        if not (self._last and self._last[0][0].equals(ids)):
            self._last[:] = [(ids, SliceSearch.among([*self._without_difficulty(side, condition).values()], len(ids)))]
        return self._last[0][1]


def _places(ids: pa.Array, among: pa.Array) -> Ints:
    """Return where ids are among others; -1 where they are not."""
    import pyarrow.compute as pc

    places: Ints = pc.fill_null(pc.index_in(ids, value_set=among), -1).to_numpy().astype(np.int64)
    return places


def _class_names(labels: Sequence[int], manifest: Manifest) -> tuple[str, ...]:
    """Return the names of classes; of two classes with one name, followed by their labels."""
    class_names = manifest.data.class_names
    names = [class_names[label] if label < len(class_names) else str(label) for label in labels]
    return tuple(
        f"{name} ({label})" if names.count(name) > 1 else name for name, label in zip(names, labels, strict=True)
    )


def _difficulty(side: CheckpointRecords, condition: str) -> Attribute | None:
    """Return the quarters of the probability of the label on clean images; None where no record has it."""
    try:
        clean = side.samples(CLEAN.text, ["nll"])
    except DamagedRecord:
        raise
    except RunError:
        return None
    probability = np.exp(-clean.columns["nll"])
    if not np.isfinite(probability).any():
        return None
    places = _places(side.samples(condition, ["label"]).ids, clean.ids)
    return _quarters(DIFFICULTY, np.append(probability, math.nan)).take(places)  # the last: of no clean image


# Slices of the columns that are asked for


@dataclass(frozen=True)
class Slice:
    """Samples with these values of these columns, and a figure of theirs."""

    columns: tuple[str, ...]
    values: tuple[str, ...]
    figure: Figure

    @property
    def name(self) -> str:
        return name_of_slice(self.columns, self.values)


def name_of_slice(columns: Sequence[str], values: Sequence[str]) -> str:
    """Return `camera = 3, daylight = night`."""
    return ", ".join(f"{column} = {value}" for column, value in zip(columns, values, strict=True))


def slices_of(
    side: CheckpointRecords,
    columns: Columns,
    condition: str,
    metric: str,
    by: Sequence[str],
    together: bool = False,
) -> list[Slice]:
    """Return the figures of all slices by the cross of some columns, in the order of their values.

    Intervals are those of `share_of` for what is right or wrong, else of `mean_of`. together: the intervals of all
    slices hold at once with 95 % (Bonferroni), of what is right or wrong only. Raises RunError for an unknown column, a
    metric that is no mean over samples, or missing records.
    """
    task = task_of(side.manifest)
    figures, binary = _figures(task, side, condition, metric), _is_binary(task, metric)
    by_name = columns.of(side, condition)
    if strange := next((name for name in by if name not in by_name), None):
        raise RunError(f"there is no column {strange!r}; there are {', '.join(by_name)}; {REMEDY} adds others")
    values, codes = _crossed([by_name[name] for name in by], len(figures))
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(codes, minlength=len(values)))[:-1])
    groups = None if side.sample_groups is None else side.sample_groups.of(side.samples(condition, ["label"]).ids)
    slices = []
    for one, part in zip(values, parts, strict=True):
        mine = None if groups is None else Groups.numbered(groups.codes[part])
        slices.append(Slice(tuple(by), one, _estimate(figures[part], binary, len(values) if together else 1, mine)))
    return slices


def divisible(task: Task) -> bool:
    """Whether samples of a task are right or wrong, so that slices of them can be compared."""
    return task.judged.name in task.paired and task.judged.binary


def _is_binary(task: Task, metric: str) -> bool:
    definition = metric_named(task.metrics, metric)
    return definition is not None and definition.binary


def _figures(task: Task, side: CheckpointRecords, condition: str, metric: str) -> Floats:
    """Return a figure for each sample, (n,). Raises RunError where there is none that means something."""
    if not divisible(task):
        raise RunError(f"{side.run.path}: samples of {task.name} are not right or wrong, so they have no slices")
    if metric not in task.paired:
        raise RunError(unknown("figure of slices", metric, task.paired))
    if stops_early(condition, side.manifest) and metric not in task.compared.ended:
        why = f"samples leave {condition} at their first wrong prediction, so {metric} has no meaning there"
        raise RunError(f"{why}; use {', '.join(task.compared.ended)}")
    if not shows(condition):  # of the second phase of an attack only some samples have a record, and not by chance
        raise RunError(f"{condition} has no {metric} of all samples; use one that shows images, such as {CLEAN.text}")
    figures = side.samples(condition, ["label", task.paired[metric]]).columns[task.paired[metric]]
    if not len(figures):
        raise RunError(f"{side.run.path}: no sample could be read under {condition}; audit it again")
    missing = np.isnan(figures)
    if missing.any() if _is_binary(task, metric) else missing.all():
        needed = "labels" if metric == task.judged.name else f"labels and probabilities, or use {task.judged.name}"
        raise RunError(f"{side.run.path}: samples under {condition} have no {metric}; it needs {needed}")
    return figures


def _crossed(columns: Sequence[Attribute], n: int) -> tuple[list[tuple[str, ...]], Ints]:
    """Return the values that samples have in all columns together, and the place of those of each sample, (n,)."""
    values, codes = [tuple[str, ...]()], np.zeros(n, np.int64)
    for column in columns:
        width = len(column.values)
        crosses, codes = np.unique(codes * width + column.codes, return_inverse=True)
        values = [(*values[place // width], column.values[place % width]) for place in crosses.tolist()]
    return values, codes.astype(np.int64)


def _estimate(figures: Floats, binary: bool, together: int, groups: Groups | None) -> Figure:
    if not binary:
        with np.errstate(invalid="ignore"):  # infinite losses have no interval
            return mean_of(figures, groups)
    return share_of(figures, groups, together)


# The search for weak slices


@dataclass(frozen=True)
class SliceSearch:
    """The m slices that are tested among n samples.

    names: columns and values of each. sizes: (m,). parents: (m, 2) the slices of the two values of a pair, -1 for a
    single value. places: for each column, and pair of columns, the slice of each sample, -1 for none; (n,). single: the
    same by column. left_out: columns and pairs of columns that would be more than MOST slices. unsearched: columns of
    too many texts.
    """

    n: int
    names: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()
    sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    parents: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    places: tuple[Numbers, ...] = ()
    single: Mapping[str, Numbers] = field(default_factory=dict)
    left_out: int = 0
    unsearched: tuple[str, ...] = ()

    @property
    def idle(self) -> tuple[str, ...]:
        """The columns without a slice to test: of too few samples each, or all samples have one value."""
        tested = {name for names, _ in self.names for name in names}
        return tuple(name for name in self.single if name not in tested)

    @classmethod
    def among(cls, columns: Sequence[Attribute], n: int) -> SliceSearch:
        """Return the slices of at least FEWEST samples, but not of all, by one column and by two; at most MOST."""
        chosen = [column for column in columns if column.searched]
        search = cls(n, unsearched=tuple(column.name for column in columns if not column.searched))
        for some in (*((column,) for column in chosen), *combinations(chosen, 2)):
            search = search.extended(some)
        return search

    def extended(self, columns: Sequence[Attribute]) -> SliceSearch:
        """Return the search with the slices of a column, or of two whose own slices it has."""
        alone = len(columns) == 1
        if not (alone or all(column.name in self.single for column in columns)):
            return replace(self, left_out=self.left_out + 1)
        values, codes = _crossed(columns, self.n)
        counts = np.bincount(codes, minlength=len(values))
        tested = (counts >= FEWEST) & (counts < self.n)
        parents: NDArray[np.int64] = np.full((len(values), 2), -1)
        if not alone:
            sample = np.zeros(len(values), np.int64)
            sample[codes] = np.arange(self.n)  # one of each slice
            parents = np.stack([self.single[column.name][sample] for column in columns], axis=1).astype(np.int64)
            tested &= counts < np.append(self.sizes, 0)[parents].min(axis=1)  # else it is one of its values
        if len(self.names) + int(tested.sum()) > MOST:
            return replace(self, left_out=self.left_out + 1)
        members = np.where(tested, len(self.names) - 1 + np.cumsum(tested), -1)[codes].astype(np.int32)
        names = tuple(column.name for column in columns)
        return replace(
            self,
            names=(*self.names, *((names, one) for one in compress(values, tested))),
            sizes=np.concatenate([self.sizes, counts[tested]]),
            parents=np.concatenate([self.parents, parents[tested]]),
            places=(*self.places, members),
            single={**self.single, names[0]: members} if alone else self.single,
        )

    def counts(self, some: Ints) -> Ints:
        """Return how many of some samples, given by their places, each slice has; (m,)."""
        m = len(self.names)
        total = np.zeros(m + 1, np.int64)
        for members in self.places:
            total += np.bincount(members[some] + 1, minlength=m + 1)
        return total[1:]

    def within(self, number: int) -> NDArray[np.bool_]:
        """Return which samples a slice has, (n,)."""
        inside = np.zeros(self.n, np.bool_)
        for members in self.places:
            inside |= members == number
        return inside


@dataclass(frozen=True)
class WeakSlice:
    """A slice that does significantly worse. rest: of all other samples; low, high: the 95 % interval of the
    difference. p_value: Holm's."""

    slice: Slice
    rest: Figure
    low: float
    high: float
    p_value: float

    @property
    def difference(self) -> float:
        return self.slice.figure.value - self.rest.value


@dataclass(frozen=True)
class Searched:
    """What was found for a checkpoint under a condition. wrong: (n,) which samples are; figures are shares of the
    others."""

    checkpoint: str
    condition: str
    search: SliceSearch
    wrong: NDArray[np.bool_]

    @cached_property
    def weak(self) -> tuple[WeakSlice, ...]:
        """The weak slices, the smallest p-value first. A single value is left out where the pairs found in it explain
        it: without them it is no longer significant."""
        counts = self.search.counts(np.flatnonzero(self.wrong))
        adjusted = self._adjusted(counts)
        numbers = [number for number, p in enumerate(adjusted) if p < _ALPHA]
        pairs = [number for number in numbers if self.search.parents[number, 0] >= 0]
        chosen = [number for number in numbers if number in pairs or not self._explained(number, pairs)]
        weak = [self._weak(number, int(counts[number]), adjusted[number]) for number in chosen]
        return tuple(sorted(weak, key=lambda each: (each.p_value, each.difference)))

    @cached_property
    def shuffled(self) -> tuple[int, int]:
        """In how many shuffles of the outcomes among the samples a slice would be found, and how many were made. The
        stream is fixed, so that it repeats."""
        search, total = self.search, int(self.wrong.sum())
        m, generator, hits = len(search.names), np.random.Generator(np.random.PCG64(0)), 0
        limits = np.array([int(np.argmax(m * self._tail(size) < _ALPHA)) for size in search.sizes.tolist()], np.int64)
        few = min(total, search.n - total)  # of wrong and right ones, whatever is quicker to count
        shuffles = min(SHUFFLES, max(50, _WORK // max(1, search.n * len(search.places))))
        for _ in range(shuffles):
            counts = search.counts(generator.permutation(search.n)[:few])
            counts = counts if few == total else search.sizes - counts
            hits += bool((counts >= limits).any()) and min(self._adjusted(counts)) < _ALPHA
        return hits, shuffles

    @cached_property
    def _tails(self) -> dict[int, Floats]:
        return {}

    def _tail(self, size: int) -> Floats:
        """Return by the number of wrong samples of a slice its p-value against all other samples."""
        if size not in self._tails:
            self._tails[size] = hypergeometric_tail(self.search.n, int(self.wrong.sum()), size)
        return self._tails[size]

    def _adjusted(self, counts: Ints) -> list[float]:
        """Return Holm's p-values of slices with so many wrong samples; (m,)."""
        sizes, parents = self.search.sizes.tolist(), self.search.parents.tolist()
        plain = [float(self._tail(size)[count]) for size, count in zip(sizes, counts.tolist(), strict=True)]
        for number, above in enumerate(parents):
            if above[0] >= 0 and plain[number] < _ALPHA:  # others are not significant anyhow
                among = (hypergeometric_tail(sizes[each], int(counts[each]), sizes[number]) for each in above)
                plain[number] = max(plain[number], *(float(tail[counts[number]]) for tail in among))
        return holm(plain)

    def _explained(self, number: int, pairs: Sequence[int]) -> bool:
        inside = [pair for pair in pairs if number in self.search.parents[pair]]
        if not inside:
            return False
        members = self.search.within(number)
        left = members & ~np.any([self.search.within(pair) for pair in inside], axis=0)
        n, wrong = int((left | ~members).sum()), int(self.wrong[left | ~members].sum())
        p_value = float(hypergeometric_tail(n, wrong, int(left.sum()))[int(self.wrong[left].sum())])
        return int(left.sum()) < FEWEST or len(self.search.names) * p_value >= _ALPHA

    def _weak(self, number: int, wrong: int, p_value: float) -> WeakSlice:
        n, size, total = self.search.n, int(self.search.sizes[number]), int(self.wrong.sum())
        hits, rest = (size - wrong, size), (n - size - total + wrong, n - size)
        low, high = of_groups(*hits, *rest)
        return WeakSlice(Slice(*self.search.names[number], proportion(*hits)), proportion(*rest), low, high, p_value)


def searched(side: CheckpointRecords, columns: Columns, condition: str) -> Searched:
    """Search weak slices. Raises RunError where samples are not right or wrong."""
    task = task_of(side.manifest)
    if (groups := side.sample_groups) is not None:
        raise RunError(f"{side.run.path}: {not_searched(groups.count)}")
    figures = _figures(task, side, condition, task.judged.name)
    return Searched(side.checkpoint, condition, columns.search_in(side, condition), figures == 0)


def not_searched(groups: int) -> str:
    """Return why weak slices are not searched."""
    why = f"samples are in {groups} groups, and the test of weak slices takes samples as independent"
    return f"{why}: name columns (--by), whose slices have intervals of groups"


class WeakSlices(Gatherer):
    """What was found for each checkpoint under each of `shown_conditions`; nothing where samples are in groups, since
    the test takes them as independent."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self.searches: list[Searched] = []
        self._columns = list[Columns]()
        task = task_of(self.manifest)
        self._needed = ("label", task.paired[task.judged.name]) if divisible(task) and not self.sample_groups else ()

    def wants(self, checkpoint: str, condition: str) -> bool:
        return bool(self._needed) and condition in shown_conditions(self.manifest.conditions)

    def needs(self, column: str) -> bool:
        return column in ("sample_id", *self._needed)

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        if len(read):
            side = CheckpointRecords(self.run, checkpoint)
            side.keep(condition, read, self._needed)
            self._search(side, condition)

    def read(self) -> None:
        for name in self.manifest.names if self._needed else ():
            side = CheckpointRecords(self.run, name)
            for condition in shown_conditions(side.conditions):
                self._search(side, condition)

    def _search(self, side: CheckpointRecords, condition: str) -> None:
        self._columns = self._columns or [Columns(side.run)]
        try:
            result = searched(side, self._columns[0], condition)
        except DamagedRecord:
            raise
        except RunError:  # such as images without labels
            return
        self.searches += [result] if result.search.names else []


def shown_conditions(conditions: Sequence[str]) -> list[str]:
    """Return the conditions of the table of results among these, and the single corruptions, where they are few."""
    results, singles = results_and_singles(conditions)
    return [*results, *singles]
