"""Compare checkpoints: which pairs, whether they may be paired, and all their differences, in one family of tests.

Rows are top-1 and NLL of clean images and of each attack (top-1 alone where samples leave at their first wrong
prediction), mean errors of corruptions and of their sets, single severities that are in no mean, and scores of maps;
for segmenters mIoU and accuracies, under corruptions those of sets. Severities of a mean, controls, precision and
recall of maps, and watched attention are left out: they follow other rows so closely that they would only weaken Holm's
correction.

That is over one family of tests. Of one run it is what its page tests (`pair_tests`): all rows of each checkpoint
against the first, and what the first page shows of all other pairs; whichever of them are asked for. So a difference
has one p-value on the page and in `robustkit compare`. What only the latter compares (`--against`) is corrected for
those and for all that it adds. Of several runs the family is all rows of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

from ..common.differences import Difference, holm
from ..common.figure import Figure
from ..common.finding import Finding
from ..common.plugins import plugin_session
from ..errors import DamagedRecord, RunError
from ..evaluations.aggregate import Results
from ..evaluations.condition import FIRST, group_of, is_attack, kind_of, name_of, stops_early, words_of
from ..evaluations.corruptions import unlike_published
from ..evaluations.family import by_family, family_of
from ..evaluations.metrics import Metric, is_finite
from ..evaluations.presenting import Concerned, raised_once, short_names
from ..runs.folder import RunFolder
from ..tasks import metric_of
from ..tasks.labelled.flips import Flips, flipping, flips_under
from ..tasks.task import task_of
from .pairing import (
    Side,
    comparison_findings,
    flagged_results,
    intended_differences,
    pair_names,
    paired_difference,
    refuse_incomparable,
    same_file,
)
from .published import Published
from .survey import brief_rows, written_results

LEVEL = 0.05
MOST = 12
"""The number of checkpoints up to which every one is tested against every other; of more, each against the first."""
HEADINGS = ("condition", "figure", "n", "baseline", "value", "difference [95 %]", "p", "p (Holm)", "at 0.05")
HELD = 200_000
"""Figures of samples that all checkpoints may hold at once under one condition."""
_TESTED: WeakKeyDictionary[RunFolder, tuple[Sequence[Figure], Tested]] = WeakKeyDictionary()


@dataclass(frozen=True)
class ComparisonRow:
    """A difference of a pair. p_value: Holm's, over the family of tests. published: the figure of `second` less that of
    `first`, or, where both have the same attention, that figure itself; of other models and images."""

    first: Side
    second: Side
    condition: str
    metric: str
    difference: Difference
    p_value: float = math.nan
    published: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.condition, self.metric

    @property
    def shown(self) -> tuple[Metric, Difference]:
        """The metric that people read, and the difference in it: of errors under corruption, of accuracies."""
        metric = metric_of(self.metric)
        return metric.shown, self.difference.complement if metric.complement else self.difference

    @property
    def significant(self) -> bool:
        return self.p_value < LEVEL

    @property
    def verdict(self) -> str:
        """`better` or `worse` where it is significant, `higher` or `lower` for metrics that are neither; else ''."""
        if not self.significant:
            return ""
        words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("lower", "higher")}[metric_of(self.metric).better]
        return words[self.difference.value > 0]

    def to_dict(self) -> dict[str, Any]:
        """Return figures and verdict; what is not finite is None."""
        difference = self.difference
        figures = {
            "first": difference.first,
            "second": difference.second,
            "difference": difference.value,
            "ci_low": difference.ci_low,
            "ci_high": difference.ci_high,
            "p": difference.p_value,
            "p_holm": self.p_value,
            "published": self.published,
        }
        named = {"condition": self.condition, "metric": self.metric, "n": difference.n}
        named |= {"groups": difference.groups} if difference.groups else {}
        finite = {key: value if is_finite(value) else None for key, value in figures.items()}
        return named | finite | {"significant": self.significant, "verdict": self.verdict}


@dataclass(frozen=True)
class Pair:
    """The differences of `second` from `first`. changed: how they differ by intent. findings: on the comparison.
    concerned: the results that are compared, with their findings. left_out: lines on conditions that are in no row.
    flips: predictions that changed."""

    first: Side
    second: Side
    rows: tuple[ComparisonRow, ...]
    changed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()
    concerned: tuple[Concerned, ...] = ()
    flips: tuple[Flips, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        return pair_names(self.first, self.second)


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the published figures. others: tests of the run's page that count in Holm's correction, too."""

    pairs: tuple[Pair, ...]
    reference: Published | None = None
    others: tuple[ComparisonRow, ...] = ()

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        return tuple(row for pair in self.pairs for row in pair.rows)

    @property
    def sample(self) -> str:
        return next((pair.second.run.manifest.protocol.samples.one for pair in self.pairs), "sample")


