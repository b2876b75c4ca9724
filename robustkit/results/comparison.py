"""Compare checkpoints: which pairs, whether they may be paired, and all their differences as tables.

Rows are top-1 and NLL of clean images and of each attack (top-1 alone where samples leave at their first wrong
prediction), mean errors of corruptions and of their sets, and scores of maps; for segmenters mIoU and accuracies, under
corruptions those of sets. Single severities, controls, precision and recall of maps, and watched attention are left
out: they follow other rows so closely that they would only weaken Holm's correction, which is over all rows of all
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..common.differences import Difference, holm
from ..errors import DamagedRecord, RunError
from ..evaluations.family import by_family
from ..evaluations.flags import Flagged, raised, short_names
from ..evaluations.kinds import words_of
from ..runs.folder import RunFolder
from ..tasks.measures import metric_of
from ..tasks.task import task_of
from .paired import Side, paired_difference
from .pairing import changed, doubts, flagged, names_of, pairs, refuse, same_file, unpaired
from .published import Published

_LEVEL = 0.05


__all__ = ["Comparison", "ComparisonRow", "Pair", "compare", "compare_with_first", "own_flags", "pairs", "unpaired"]


@dataclass(frozen=True)
class ComparisonRow:
    """A difference of a pair. p_value: Holm's, over all rows of the comparison.

    published: the published figure of `second` less that of `first`, or, where both have the same attention, that
    figure itself; None where there is none. Not paired, and of other models and images.
    """

    first: Side
    second: Side
    condition: str
    metric: str
    difference: Difference
    p_value: float = math.nan
    published: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value after Holm is below 0.05; False where there is none."""
        return self.p_value < _LEVEL

    @property
    def verdict(self) -> str:
        """`better` or `worse` where it is significant, `higher` or `lower` for metrics that are neither; else ''."""
        if not self.significant:
            return ""
        words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("lower", "higher")}[metric_of(self.metric).better]
        return words[self.difference.value > 0]


