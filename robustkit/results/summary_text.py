"""Say in a few lines what a run found: the verdict, its largest significant differences, and what stays open.

The verdict names the best checkpoints of each area, such as attacks, by paired tests of what the first page shows. A
line on a difference is about one test. All p-values are Holm's over all tests of the run, as in the comparison.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ..common.differences import Difference
from ..common.intervals import Z
from ..display.format import counted, interval, number, p_equals, percent, scaled
from ..display.svg import brief_labels, shorten_name
from ..display.text import capital
from ..evaluations.aggregate import Results
from ..evaluations.condition import is_over_groups, kind_of, name_of, words_of
from ..evaluations.family import by_family, family_of
from ..protocol.condition import CLEAN
from ..tasks import metric_of
from ..tasks.labelled.parity import parity_sentences
from ..tasks.task import task_of
from .comparison import ComparisonRow, Tested, asked_results, is_in_points
from .methods import SINGLE, MethodResults, by_method, tests_of
from .published import read_published, reference_names
from .survey import doubts_of
from .tables import Among, weakest_slice

_LONGEST = 48  # characters of a checkpoint's name in a sentence


def sentences_of_one(results: Results) -> Iterator[str]:
    name = results.manifest.names[0]
    first, *others = [*clauses_of(results, name)] or ["nothing was evaluated"]
    yield f"{shorten_name(name, _LONGEST)}: {'; '.join([first, *others[:1]])}."
    yield from (f"{capital(clause)}." for clause in others[1:])
    if among := _among_known(results, name):
        yield among


def clauses_of(results: Results, name: str) -> Iterator[str]:
    """Yield what the results say about a checkpoint: clean, under the strongest attack, under corruptions, of maps."""
    manifest, task = results.manifest, task_of(results.manifest)
    cells = {key: row for key, row in results.cells[name].items() if row.is_finite}
    if (clean := cells.get((CLEAN.text, task.headline))) is not None:
        yield task.clean_clause(clean)
    for family, conditions in by_family(dict.fromkeys(condition for condition, _ in cells)):
        if conditions:
            yield from (clause.text for clause in family.presenter.clauses(cells, manifest, task.headline_metric))
    yield from (clause.text for clause in task.last_clauses(cells))


_PLACES = ("1st", "2nd", "3rd")


def _among_known(results: Results, name: str) -> str:
    """Return its place among published checkpoints on the same data under the same card; empty where none are known."""
    manifest = results.manifest
    for spec in reference_names():
        reference = read_published(spec)
        if reference.data != manifest.data.name or not reference.is_of(manifest.protocol.tag):
            continue
        resolved, clauses, met = reference.resolved(), dict[str, str](), False
        for entry in asked_results(results):
            row = results.cells[name].get(entry.key)
            levels = {each: resolved.figure(each, *entry.key) for each in resolved.figures}
            present = {each: value for each, value in levels.items() if value is not None}
            spreads = {each: s for each in present if (s := resolved.spread(each, *entry.key)) is not None}
            places = Among(row, present, spreads).places if row is not None and present else None
            met = met or places is not None
            if places and 2 * (places[1] - places[0]) < len(present) + 1:
                ends = (_PLACES[at - 1] if at <= len(_PLACES) else f"{at}th" for at in dict.fromkeys(places))
                where = name_of(entry.condition, "sentence", manifest)
                clauses.setdefault(
                    words_of(entry.condition).claims.area, f"{' to '.join(ends)} of {len(present) + 1} {where}"
                )
        if clauses:
            return f"Among the checkpoints of {spec}, published on the same data: {listed([*clauses.values()])}."
        if met:
            return f"Too few {manifest.protocol.samples.many} to rank it among the published checkpoints of {spec}."
    return ""


MOST = 3  # the number of lines
POWER = 0.8  # how often samples of this number show a difference that a sentence names as one they can show
_ALPHA = 0.05
_FEW = 10  # samples below which no number is given
_LEAST = 0.0005  # a difference that is not shown as 0.0 points
_SMALL = 0.25  # share of a difference that one on clean images may have at most, to say that more is lost


@dataclass(frozen=True)
class Sentence:
    """A sentence, and what it is about. text: to be escaped. checkpoints: the one that it is about first. group: the
    family of conditions; empty for the whole run. difference: the first checkpoint minus the second, of the metric.
    interval: its 95 %. p_value: Holm's."""

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


def findings(results: Results) -> list[Sentence]:
    """Return what a run found: of one checkpoint how it did, its weakest spot and its place among known ones; of
    several the verdict, at most two significant differences, and what more samples would settle; last the weakest
    slice."""
    if not len(results):
        return []
    doubts = (each for each in doubts_of(results) if each.severity == "doubt" and each.room in ("setup", "labels"))
    warned = [Sentence(f"Doubtful set-up: {each.entry.title.lower()}.") for each in doubts if each.entry][:1]
    return [*warned, *_overall(results), *_of_slices(results)]