@dataclass(frozen=True)
class Asked:
    """A row of the first page. called: what people call the condition."""

    condition: str
    metric: str
    called: str

    @property
    def key(self) -> tuple[str, str]:
        return self.condition, self.metric

    @property
    def family(self) -> str:
        return family_of(kind_of(self.condition)).name


@dataclass(frozen=True)
class Tested:
    """The tests of a run. comparison: of each checkpoint with the first. rows: of all pairs, those first; p-values are
    Holm's over all of them, in the comparison, too. all_pairs: was every checkpoint tested against every other?"""

    comparison: Comparison
    rows: tuple[ComparisonRow, ...]
    all_pairs: bool

    def of(self, key: tuple[str, str]) -> tuple[ComparisonRow, ...]:
        return tuple(row for row in self.rows if (row.condition, row.metric) == key)


def own_flags(pairs: Sequence[Pair]) -> list[str]:
    """Return the flags of the results that are compared, each once, in the words of those of a run."""
    names = dict.fromkeys(name for pair in pairs for name in pair.names)
    one = len({side.run.path for pair in pairs for side in (pair.first, pair.second)}) == 1
    called = short_names(names) if one else {name: name for name in names}
    return [flag.line for flag in raised_once((each for pair in pairs for each in pair.concerned), called)]


@plugin_session()
def compare_sides(pairs: Sequence[tuple[Side, Side]], reference: Published | None = None) -> Comparison:
    """Return all differences of these pairs. RunError for other tasks, classes or labels, or nothing in common."""
    resolved = None if reference is None else reference.resolved()
    family, compared = _family(pairs), list[Pair]()
    ready = {(pair.first.checkpoint, pair.second.checkpoint): pair for pair in (family.pairs if family else ())}
    for place, (first, second) in enumerate(pairs):
        pair = ready.get((first.checkpoint, second.checkpoint)) or _paired(first, second)
        compared.append(_with_findings(_as_asked(pair, first, second, resolved), resolved))
        later = {id(side) for pair in pairs[place + 1 :] for side in pair}
        for side in (first, second):
            if id(side) not in later:
                side.forget()
    return correct_together(compared, reference) if family is None else _corrected_within(compared, reference, family)


def _family(pairs: Sequence[tuple[Side, Side]]) -> Comparison | None:
    """Return the tests of a run's page, where all pairs are of one run; None where they are of several."""
    runs = {side.run.path.resolve(): side.run for pair in pairs for side in pair}
    if len(runs) != 1 or any(first.checkpoint == second.checkpoint for first, second in pairs):
        return None
    (run,) = runs.values()
    return pair_tests(written_results(run)).comparison


def _as_asked(pair: Pair, first: Side, second: Side, reference: Published | None) -> Pair:
    published = [_published(reference, first, second, row.condition, row.metric) for row in pair.rows]
    rows = [
        replace(row, first=first, second=second, published=its) for row, its in zip(pair.rows, published, strict=True)
    ]
    return replace(pair, first=first, second=second, rows=tuple(rows))


def _corrected_within(compared: Sequence[Pair], reference: Published | None, family: Comparison) -> Comparison:
    """Return pairs of a run with its page's p-values; what the page does not test counts in a family with it."""
    by_test = {_test(row): row for row in (*family.rows, *family.others)}
    added = [row for pair in compared for row in pair.rows if _test(row) not in by_test]
    adjusted = holm([row.difference.p_value for row in (*by_test.values(), *added)])
    p_values = {key: row.p_value for key, row in by_test.items()}
    p_values |= zip(map(_test, added), adjusted[len(by_test) :], strict=True)
    pairs = [
        replace(pair, rows=tuple(replace(row, p_value=p_values[_test(row)]) for row in pair.rows)) for pair in compared
    ]
    in_pairs = {_test(row) for pair in pairs for row in pair.rows}
    return Comparison(tuple(pairs), reference, tuple(row for key, row in by_test.items() if key not in in_pairs))


