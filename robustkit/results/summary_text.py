"""Say in at most three sentences what a run found.

A sentence is about one test. Its p-value is Holm's over all tests of the run, as in the comparison. Where nothing
differs beyond chance the sentences say so, and how large a difference the samples would have shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from ..common.differences import Difference
from ..common.intervals import Z
from ..display.svg import labels, shorten_name
from ..evaluations.aggregate import Results
from ..evaluations.condition import is_over_groups, kind_of, name_of
from ..evaluations.family import by_family, family_of
from ..evaluations.metrics import is_finite
from ..evaluations.presenting import gaps_of
from ..protocol.condition import CLEAN
from ..tasks.registry import metric_of
from ..tasks.task import task_of
from .comparison import ComparisonRow, Tested, asked_results, is_in_points, pair_tests
from .survey import doubts_of

_LONGEST = 48  # characters of a checkpoint's name in a sentence


def sentences_of_one(results: Results) -> Iterator[str]:
    manifest, task = results.manifest, task_of(results.manifest)
    name = manifest.names[0]
    cells = {key: row for key, row in results.cells[name].items() if is_finite(row["value"])}
    clauses = []
    if (clean := cells.get((CLEAN.text, task.headline))) is not None:
        clauses.append(task.clean_clause(clean))
    for family, conditions in by_family(dict.fromkeys(condition for condition, _ in cells)):
        if conditions:
            clauses += [clause.text for clause in family.presenter.clauses(cells, manifest, task.headline_metric)]
    if clauses:
        yield f"{shorten_name(name, _LONGEST)}: {'; '.join(clauses[:2])}."
    if clauses[2:]:
        yield f"{clauses[2][:1].upper()}{clauses[2][1:]}."
    if doubt := _doubt(results, name):
        yield doubt


def _doubt(results: Results, name: str) -> str:
    """Return whether any flag raises doubt about the results, and the first; empty where some are still missing."""
    flags = doubts_of(results.cells[name].values())
    if not flags:
        return "" if gaps_of(results.run) else "No flag was raised about these numbers."
    first, (condition, *_) = next(iter(flags.items()))
    count = "One flag raises" if len(flags) == 1 else f"{len(flags)} flags raise"
    return f"{count} doubt about these numbers{'' if len(flags) == 1 else ', the first'} ({condition}): {first}."


MOST = 3  # the number of sentences
POWER = 0.8  # how often samples of this number show a difference that a sentence names as one they can show
_ALPHA = 0.05
_SMALL = 0.25  # share of a difference that one on clean images may have at most, to say that more is lost


@dataclass(frozen=True)
class Finding:
    """A sentence, and what it is about. text: to be escaped. checkpoints: the one that it is about first. group: the
    family of conditions; empty for the whole run. difference: the first checkpoint minus the second. interval: its 95
    %. p_value: Holm's."""

    text: str
    checkpoints: tuple[str, ...] = ()
    group: str = ""
    condition: str = ""
    metric: str = ""
    difference: float = math.nan
    interval: tuple[float, float] = (math.nan, math.nan)
    p_value: float = math.nan
    n: int = 0

    @property
    def significant(self) -> bool:
        return self.p_value < _ALPHA


def summary_sentences(results: Results) -> list[str]:
    return [finding.text for finding in findings(results)]


def findings(results: Results) -> list[Finding]:
    """Return what a run found, in at most three sentences: of one checkpoint how it did, of several what differs."""
    if not len(results):
        return []
    if len(results.manifest.checkpoints) == 1:
        return [Finding(text, (results.manifest.names[0],)) for text in sentences_of_one(results)][:MOST]
    tests = pair_tests(results)
    if not tests.rows:
        return [Finding("The checkpoints cannot be compared yet: no two have records under the same condition.")]
    names = labels(results.manifest.names, _LONGEST)
    shown = [_finding(row, results, tests, names) for row in _ranked(results, tests)][:MOST]
    return [*shown, *_without(results, tests, names, bool(shown))][:MOST]


# Which differences


def _ranked(results: Results, tests: Tested) -> list[ComparisonRow]:
    """Return the significant differences worth a sentence, the largest first, those of the first page before others:
    one for each family, and its contrary, if any: the same two checkpoints the other way round."""
    front = {entry.key for entry in asked_results(results)}

    def rank(row: ComparisonRow) -> tuple[bool, bool, bool, float]:
        size = abs(row.difference.value) if is_in_points(row.metric) else -row.difference.p_value
        of_set = row.metric == _headline(results) or is_over_groups(row.condition)
        return (row.condition, row.metric) not in front, not is_in_points(row.metric), not of_set, -size

    significant = sorted((row for row in tests.rows if row.verdict in ("better", "worse")), key=rank)
    chosen: dict[tuple[str, bool], ComparisonRow] = {}
    for row in significant:
        main = (row.condition, row.metric) in front
        group = (family_of(kind_of(row.condition)).name if main else "", True)
        leader = chosen.setdefault(group, row)
        pair, other = (row.first, row.second), (leader.first, leader.second)
        if main and pair == other and row.verdict != leader.verdict:
            chosen.setdefault((group[0], False), row)
    if len(chosen) > 1:
        chosen.pop(("", True), None)  # such as a loss, where accuracies differ
    return sorted(chosen.values(), key=rank)


def _headline(results: Results) -> str:
    return task_of(results.manifest).headline


# Sentences


def _finding(row: ComparisonRow, results: Results, tests: Tested, names: dict[str, str]) -> Finding:
    said, whole = _said(row, results, tests, names)
    return _of(row, f"{said}: {_size(row, whole)}, {p_said(row.p_value)} ({_samples(row.difference.n)}).")