def _of_slices(results: Results) -> Iterator[Sentence]:
    """Yield `Weakest slice under fog: camera = 3 (accuracy 52.1 %, all others 77.0 %, p < .001, n = 120).`"""
    if (weakest := weakest_slice(results)) is None:
        return
    name, condition, weak, others = weakest
    judged, several = task_of(results.manifest).judged, len(results.manifest.checkpoints) > 1
    whose = f" of {shorten_name(name, _LONGEST)}" if several else ""
    where = name_of(condition, "sentence", results.manifest)
    inside, rest = (percent(each.value) for each in (weak.slice.figure, weak.rest))
    figures = f"{judged.noun} {inside}, all others {rest}, {p_equals(weak.p_value)}, n = {counted(weak.slice.figure)}"
    more = f" {others} more weak slice{'s' * (others > 1)} in the report." if others else ""
    text = f"Weakest slice{whose} {where}: {shorten_name(weak.slice.name, 2 * _LONGEST)} ({figures}).{more}"
    gap = weak.difference, (weak.low, weak.high), weak.p_value, weak.slice.figure.n
    yield Sentence(text, (name,), "", condition, judged.name, *gap)


def _overall(results: Results) -> list[Sentence]:
    if len(results.manifest.checkpoints) == 1:
        return [Sentence(text, (results.manifest.names[0],)) for text in sentences_of_one(results)]
    parities = [Sentence(text, (name,)) for name, text in parity_sentences(results)][:MOST]
    results = by_method(results)
    tests = tests_of(results)
    if not tests.rows:
        return [Sentence(f"The {results.kind} cannot be compared yet: no two have records under the same condition.")]
    names = brief_labels(results.names, _LONGEST)
    sentences = [_sentence(row, results, tests, names) for row in _ranked(results, tests)]
    standing, is_count = standing_sentence(results, tests, names)
    verdict = [Sentence(standing)] if not (is_count and sentences) else []  # a sentence says which
    if not isinstance(results, MethodResults):
        return [*parities, *[*verdict, *sentences][:MOST], *open_difference(results, tests, names)]
    single = [Sentence(SINGLE)] if results.compared.single else []
    return [*parities, *[*verdict, *single, *sentences][:MOST]]


# The verdict