def _test(row: ComparisonRow) -> tuple[frozenset[str], str, str]:
    """Return what tells a test of a run from its others: whichever of the two comes first."""
    return frozenset((row.first.checkpoint, row.second.checkpoint)), row.condition, row.metric


def compare_with_first(run: RunFolder) -> Comparison:
    """Compare the checkpoints of one run with its first, for its report, without those that cannot be paired yet."""
    names = run.manifest.names
    base, compared = Side(run, names[0]), []
    for name in names[1:]:
        second = Side(run, name)
        try:
            pair = _paired(base, second)
        except RunError:  # records of one of them are not there yet
            continue
        second.forget()
        compared.append(replace(pair, findings=tuple(same_file(base, second))))  # others stand next to the results
    return correct_together(compared)


def correct_together(
    compared: Sequence[Pair], reference: Published | None = None, others: Sequence[ComparisonRow] = ()
) -> Comparison:
    """Return pairs, and tests of more pairs, as a comparison whose p-values are Holm's over all of them."""
    rows = [row for pair in compared for row in pair.rows]
    p_values = iter(holm([row.difference.p_value for row in (*rows, *others)]))

    def with_theirs(rows: Iterable[ComparisonRow]) -> tuple[ComparisonRow, ...]:
        return tuple(replace(row, p_value=next(p_values)) for row in rows)

    pairs = tuple([replace(pair, rows=with_theirs(pair.rows)) for pair in compared])
    return Comparison(pairs, reference, with_theirs(others))


def _paired(first: Side, second: Side) -> Pair:
    common = [condition for condition in first.conditions if condition in second.conditions]
    refuse_incomparable(first, second, common)
    rows, left_out = list[ComparisonRow](), list[str]()
    texts, singles = flipping(first, second)
    flips = [*flips_under(first, second, singles)]  # before what else is read of them, so that each is opened once
    for condition, metric in compared_keys(first, second):
        try:
            difference = paired_difference(first, second, condition, metric)
        except DamagedRecord:
            raise
        except RunError as fault:
            left_out.append(str(fault))
            continue
        rows.append(ComparisonRow(first, second, condition, metric, difference))
    left_out += _left_out(first, second, common)
    flips = [*flips_under(first, second, texts), *flips]
    differ = tuple(intended_differences(first.described, second.described).values())
    return Pair(first, second, tuple(rows), differ, left_out=tuple(dict.fromkeys(left_out)), flips=tuple(flips))


def _with_findings(pair: Pair, reference: Published | None) -> Pair:
    first, second, rows = pair.first, pair.second, pair.rows
    common = [condition for condition in first.conditions if condition in second.conditions]
    findings = [*comparison_findings(first, second, common), *same_file(first, second)]
    published = [(row.condition, row.metric, row.difference.n) for row in rows if row.published is not None]
    if reference is not None and published:
        findings += [each for side in (first, second) for each in reference.findings(side.manifest, published)]
        unlike = ((text, unlike_published(text)) for text, _, _ in published)
        lines = (f"{text}: {reason}, which the published figure is of" for text, reason in unlike if reason)
        findings += [Finding.of("compare/published", line=line) for line in lines]
    concerned = tuple(flagged_results(first, second, {(row.condition, row.metric) for row in rows}))
    return replace(pair, findings=tuple(dict.fromkeys(findings)), concerned=concerned)