def _of(row: ComparisonRow, text: str) -> Finding:
    difference, family = row.difference, family_of(kind_of(row.condition)).name
    of = (row.second.checkpoint, row.first.checkpoint), family, row.condition, row.metric
    return Finding(text, *of, difference.value, (difference.ci_low, difference.ci_high), row.p_value, difference.n)


def _said(row: ComparisonRow, results: Results, tests: Tested, names: dict[str, str]) -> tuple[str, bool]:
    """Return `quest loses more to noise than standard` (only where both do about the same on clean images, since no
    drop is tested), or `quest has a higher ABPC … than standard`; and whether the metric is still to be named."""
    first, second = names[row.first.checkpoint], names[row.second.checkpoint]
    where = name_of(row.condition, "sentence", results.manifest)
    if where.startswith("under ") and is_in_points(row.metric) and _alike_when_clean(row, results, tests):
        return f"{second} loses {'more' if row.verdict == 'worse' else 'less'} to {where[6:]} than {first}", True
    how = "higher" if row.difference.value > 0 else "lower"
    return f"{second} has a {how} {_noun(row.metric)} {where} than {first}", False


def _alike_when_clean(row: ComparisonRow, results: Results, tests: Tested) -> bool:
    """Whether the two differ not beyond chance, and by less than a quarter, on clean images, if there are any."""
    pair = row.first.checkpoint, row.second.checkpoint
    when_clean = tests.of((CLEAN.text, _headline(results)))
    clean = next((test for test in when_clean if (test.first.checkpoint, test.second.checkpoint) == pair), None)
    if clean is None or not math.isfinite(clean.difference.value):
        return True
    small = abs(clean.difference.value) < _SMALL * abs(row.difference.value)
    return small and not clean.p_value < _ALPHA


def _noun(metric: str) -> str:
    found = metric_of(metric)
    return found.noun or found.word


def _size(row: ComparisonRow, whole: bool) -> str:
    """Return `+9.4 points of error`, or `+0.311`; whole: with the metric."""
    value = row.difference.value
    of = f" of {_noun(row.metric)}" if whole else ""
    text = f"{100 * value:+.1f} points{of}" if is_in_points(row.metric) else f"{value:+.3f}{of}"
    return text.replace("-", "−", 1) if value < 0 else text


def p_said(value: float) -> str:
    """Return `p = .003`, for a sentence."""
    return "p < .001" if value < 0.001 else "p = 1" if value > 0.9995 else f"p = {value:.3f}".replace("0.", ".", 1)


def _samples(n: int) -> str:
    return f"{n} sample{'' if n == 1 else 's'}"


# What does not differ


def _without(results: Results, tests: Tested, names: dict[str, str], some: bool) -> Iterator[Finding]:
    """Yield what is not beyond chance: of two checkpoints the largest such difference, and what samples can show."""
    tested = [row for row in tests.rows if math.isfinite(row.p_value)]
    n = max((row.difference.n for row in tested), default=0)
    every, called = len(tested), list(names.values())
    those = " and ".join(called) if len(called) == 2 else f"the {len(called)} checkpoints"
    left = sum(not row.significant for row in tested)
    if not tested:
        yield Finding(f"There are too few samples to test any difference between {those}.")
        return
    if not some and left == every:
        yield Finding(f"No difference between {those} is beyond chance in {every} paired tests ({_samples(n)}).")
    elif not some:
        yield Finding(
            f"{every - left} of {every} paired tests between {those} {'shows' if every - left == 1 else 'show'} a "
            f"difference beyond chance, of figures of which neither more nor less is better ({_samples(n)})."
        )
    front = {entry.key for entry in asked_results(results)}
    alike = [row for row in tested if is_in_points(row.metric) and not row.significant]
    shown_alike = [row for row in alike if (row.condition, row.metric) in front]
    largest = max(shown_alike, key=lambda row: abs(row.difference.value), default=None)
    clean = [row for row in tested if (row.condition, row.metric) == (CLEAN.text, _headline(results))]
    sizes = (detectable_difference(row.difference, len(tests.rows), metric_of(row.metric).binary) for row in clean)
    shown = max(sizes, default=math.nan)
    if not some and left == every and largest is not None and largest.difference.value:
        where = name_of(largest.condition, "sentence", results.manifest)
        first, second = names[largest.first.checkpoint], names[largest.second.checkpoint]
        size = f"{second} has {_size(largest, whole=True)} against {first}, {p_said(largest.p_value)}"
        yield _of(largest, f"The largest is {where}: {size}.")
    on_clean = f"On clean {results.manifest.protocol.samples.many}"
    about = f"a difference of about {math.ceil(100 * shown)} points" if shown < 1 else ""
    if clean and not any(row.significant for row in clean) and some:
        could = f"; they could have shown {about}" if about else "; they are too few to show any"
        could = could if math.isfinite(shown) else ""
        yield _of(clean[0], f"{on_clean} no difference is beyond chance ({_samples(n)}){could}.")
    elif left and some:
        yield Finding(f"{left} of {every} paired tests show no difference beyond chance ({_samples(n)}).")
    elif not some and math.isfinite(shown):
        could = f"could have shown {about}, four times out of five" if about else "are too few to show any"
        yield Finding(f"{on_clean} {_samples(n)} {could}.")


def detectable_difference(difference: Difference, tests: int, binary: bool) -> float:
    """Return the difference that samples as these show with a probability of `POWER`, at 0.05 over some tests: by the
    normal approximation, and of binary samples at least what McNemar's exact test can show. nan without an interval."""
    error = (difference.ci_high - difference.ci_low) / (2 * Z)
    level = _ALPHA / max(tests, 1)
    reach = (NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(POWER)) * error
    fewest = math.ceil(1 - math.log2(level)) / max(difference.n, 1) if binary else 0.0
    return max(reach, fewest)