@dataclass(frozen=True)
class Standing:
    """How checkpoints stand in one area of the first page, such as `under attack`. where: the area, or those of its
    conditions alone under which any differ. worse: which is significantly worse than which, in some figure, in the
    order of the run. mixed: whether two are each worse than the other, in different figures."""

    area: str
    where: str
    worse: tuple[tuple[str, str], ...]

    @property
    def mixed(self) -> bool:
        return any(pair[::-1] in self.worse for pair in self.worse)

    @property
    def losers(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Those that are worse than others, with all that these are worse than: {better: worse}."""
        by_loser = dict[str, list[str]]()
        for loser, winner in self.worse:
            by_loser.setdefault(loser, []).append(winner)
        alike = dict[tuple[str, ...], list[str]]()
        for loser, winners in by_loser.items():
            alike.setdefault(tuple(winners), []).append(loser)
        return {winners: tuple(losers) for winners, losers in alike.items()}

    @property
    def leaders(self) -> tuple[str, ...]:
        """Those that are better than some and worse than none."""
        losers = {loser for loser, _ in self.worse}
        return tuple(dict.fromkeys(winner for _, winner in self.worse if winner not in losers))


def standings(results: Results, tests: Tested) -> list[Standing]:
    """Return the standing in each area that was tested, in the order of the first page: by what this shows, and of
    maps, where no score is the chief one, by all."""
    names, areas, chief = results.names, dict[str, list[ComparisonRow]](), set[str]()
    for entry in asked_results(results):
        area = _area(entry.condition, results)
        areas.setdefault(area, []).extend(row for row in tests.of(entry.key) if math.isfinite(row.p_value))
        if entry.metric == _headline(results) or metric_of(entry.metric).complement:
            chief.add(area)
    for row in tests.rows:
        if (area := _area(row.condition, results)) in areas and area not in chief and math.isfinite(row.p_value):
            areas[area].append(row)
    by_area = []
    for area, rows in areas.items():
        ends = {
            (row.second.checkpoint, row.first.checkpoint)[:: 1 if row.verdict == "worse" else -1]
            for row in rows
            if row.verdict in ("better", "worse")
        }
        where, every = area, {_where(row.condition, results) for row in rows}
        differ = [*dict.fromkeys(_where(row.condition, results) for row in rows if row.verdict in ("better", "worse"))]
        if 0 < len(differ) <= 2 and len(every) > len(differ):
            where = listed(differ)
        if rows:
            by_area.append(Standing(area, where, tuple((a, b) for a in names for b in names if (a, b) in ends)))
    return by_area


def _area(condition: str, results: Results) -> str:
    return words_of(condition).claims.area.format(many=results.manifest.protocol.samples.many)


_GROUPS = 2  # groups of checkpoints, alike in what they are worse than, that a sentence names


def standing_sentence(results: Results, tests: Tested, names: Mapping[str, str]) -> tuple[str, bool]:
    """Return who is worse than whom at what, where nothing is significant, and who is never beaten; and whether it only
    counts tests, of figures that are not on the first page."""
    tested = [row for row in tests.rows if math.isfinite(row.p_value)]
    called = list(names.values())
    those = " and ".join(called) if len(called) == 2 else f"the {len(called)} {results.kind}"
    if not tested:
        return f"Too few samples to test any difference between {those}.", False
    sizes = f"n = {counted(max((row.difference for row in tested), key=lambda each: each.n))}"
    sizes += f", {results.compared.trainings}" if isinstance(results, MethodResults) else ""
    every, significant = len(tested), sum(row.significant for row in tested)
    verdicts = [row for row in tested if row.verdict in ("better", "worse")]
    by_area = standings(results, tests) if tests.all_pairs else []
    where = dict[str, list[str]]()
    for each in by_area:
        if each.worse:
            where.setdefault(_standing_words(each, names), []).append(each.where)
    if where:
        clauses = [f"{what} {listed(areas)}" for what, areas in where.items()]
        if level := [each for each in by_area if not each.worse]:
            clauses.append(f"no significant difference {_in_what(level, results, tests)}")
        losers = {row.first.checkpoint if row.verdict == "better" else row.second.checkpoint for row in verdicts}
        unbeaten = [names[name] for name in names if name not in losers]
        never = (
            f" Never significantly worse: {', '.join(unbeaten)}."
            if 0 < len(unbeaten) < len(names) and len(names) > 2
            else ""
        )
        text = "; ".join(clauses)
        return f"{capital(text) if text.startswith('no ') else text} ({sizes}).{never}", False
    if significant:
        how = "is" if significant == 1 else "are"
        return f"{significant} of {every} paired tests between {those} {how} significant ({sizes}).", True
    return f"No significant difference between {those} in {every} paired tests ({sizes}).", False


def _in_what(level: Sequence[Standing], results: Results, tests: Tested) -> str:
    """Return the areas without a difference, and in what, where other figures than the first page's differ there."""
    others = {_area(row.condition, results) for row in tests.rows if row.significant}
    what = f"in {task_of(results.manifest).headline_metric.noun} " if others & {each.area for each in level} else ""
    return what + listed([each.where for each in level], "or")


def _standing_words(standing: Standing, names: Mapping[str, str]) -> str:
    """Return `quest is significantly worse than standard`, of many checkpoints who is best and who is worst."""

    def call(group: Sequence[str]) -> str:
        return listed([names[name] for name in group])

    if standing.mixed:
        return "no single winner"
    groups = standing.losers
    if len(groups) <= _GROUPS:
        parts = [
            f"{call(worse)} {'is' if len(worse) == 1 else 'are'} significantly worse than {call(better)}"
            for better, worse in groups.items()
        ]
        return ", ".join(parts)
    worst = max(groups, key=len)
    best = f"{call(standing.leaders)} {'is' if len(standing.leaders) == 1 else 'are'} significantly best"
    return f"{best} and {call(groups[worst])} worst"


def listed(texts: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`, after the third how many more there are; empty for none."""
    if not texts:
        return ""
    items = list(texts) if len(texts) < 5 else [*texts[:3], f"{len(texts) - 3} more"]
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def open_difference(results: Results, tests: Tested, names: Mapping[str, str]) -> list[Sentence]:
    """Return a finding on the clearest difference of the first page that is not significant, where no checkpoint is
    best if there is one, and how many more samples would settle it if it is real; else what these could have shown."""
    many = results.manifest.protocol.samples.many
    decided = {each.area for each in standings(results, tests) if each.worse}
    areas = {entry.key: _area(entry.condition, results) for entry in asked_results(results)}
    pairs = [(row, areas[key]) for row in tests.rows if (key := (row.condition, row.metric)) in areas]
    pairs = [(row, area) for row, area in pairs if not row.significant and is_in_points(row.metric)]
    every = len(tests.rows)
    reaches = {id(row): detectable_difference(row.difference, every, metric_of(row.metric).binary) for row, _ in pairs}
    clear = [each for each in pairs if math.isfinite(reaches[id(each[0])]) and abs(each[0].difference.value) > _LEAST]
    if clear:
        row, _ = max(clear, key=lambda at: (at[1] not in decided, abs(at[0].difference.value) / reaches[id(at[0])]))
        n = row.difference.n
        more = math.ceil(n * (reaches[id(row)] / abs(row.difference.value)) ** 2) - n
        where = _where(row.condition, results)
        second, first = names[row.second.checkpoint], names[row.first.checkpoint]
        ends = interval(row.shown[1].ci_low, row.shown[1].ci_high, sign="+")
        clear_of_0 = row.difference.ci_low > 0 or row.difference.ci_high < 0
        why = f" (the interval excludes 0, but {every} tests were made)" if clear_of_0 else ""
        call = f"{second} vs {first}, {_size(row, whole=True)} {where} {ends}"
        amount = _rounded(n + max(more, _FEW))  # power and the exact test are not the same
        return [Sentence(f"Still open: {call}; about {amount} {many} in all would probably decide it{why}.")]
    if reaches and (reach := max(filter(math.isfinite, reaches.values()), default=math.nan)) < 1:
        return [Sentence(f"The smallest detectable difference is about {math.ceil(100 * reach)} points.")]
    return []


def _where(condition: str, results: Results) -> str:
    """Return `under PGD (1/255)`, without its other parameters."""
    return re.sub(r"\(([^,()]+),.*\)$", r"(\1)", name_of(condition, "sentence", results.manifest))


def _rounded(count: int) -> str:
    """Return a count with two digits that matter."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // step) * step:,}".replace(",", "\u202f")


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


def _sentence(row: ComparisonRow, results: Results, tests: Tested, names: Mapping[str, str]) -> Sentence:
    """Return `quest is less robust than standard under PGD (4/255; accuracy −9.4 points, p = .003, n = 128).` Only
    where both do about the same on clean images, since no drop is tested; else `quest has a lower accuracy than`."""
    first, second = names[row.first.checkpoint], names[row.second.checkpoint]
    where = name_of(row.condition, "sentence", results.manifest)
    claims = words_of(row.condition).claims
    alike = row.condition == CLEAN.text or _alike_when_clean(row, results, tests)
    if row.verdict in ("better", "worse") and claims.better and alike and is_in_points(row.metric):
        predicate, figure = (
            f"{claims.better if row.verdict == 'better' else claims.worse} than {first}",
            f"{_noun(row)} {_size(row)}",
        )
    else:
        how = "higher" if row.shown[1].value > 0 else "lower"
        predicate, figure = f"has a {how} {_noun(row)} than {first}", _size(row)
    begun = f"{where[:-1]}; " if where.endswith(")") else f"{where} ("
    return _of(row, f"{second} {predicate} {begun}{figure}, {p_equals(row.p_value)}, n = {counted(row.difference)}).")


def _of(row: ComparisonRow, text: str) -> Sentence:
    difference, family = row.difference, family_of(kind_of(row.condition)).name
    of = (row.second.checkpoint, row.first.checkpoint), family, row.condition, row.metric
    return Sentence(text, *of, difference.value, (difference.ci_low, difference.ci_high), row.p_value, difference.n)


def _alike_when_clean(row: ComparisonRow, results: Results, tests: Tested) -> bool:
    """Whether the two do not differ significantly, and by less than a quarter, on clean images, if there are any."""
    pair = row.first.checkpoint, row.second.checkpoint
    when_clean = tests.of((CLEAN.text, _headline(results)))
    clean = next((test for test in when_clean if (test.first.checkpoint, test.second.checkpoint) == pair), None)
    if clean is None or not math.isfinite(clean.difference.value):
        return True
    small = abs(clean.difference.value) < _SMALL * abs(row.difference.value)
    return small and not clean.p_value < _ALPHA


def _noun(row: ComparisonRow) -> str:
    metric = row.shown[0]
    return metric.noun or metric.word


def _size(row: ComparisonRow, whole: bool = False) -> str:
    """Return `+9.4 points`, or `+0.311`; whole: `+9.4 points of accuracy`."""
    value, noun = row.shown[1].value, f" of {_noun(row)}" if whole else ""
    return f"{scaled(value, sign='+')} points{noun}" if is_in_points(row.metric) else f"{number(value, sign='+')}{noun}"


def detectable_difference(difference: Difference, tests: int, binary: bool) -> float:
    """Return the difference that samples as these show with a probability of `POWER`, at 0.05 over some tests: by the
    normal approximation, and of binary samples at least what McNemar's exact test can show. nan without an interval."""
    error = (difference.ci_high - difference.ci_low) / (2 * Z)
    level = _ALPHA / max(tests, 1)
    reach = (NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(POWER)) * error
    fewest = math.ceil(1 - math.log2(level)) / max(difference.n, 1) if binary else 0.0
    return max(reach, fewest)