def by_mid_p(comparison: Comparison) -> Comparison:
    """Return it with the mid-p form of McNemar's tests, and Holm's correction over all of them."""

    def changed(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
        return tuple(replace(row, difference=row.difference.by_mid_p()) for row in rows)

    pairs = [replace(pair, rows=changed(pair.rows)) for pair in comparison.pairs]
    return correct_together(pairs, comparison.reference, changed(comparison.others))


# Which rows


def compared_keys(first: Side, second: Side) -> Iterator[tuple[str, str]]:
    """Yield conditions and metrics that both may have: those of the task's table in the order of the run, then what
    families compare."""
    task, common = task_of(first.manifest), [text for text in first.conditions if text in second.conditions]
    for condition in common:
        if words_of(condition).in_results:
            for side in (first, second):
                task.read_ahead(side, condition)
            ended = any(stops_early(condition, side.manifest) for side in (first, second))
            yield from ((condition, name) for name in (task.compared.ended if ended else task.compared.shown))
    for family, conditions in by_family(common):
        yield from family.aggregator.compared(first, second, conditions, task.compared)


def _published(reference: Published | None, first: Side, second: Side, condition: str, metric: str) -> float | None:
    if reference is None:
        return None
    before, after = (str(side.described.attention) for side in (first, second))
    figure = reference.figure(after, condition, metric)
    if figure is None or before == after:
        return figure
    of_first = reference.figure(before, condition, metric)
    return None if of_first is None else figure - of_first


def _left_out(first: Side, second: Side, common: Sequence[str]) -> Iterator[str]:
    """Yield lines on the conditions that are in no row: those that the other has, or that its own run.json names."""
    names = pair_names(first, second)
    for side, other, name in ((second, first, names[1]), (first, second, names[0])):
        expected = dict.fromkeys([*other.conditions, *side.manifest.conditions_of(side.checkpoint)])
        lacking = [text for text in expected if text not in side.conditions]
        groups = {text: group_of(text) for text in (*lacking, *common)}
        partly = {groups[text] for text in common}
        # A group that is lacking at all levels is named as a group.
        if merged := dict.fromkeys(text if groups[text] in partly else groups[text] for text in lacking):
            yield f"{name} has no records under {', '.join(merged)}"


# The family of a run


def asked_results(results: Results) -> list[Asked]:
    """Return what the first page shows, in its order; of results that some checkpoint has."""
    headline, manifest = task_of(results.manifest).headline_metric, results.manifest
    rows = brief_rows(results, *FIRST)
    entries = [Asked(row.condition, row.metric.name, name_of(row.condition, "table", manifest)) for row in rows]
    return _strongest_first(entries, results, headline.name)


def _strongest_first(asked: list[Asked], results: Results, headline: str) -> list[Asked]:
    """Return what the first page shows, attacks in the order of what they leave, the least first."""
    places = [at for at, each in enumerate(asked) if is_attack(kind_of(each.condition)) and each.metric == headline]

    def left(each: Asked) -> float:
        rows = (results.cells[name].get(each.key) for name in results.names)
        values = [row.value for row in rows if row is not None and row.is_finite]
        return sum(values) / len(values) if values else math.inf

    strongest = sorted((asked[at] for at in reversed(places)), key=left)  # of equals the last
    for at, each in zip(places, strongest, strict=True):
        asked[at] = each
    return asked


def pair_tests(results: Results) -> Tested:
    """Return the paired tests of a run's checkpoints: computed once for the same results, kept as long as the run."""
    rows = list(results.rows)
    entry = _TESTED.get(results.run)
    if entry is None or entry[0] != rows:
        entry = _TESTED[results.run] = rows, _tested(results)
    return entry[1]


def _tested(results: Results) -> Tested:
    names = results.manifest.names
    if len(names) < 2 or not len(results):
        return Tested(Comparison(()), (), True)
    comparison = compare_with_first(results.run)
    paired = {(row.condition, row.metric) for row in comparison.rows}
    keys = [entry.key for entry in asked_results(results) if entry.key in paired]
    others = list(_others(results, names[1:], keys)) if 2 < len(names) <= MOST else []
    if not others:
        return Tested(comparison, comparison.rows, len(names) <= MOST)
    comparison = correct_together(comparison.pairs, None, others)
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
        if results.manifest.data.n * len(sides) > HELD:
            for side in sides:
                side.forget()


def is_in_points(metric: str) -> bool:
    return metric_of(metric).scale == 100


# As JSON


def comparison_as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all that the tables say, and where each side comes from; values that are not finite are None."""
    reference = comparison.reference
    fields = ("name", "summary", "source", "data", "protocol")
    plain = [
        {
            "first": _side(pair.first),
            "second": _side(pair.second),
            "changed": list(pair.changed),
            "flags": [*map(str, pair.findings), *own_flags([pair])],
            "left_out": list(pair.left_out),
            "rows": [row.to_dict() for row in pair.rows],
            "flips": [each.to_dict() for each in pair.flips],
        }
        for pair in comparison.pairs
    ]
    return {"pairs": plain, "reference": reference and {name: getattr(reference, name) for name in fields}}


def _side(side: Side) -> dict[str, Any]:
    described, manifest = side.described, side.manifest
    return {
        "run": str(side.run.path),
        "checkpoint": side.checkpoint,
        "sha256": described.sha256,
        "attention": described.attention,
        "protocol": manifest.protocol.tag,
        "seed": manifest.seed,
        "dtype": manifest.deciding.dtype,
        "data": manifest.data.name,
        "data_digest": manifest.data.digest,
    }
