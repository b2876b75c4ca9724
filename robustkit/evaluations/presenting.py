"""Show results: cells of tables, flags with their subjects, gaps, and the few figures that sum up a run.

Terminal, page and comparison show them in these words and in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..common.figure import INCOMPLETE, Figure
from ..common.finding import Finding, Severity
from ..display.svg import labels
from ..display.table import CardPart, Table, tables_for
from ..display.text import capital
from ..runs.description import why_not_repeated
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from .aggregate import Results
from .condition import by_words, group_of, kind_of, name_of, shares_of
from .family import families_of, family_of
from .metrics import LEFT_OUT, Cells

_NAMED = 3  # conditions and checkpoints that a flag names
_WIDEST = 28

Levels = dict[str, set[str]]  # the conditions of each group, such as all severities; a mean over several has none


@dataclass(frozen=True)
class Raised:
    """A finding, once. who: the checkpoints; where: the conditions; empty for one about the whole run."""

    who: str
    where: str
    finding: Finding

    @property
    def line(self) -> str:
        subject = ", ".join(filter(None, (self.who, self.where)))
        return f"{subject}: {self.finding}" if subject else str(self.finding)


@dataclass(frozen=True)
class Concerned:
    """A result of a checkpoint under a condition, and its findings, if any; manifest: of its run."""

    checkpoint: str
    condition: str
    findings: tuple[Finding, ...]
    manifest: Manifest


def findings_of(
    results: Results, of: Callable[[str], bool] = lambda condition: True, *severities: Severity
) -> list[Raised]:
    """Return each finding once, doubts first, then limits: without what is unfinished, what a mean repeats, and what
    only tables show. of: whose findings; severities: of which kinds, doubts and limits by default."""
    repeated = {
        (name, share)
        for name, cells in results.cells.items()
        for condition, _ in cells
        if len(shares := shares_of(condition)) > 1
        for share in shares
    }

    def is_wanted(row: Figure, finding: Finding) -> bool:
        is_repeated = finding.code == LEFT_OUT and (row.checkpoint, row.condition) in repeated
        return finding.code != INCOMPLETE and not is_repeated and finding.is_listed

    def concerned(row: Figure) -> Concerned:
        findings = tuple(each for each in row.findings if is_wanted(row, each)) if of(row.condition) else ()
        return Concerned(row.checkpoint, row.condition, findings, results.manifest)

    return raised_once(map(concerned, results), short_names(results.manifest.names), *severities)


def finding_lines(results: Results, of: Callable[[str], bool] = lambda condition: True) -> tuple[str, ...]:
    return tuple(each.line for each in findings_of(results, of))


def note_lines(results: Results, of: Callable[[str], bool] = lambda condition: True) -> tuple[str, ...]:
    """Return what is worth knowing and raises no doubt, such as misclassified images without a map score."""
    return tuple(each.line for each in findings_of(results, of, "note"))


def tables_of_families(results: Results) -> Iterator[Table]:
    """Yield the tables of all families of a run for a terminal."""
    for family in families_of(results.manifest, results):
        yield from (table.said_once("n") for table in tables_for("terminal", family.presenter.tables(results)))


def card_parts_of(checkpoint: str, results: Results) -> Iterator[CardPart]:
    """Yield the parts of the families of a run on the model card of a checkpoint, whose results are given."""
    for family in families_of(results.manifest, results):
        if tables := tables_for("card", family.presenter.tables(results)):
            notes = dict.fromkeys(filter(None, (table.note for table in tables)))
            titles = [table.title.removeprefix(f"{checkpoint}: ") for table in tables]
            named = [replace(t, title=capital(name)) for t, name in zip(tables, titles, strict=True)]
            yield CardPart(family.name.capitalize(), " ".join(notes), named)


def short_names(names: Iterable[str]) -> dict[str, str]:
    return labels(names, _WIDEST)


def of_family(name: str) -> Callable[[str], bool]:
    return lambda condition: family_of(kind_of(condition)).name == name


def raised_once(every: Iterable[Concerned], called: Mapping[str, str], *severities: Severity) -> list[Raised]:
    """Return each finding about results, with and without some, once. called: what the checkpoints are called.
    severities: doubts and limits by default."""
    order = severities or ("doubt", "limit")
    seen: dict[Finding, dict[str, Levels]] = {}  # by finding and checkpoint
    reached: dict[str, Levels] = {}
    manifests: dict[str, Manifest] = {}
    for result in every:
        name, condition = result.checkpoint, result.condition
        single = len(shares_of(condition)) == 1
        group, level = (group_of(condition), {condition}) if single else (condition, set[str]())
        reached.setdefault(name, {}).setdefault(group, set()).update(level)
        manifests[name] = result.manifest
        for finding in result.findings:
            if finding.severity in order:
                seen.setdefault(finding, {}).setdefault(name, {}).setdefault(group, set()).update(level)
    raised = []
    for finding, checkpoints in seen.items():
        alike: dict[tuple[str, ...], list[str]] = {}  # checkpoints that have it under the same conditions
        for name, groups in checkpoints.items():
            groups_once = _without_means(groups)
            every_one = _without_means(reached[name], groups_once)
            where = _all(groups_once, every_one) or _each(groups_once, reached[name], manifests[name])
            alike.setdefault((where, *groups), []).append(name)
        raised += [Raised(_who(names, called), where, finding) for (where, *_), names in alike.items()]
    return sorted(raised, key=lambda each: order.index(each.finding.severity))


def _without_means(groups: Levels, staying: Collection[str] = ()) -> Levels:
    """Return the groups without means over conditions that are all there themselves. staying: means that stay."""
    singles = set[str]().union(*groups.values())
    return {
        group: levels
        for group, levels in groups.items()
        if levels or group in staying or not singles.issuperset(shares_of(group))
    }


def _who(names: Sequence[str], called: Mapping[str, str]) -> str:
    if 1 < len(names) == len(called):
        return "both checkpoints" if len(names) == 2 else f"all {len(names)} checkpoints"
    return _some([called[name] for name in names], "checkpoints")


def _each(groups: Levels, reached: Levels, manifest: Manifest) -> str:
    """Return what people call the conditions, and which groups have the flag in part."""
    names = dict[str, None]()
    for group, levels in groups.items():
        if _is_whole(levels, reached[group]):
            names[name_of(group, "table", manifest)] = None
        else:
            one, *more = levels
            names[f"{name_of(group, 'table', manifest)} in part" if more else name_of(one, "table", manifest)] = None
    return _some(list(names), "conditions")


def _all(groups: Levels, reached: Levels) -> str:
    """Return `all conditions`, or `all corruptions`, where these are all of many; else an empty text."""
    families = {family_of(kind_of(text)).name for text in groups}
    of_these = [text for text in reached if family_of(kind_of(text)).name in families]
    named = len(groups) <= _NAMED or len(groups) < min(len(of_these), len(reached))
    if named or not all(_is_whole(levels, reached[group]) for group, levels in groups.items()):
        return ""
    return "all conditions" if len(groups) == len(reached) else f"all {' and '.join(sorted(families))}"


def _is_whole(levels: set[str], every: set[str]) -> bool:
    return not levels or levels == every


def _some(names: Sequence[str], what: str) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names) if more < 2 else f"{'; '.join(names[:_NAMED])} and {more} more {what}"


@dataclass(frozen=True)
class Gap:
    """What an unfinished run lacks under a condition or group: shards over all checkpoints, and samples with a record.

    fewest, most: samples, of the checkpoint and condition with the fewest and of that with the most.
    """

    called: str
    missing: int
    units: int
    fewest: int
    most: int

    @property
    def samples(self) -> str:
        return str(self.most) if self.fewest == self.most else f"{self.fewest} to {self.most}"


def gaps_of(run: RunFolder) -> list[Gap]:
    """Return what an unfinished run lacks, in the order of its conditions; nothing of a finished one."""
    manifest, missing, units = run.manifest, Counter[str](), Counter[str]()
    names: dict[str, str] = {}
    counts: dict[str, list[int]] = {}
    for checkpoint, condition in sorted(manifest.pairs, key=lambda pair: manifest.conditions.index(pair[1])):
        group = group_of(condition)
        names.setdefault(group, name_of(group, "table", manifest))
        units[group] += run.shard_count
        missing[group] += run.missing_units(checkpoint, condition)
        counts.setdefault(group, []).append(manifest.data.n - run.lacking(checkpoint, condition))
    return [
        Gap(names[group], missing[group], units[group], min(counts[group]), max(counts[group]))
        for group in names
        if missing[group]
    ]


def unfinished_line(run: RunFolder, checkpoint: str | None = None) -> str:
    """Return what a run, or one checkpoint, lacks, and the command that completes it; empty for a finished one."""
    missing, every = missing_units(run, checkpoint)
    if not missing:
        return ""
    what = "stops when its rules are decided" if run.manifest.is_sequential else "unfinished"
    why_not = why_not_repeated(run.manifest.command)
    without = f"rerun the same command to complete it; it is hidden because {why_not}"
    how = without if why_not else f"to complete it: {run.manifest.command}"
    return f"{what}: {missing} of {every} units are missing; {how}"


def missing_units(run: RunFolder, checkpoint: str | None = None) -> tuple[int, int]:
    """Return how many units of work have no record, and how many there are; of one checkpoint where it is given."""
    pairs = [pair for pair in run.manifest.pairs if checkpoint in (None, pair[0])]
    return sum(run.missing_units(*pair) for pair in pairs), run.shard_count * len(pairs)


def left_out_lines(run: RunFolder, checkpoint: str | None = None) -> list[str]:
    """Return lines on unprintable names, on what could not be evaluated, and on conditions without any record."""
    manifest, done, lines = run.manifest, set(run.units()), [str(each) for each in not_evaluated(run)]
    for entry in manifest.checkpoints:
        gone = [text for text in manifest.conditions_of(entry.name) if (entry.name, text) not in done]
        if gone and checkpoint in (None, entry.name):
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            lines.append(
                f"{entry.name} has no records under {', '.join(gone[:3])}{more}; rerun the same command to continue"
            )
    return lines


def not_evaluated(run: RunFolder) -> list[Finding]:
    """Return findings on images with unprintable names, and on what no repetition can evaluate."""
    lines = (f"{line}; means that need it are not given" for line in run.manifest.corrupted.left_out.values())
    return [*run.manifest.data.findings("data"), *(Finding.of("run/left-out", line=line) for line in lines)]


class Chief(NamedTuple):
    """A figure that sums up a run, and why, in a few words."""

    condition: str
    metric: str
    why: str


def chief_figures(checkpoints: Iterable[Cells], metric: str) -> list[Chief]:
    """Return the same few figures for all checkpoints, whose results are given; metric: the task's headline.

    Of several conditions, such as the strongest attack, it is the one for the mean over checkpoints.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for key, row in (item for cells in checkpoints for item in cells.items()):
        if row.is_finite:
            values.setdefault(key, []).append(row.value)
    means = {key: sum(some) / len(some) for key, some in values.items()}
    chosen, order = list[Chief](), list(dict.fromkeys(condition for condition, _ in means))
    for words, texts in sorted(by_words(order), key=lambda group: order.index(group[1][0])):
        of_family = set(texts)
        figures = {key: value for key, value in means.items() if key[0] in of_family}
        chosen += [Chief(*figure) for figure in words.chief(figures, metric)]
    return chosen