@dataclass(frozen=True)
class Pair:
    """The differences of one checkpoint, `second`, from another, `first`.

    changed: how they differ by intent, such as in their attention. flags: what raises a doubt about the comparison.
    own: the results of both that are compared, with their own flags. left_out: lines on conditions that are in no row.
    """

    first: Side
    second: Side
    rows: tuple[ComparisonRow, ...]
    changed: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    own: tuple[Flagged, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names of first and second, with their runs where these differ."""
        return names_of(self.first, self.second)


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the published figures to compare with, if any.

    others: tests of more pairs, which count in Holm's correction and which no table of the comparison shows.
    """

    pairs: tuple[Pair, ...]
    reference: Published | None = None
    others: tuple[ComparisonRow, ...] = ()

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """Of all pairs."""
        return tuple(row for pair in self.pairs for row in pair.rows)

    @property
    def sample(self) -> str:
        """What one of the samples is called by which figures are paired."""
        return next((pair.second.run.manifest.protocol.samples.one for pair in self.pairs), "sample")

    @property
    def flags(self) -> tuple[str, ...]:
        """Of all pairs, each once; then those of the results that are compared."""
        return tuple(dict.fromkeys([*(flag for pair in self.pairs for flag in pair.flags), *own_flags(self.pairs)]))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Of all pairs, each once."""
        return tuple(dict.fromkeys(line for pair in self.pairs for line in pair.left_out))


def own_flags(pairs: Sequence[Pair]) -> list[str]:
    """Return the flags of the results that are compared, each once, in the words of those of a run."""
    names = dict.fromkeys(name for pair in pairs for name in pair.names)
    one = len({side.run.path for pair in pairs for side in (pair.first, pair.second)}) == 1
    called = short_names(names) if one else {name: name for name in names}
    return [flag.line for flag in raised((each for pair in pairs for each in pair.own), called)]


def compare(pairs: Sequence[tuple[Side, Side]], reference: Published | None = None) -> Comparison:
    """Return all differences of these pairs; reference: published figures to compare with.

    Raises:
        RunError: a pair has other tasks, classes or labels, or no condition or sample in common.
    """
    resolved = None if reference is None else reference.resolved()
    compared = []
    for place, (first, second) in enumerate(pairs):
        compared.append(_with_flags(_paired(first, second, resolved), resolved))
        later = {id(side) for pair in pairs[place + 1 :] for side in pair}
        for side in (first, second):
            if id(side) not in later:
                side.forget()
    return corrected(compared, reference)


def compare_with_first(run: RunFolder) -> Comparison:
    """Compare the checkpoints of one run with its first, for its report, without those that cannot be paired yet."""
    names = run.manifest.names
    base, compared = Side(run, names[0]), []
    for name in names[1:]:
        second = Side(run, name)
        try:
            pair = _paired(base, second, None)
        except RunError:  # records of one of them are not there yet
            continue
        second.forget()
        compared.append(replace(pair, flags=tuple(same_file(base, second))))  # others stand next to the results
    return corrected(compared)


def corrected(
    compared: Sequence[Pair], reference: Published | None = None, others: Sequence[ComparisonRow] = ()
) -> Comparison:
    """Return pairs, and tests of more pairs, as a comparison whose p-values are Holm's over all of them."""
    rows = [row for pair in compared for row in pair.rows]
    p_values = iter(holm([row.difference.p_value for row in (*rows, *others)]))

    def with_theirs(rows: Iterable[ComparisonRow]) -> tuple[ComparisonRow, ...]:
        return tuple(replace(row, p_value=next(p_values)) for row in rows)

    pairs = tuple([replace(pair, rows=with_theirs(pair.rows)) for pair in compared])
    return Comparison(pairs, reference, with_theirs(others))


def _paired(first: Side, second: Side, reference: Published | None) -> Pair:
    common = _common(first, second)
    refuse(first, second, common)
    rows, left_out = list[ComparisonRow](), list[str]()
    for condition, metric in _wanted(first, second, common):
        try:
            difference = paired_difference(first, second, condition, metric)
        except DamagedRecord:
            raise
        except RunError as fault:
            left_out.append(str(fault))
            continue
        published = None if reference is None else _published(reference, first, second, condition, metric)
        rows.append(ComparisonRow(first, second, condition, metric, difference, published=published))
    left_out += _left_out(first, second, common, [row.condition for row in rows])
    differ = tuple(changed(first.described, second.described))
    return Pair(first, second, tuple(rows), differ, left_out=tuple(dict.fromkeys(left_out)))


def _with_flags(pair: Pair, reference: Published | None) -> Pair:
    """Return a pair with what raises a doubt about it, and the flags of what is compared."""
    first, second, rows = pair.first, pair.second, pair.rows
    flags = [*doubts(first, second, _common(first, second)), *same_file(first, second)]
    beside = [] if reference is None else [row.condition for row in rows if row.published is not None]
    if reference is not None and beside:
        tags = dict.fromkeys(side.manifest.protocol.tag for side in (first, second))
        here = [tag.partition("@")[0] for tag in tags if not reference.is_of(tag)]
        flags += [f"published under {reference.protocol}, here {name}" for name in here]
        unlike = ((text, words_of(text).unlike_published(text)) for text in beside)
        flags += [f"{text}: {said}, which the published figure is of" for text, said in unlike if said]
    own = tuple(flagged(first, second, {(row.condition, row.metric) for row in rows}))
    return replace(pair, flags=tuple(dict.fromkeys(flags)), own=own)


def _common(first: Side, second: Side) -> list[str]:
    return [condition for condition in first.conditions if condition in second.conditions]


# Which rows


def _wanted(first: Side, second: Side, common: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield conditions and metrics: those of the task's table in the order of the run, then what families compare."""
    task = task_of(first.manifest)
    for condition in common:
        if words_of(condition).in_results:
            for side in (first, second):
                task.read_ahead(side, condition)
            ended = any(side.manifest.stops_early(condition) for side in (first, second))
            yield from ((condition, name) for name in (task.compared.ended if ended else task.compared.shown))
    for family, conditions in by_family(common):
        yield from family.compared(first, second, conditions, task.compared)


def _published(reference: Published, first: Side, second: Side, condition: str, metric: str) -> float | None:
    before, after = (str(side.described.attention) for side in (first, second))
    figure = reference.figure(after, condition, metric)
    if figure is None or before == after:
        return figure
    beside = reference.figure(before, condition, metric)
    return None if beside is None else figure - beside


def _left_out(first: Side, second: Side, common: Sequence[str], shown: Iterable[str]) -> Iterator[str]:
    """Yield lines on the conditions that are in no row: those that the other has, or that its own run.json names."""
    names = names_of(first, second)
    for side, other, name in ((second, first, names[1]), (first, second, names[0])):
        wanted = dict.fromkeys([*other.conditions, *side.manifest.conditions])
        if lacking := _merged([text for text in wanted if text not in side.conditions], common):
            yield f"{name} has no records under {', '.join(lacking)}"
    rows = list(shown)
    for family, conditions in by_family(common):
        yield from family.not_compared(conditions, rows)


def _merged(lacking: Sequence[str], common: Sequence[str]) -> list[str]:
    """Return the texts of conditions; a group that is lacking at all levels is named as a group."""
    groups = {text: words_of(text).group(text) for text in (*lacking, *common)}
    partly = {groups[text] for text in common}
    return list(dict.fromkeys(text if groups[text] in partly else groups[text] for text in lacking))
