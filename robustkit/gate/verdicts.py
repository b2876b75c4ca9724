"""Judge a run by rules: pass, fail or inconclusive, why, and what would help.

The figure that a rule asks for is looked up in one run or two; or it is said why there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import NamedTuple

from ..common.differences import needed_unchanged, of_outcomes, rare_share_bound
from ..common.figure import INCOMPLETE, Figure
from ..common.finding import Finding
from ..common.intervals import Z, simultaneous_z
from ..common.plugins import plugin_session
from ..display.text import no_controls
from ..errors import DamagedRecord, NothingEvaluated, ProtocolError, RunError
from ..evaluations.condition import (
    CORRUPTION,
    in_means,
    is_exactly,
    matches,
    pattern_of,
    shares_of,
    vocabulary_of,
    words_of,
)
from ..protocol.condition import ConditionPattern
from ..results import pairing
from ..results.methods import Method
from ..results.pairing import Side, missing_command, missing_records
from ..results.slices import FEWEST, Columns, slices_of
from ..results.survey import survey
from ..runs.description import why_not_repeated
from ..runs.folder import RunFolder
from ..runs.manifest import CheckpointEntry, Manifest
from ..runs.merging import card_difference, list_differences
from ..tasks import find_metric, metric_of
from ..tasks.task import task_of
from .identity import compare_identity
from .policy import (
    OF_RUN,
    SLACK,
    Change,
    Identity,
    NoFindings,
    Policy,
    Rule,
    Value,
    always_meets,
    meets_bound,
    quote,
)

_SHOWN = 3  # differences of set-ups that a line names


class MeasuredRun:
    """A run with its results, computed from the records. cells: by checkpoint, a row for each condition and metric."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.manifest = run, run.manifest
        self.refused = no_controls(run.refusal())
        lacking = any(run.missing_units(*pair) for pair in self.manifest.pairs)
        if self.refused and lacking and not self.manifest.is_sequential:
            raise RunError(
                f"{run.path}: the last audit into this run was refused, and it is not finished: {self.refused}; rerun "
                f"the audit until it completes, or delete {run.refusal_path}"
            )
        self.results = survey(run)
        self.cells, self.task = self.results.cells, task_of(self.manifest)
        self.checkpoints = {checkpoint.name: checkpoint for checkpoint in self.manifest.checkpoints}
        if not len(self.results):
            raise NothingEvaluated(f"{run.path}: there are no results to check; rerun the audit until it completes")

    @cached_property
    def methods(self) -> dict[str, Method]:
        """By name, with figures from the records, as of checkpoints."""
        methods = self.manifest.methods.items()
        return {name: Method.of(name, [self.side(each) for each in some]) for name, some in methods}

    def side(self, name: str) -> Side:
        side = Side(self.run, name)
        vars(side)["results"] = [*self.cells[name].values()]
        return side

    def judged(self, rule: Rule, name: str) -> Side:
        """Return what a rule judges: a checkpoint, or a method, which is all of its trainings."""
        return self.methods[name] if rule.method else self.side(name)

    @cached_property
    def columns(self) -> Columns:
        """The columns by which slices are made. Raises DamagedRecord where the metadata are not those of the run."""
        return Columns(self.run)

    def without_records(self, name: str) -> list[str]:
        done = {condition for checkpoint, condition in self.run.units() if checkpoint == name}
        return [condition for condition in self.manifest.conditions_of(name) if condition not in done]

    def without_figures(self, name: str) -> list[str]:
        """Return the conditions with records of which no sample counts."""
        texts, without = {text for text, _ in self.cells[name]}, self.without_records(name)
        rest = (text for text in self.manifest.conditions_of(name) if text not in (*texts, *without))
        return [text for text in rest if not any(matches(pattern_of(text), each) for each in texts)]


class CannotTell(Exception):  # noqa: N818 - an outcome rather than a fault
    """There is no figure. command: evaluates what nobody asked for; completes: makes the records that are missing."""

    def __init__(self, reason: str, command: str = "", completes: str = "") -> None:
        super().__init__(reason)
        self.command, self.completes = command, completes


class Ambiguous(Exception):  # noqa: N818
    """Several conditions fit."""


def missing_condition(subject: MeasuredRun, name: str, pattern: ConditionPattern) -> CannotTell:
    manifest = subject.manifest
    if any(matches(pattern, text) for text in manifest.conditions if text not in manifest.conditions_of(name)):
        return CannotTell(
            f"{pattern.text} needs gradients, which {name} lacks; use an attack without them, such as square, or "
            f"transfer_accuracy under transfer({pattern.text},from=NAME)"
        )
    reason = f"{pattern.text} was not evaluated"
    if manifest.checkpoint(name).is_elsewhere:
        remedy = "predict its samples under it, add them to the file, and audit that into another folder"
        return CannotTell(f"{reason}, and the predictions of {name} come from another system: {remedy}")
    return CannotTell(reason, missing_command(manifest, name, pattern, subject.run.path))


def find_condition(subject: MeasuredRun, name: str, metric: str, pattern: ConditionPattern) -> str:
    """Return the condition of the run that a rule means. Raises CannotTell where there is none, Ambiguous for
    several."""
    cells = subject.cells[name]
    fitting = [text for text in dict.fromkeys(text for text, _ in cells) if matches(pattern, text)]
    having = [text for text in fitting if metric == "n" or (text, metric) in cells]
    having = [text for text in having if is_exactly(pattern, text)] or having
    if len(having) > 1:
        raise Ambiguous(f"{pattern.text} is ambiguous: the run has {' and '.join(having)}; write one of them in full")
    if not fitting:
        parts = [*map(pattern_of, shares_of(pattern.text))]
        for mean in dict.fromkeys(text for text, _ in cells):
            if all(any(matches(part, each) for each in shares_of(mean)) for part in parts):
                raise CannotTell(f"the run has {mean}, which holds all of {pattern.text}; state the rule of {mean}")
        raise missing_condition(subject, name, pattern)
    if not having:
        measures = ", ".join(measure for text, measure in cells if text == fitting[0])
        raise CannotTell(f"there is no {metric} under {fitting[0]}; there are {measures}")
    if other := _of_other_source(pattern, having[0], subject.manifest.conditions_of(name)):
        files, here = "come from released files", "were corrupted here"
        is_released, others = (files, here) if RELEASED in pattern_of(having[0]).pairs else (here, files)
        raise CannotTell(
            f"the images of {having[0]} {is_released}, those of {other} {others}, so the run has two protocols; audit "
            "all in one way, or state source=released or source=memory in the rule"
        )
    return having[0]


def _of_other_source(pattern: ConditionPattern, chosen: str, conditions: Sequence[str]) -> str:
    """Return a corruption of the run whose images have another source than the chosen one, which the rule does not
    state; empty where there is none."""
    words = vocabulary_of(CORRUPTION)
    if words_of(chosen) is not words or "source" in pattern.given:
        return ""
    ours = RELEASED in pattern_of(chosen).pairs
    others = (text for text in conditions if words_of(text) is words)
    return next((text for text in others if (RELEASED in pattern_of(text).pairs) is not ours), "")


RELEASED = "source=released"


MISSING = (INCOMPLETE, "run/no-records", "evidence/missing", "setup/evidence-missing", "attack/other-images")
"""Findings about records or evidence that are missing, and that the same audit makes."""


def judged_figure(figure: Figure) -> Figure:
    """Return a figure for a rule. An interval of zero width is left out: resampling saw no difference in so few
    samples."""
    metric = find_metric(figure.metric)
    if figure.low != figure.high or (metric and metric.binary):
        return figure
    reach = rare_share_bound(figure.n) if metric and metric.share else math.nan
    low, high = figure.value - reach, figure.value + reach  # a share's stay in [0, 1]
    return replace(figure, low=max(low, 0.0), high=min(high, 1.0))


Described = tuple[Manifest, CheckpointEntry]  # a checkpoint of a run, as run.json describes both


def differences(baseline: Described, run: Described, excepted: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return findings on what was computed otherwise in a baseline. excepted: parts of lines that a rule accepts.
    Raises CannotTell where they differ in what decides figures besides the weights."""
    (before, first), (after, second) = baseline, run
    check_card(before, after)
    old, new = before.deciding.to_plain(), after.deciding.to_plain()
    for key in ("data digest", "seed"):
        if old[key] != new[key]:
            what = list_differences(key, old[key], new[key], "in the baseline")
            raise CannotTell(f"the runs cannot be paired: {what}; audit both in the same way")
    for what, one, other in (
        ("the task", task_of(before).name, task_of(after).name),
        ("the number of classes", before.data.classes, after.data.classes),
        ("the number of outputs", first.num_classes, second.num_classes),
    ):
        if one != other:
            raise CannotTell(f"the runs cannot be paired: {what} is {one} in the baseline and {other} here")
    changes = pairing.run_changes(pairing.run_setup(before), pairing.run_setup(after), ())
    intended = pairing.intended_differences(first, second)
    reported = [intended[name] for name in ("weights",) if name in intended]
    reported += [finding.text for finding in changes if finding.code == "compare/rounding"]
    lines = [*intended.values(), *(finding.text for finding in changes)]
    strange = [line for line in lines if line not in reported and not any(part in line for part in excepted)]
    if strange:
        parts = ", ".join(map(quote, strange[:_SHOWN]))
        more = f"; and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        remedy = f"audit both in the same way, or accept this in the rule: except {parts}"
        raise CannotTell(f"the baseline has a different set-up: {'; '.join(strange[:_SHOWN])}{more}; {remedy}")
    accepted = [Finding.of("baseline/accepted", line=line) for line in lines if line not in reported]
    return (*(Finding.of("baseline/differs", line=line) for line in reported), *accepted)


def check_card(before: Manifest, after: Manifest, *conditions: str) -> None:
    """Raise CannotTell where a condition uses another part of the card in a baseline."""
    if other := card_difference(before, after, conditions):
        raise CannotTell(
            f"the runs cannot be paired: {list_differences(*other, 'in the baseline')}; audit both in the same way"
        )


class ChangedFigure(NamedTuple):
    """A change. before: the baseline's figure. same: whether the two are one checkpoint."""

    figure: Figure
    before: float
    same: bool


def change_of(
    first: Side, second: Side, condition: str, metric: str, falls: bool, mid_p: bool = False
) -> ChangedFigure:
    """Return how much the second is below the first (`falls`) or above it, paired by sample. Raises CannotTell."""
    for whole, which in ((first, "the baseline"), (second, "the run")):
        for side in whole.sides:
            if gone := missing_records(side, condition, metric):
                raise CannotTell(f"{which} is {gone[0].text}", completes=side.run.manifest.command)
    manifests = first.run.manifest, second.run.manifest
    for text in shares_of(condition):
        taken = [manifest.corrupted.digests.get(text) for manifest in manifests]
        check_card(*manifests, text)
        if taken[0] != taken[1]:
            raise CannotTell(f"the runs cannot be paired: {text} reads different files here than in the baseline")
    try:
        if isinstance(first, Method) and isinstance(second, Method):
            difference = second.less(first, (condition, metric))
        else:
            difference = pairing.paired_difference(first, second, condition, metric)
        difference = difference.by_mid_p() if mid_p else difference
    except RunError as fault:
        raise CannotTell(str(fault)) from None
    pairs = [(one.described, other.described) for one, other in zip(first.sides, second.sides, strict=False)]
    same = difference.value == 0 and all(pairing.same_identity(*pair) for pair in pairs)
    figure = difference.value, difference.ci_low, difference.ci_high
    value, low, high = (0.0 - figure[0], 0.0 - figure[2], 0.0 - figure[1]) if falls else figure
    return ChangedFigure(Figure(value, difference.n, low, high, groups=difference.groups), difference.first, same)


PASS, FAIL, UNDECIDED = "pass", "FAIL", "inconclusive"
SAME = "the baseline is this same checkpoint, so nothing can differ; give the run of the released checkpoint"


@dataclass(frozen=True)
class Verdict:
    """The verdict on a rule for one checkpoint; none where the rule is about the whole run. reason: says more than the
    figure, or nothing. needed: samples that would decide it. whole: nothing was missing. command, completes: as of
    CannotTell; text of run.json, see `why_not_repeated`. of: how many samples there are, if it was decided before
    all had come. slice: the one that decides, of a rule about slices."""

    rule: Rule
    checkpoint: str
    state: str
    reason: str = ""
    figure: Figure | None = None
    condition: str = ""
    needed: int | None = None
    completes: str = ""
    whole: bool = True
    command: str = ""
    of: int | None = None
    slice: str = ""

    @property
    def why(self) -> str:
        """The reason, with the command that evaluates what is missing."""
        if not self.command:
            return self.reason
        why_not = why_not_repeated(self.command)
        how = f"hidden because {why_not}" if why_not else self.command
        return f"{self.reason}; evaluate it with: {how}"

    @property
    def short_of_samples(self) -> bool:
        """Whether it was measured, but with too few samples to decide: what a policy's `undecided` is about."""
        return self.state == UNDECIDED and self.figure is not None and self.whole


@dataclass(frozen=True)
class Outcome:
    """All verdicts of a policy. rows: the results that they are about. notes: on the runs, which decide nothing."""

    policy: Policy
    verdicts: tuple[Verdict, ...] = field(default=())
    rows: Sequence[Figure] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    lock: tuple[str, str] | None = None
    """The name and the digest of the lock that the run agrees with."""

    def stops(self, verdict: Verdict) -> bool:
        if verdict.state == PASS or verdict.rule.severity == "warning":
            return False
        return not (verdict.short_of_samples and self.policy.undecided == "pass")

    @property
    def passed(self) -> bool:
        return not any(map(self.stops, self.verdicts))


@plugin_session()
def judge(policy: Policy, run: RunFolder, baseline: RunFolder | None = None) -> Outcome:
    """Return the verdicts of all rules, in their order, for each checkpoint that a rule is about. Raises ProtocolError
    where a condition fits several, NothingEvaluated, RunError."""
    subject, before = MeasuredRun(run), None if baseline is None else MeasuredRun(baseline)
    verdicts: list[Verdict] = []
    for rule in policy.rules:
        if isinstance(rule.statement, Identity) and rule.statement.subject in OF_RUN:
            verdicts.append(of_identity(rule, "", rule.statement, subject))
            continue
        names = matching(rule.method or rule.checkpoint, [*(subject.methods if rule.method else subject.checkpoints)])
        if rule.method and isinstance(rule.statement, Identity | NoFindings):  # what each of its trainings says
            names = [each.checkpoint for name in names for each in subject.methods[name].sides]
        if getattr(rule.statement, "metric", "") == "parity" and len(names) > 1:  # not of the one that it is with
            names = [name for name in names if name != subject.manifest.parity]
        if not names:
            kind, names_of_run = ("method", subject.methods) if rule.method else ("checkpoint", subject.checkpoints)
            reason = f"no such {kind} in the run; it has {', '.join(names_of_run) or 'none: audit with --method'}"
            verdicts.append(Verdict(rule, rule.method or rule.checkpoint, UNDECIDED, reason))
        verdicts += (_verdict(policy, rule, name, subject, before) for name in names)
    notes = (
        f"a later audit into {each.run.path} was refused; these verdicts are of the run before it: {each.refused}"
        for each in (subject, before)
        if each and each.refused
    )
    mid = policy.mid_p and any(isinstance(rule.statement, Change) for rule in policy.rules)
    line = ["changes of right and wrong have the intervals of McNemar's mid-p test"] if mid else []
    return Outcome(policy, tuple(verdicts), subject.results, (*notes, *line))


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the checkpoints that a rule is about. A name may hold what means something in a pattern."""
    return [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]


def _verdict(policy: Policy, rule: Rule, name: str, subject: MeasuredRun, before: MeasuredRun | None) -> Verdict:
    statement = rule.statement
    try:
        if isinstance(statement, Identity):
            return of_identity(rule, name, statement, subject)
        if isinstance(statement, NoFindings):
            return _of_findings(rule, name, statement, subject)
        if isinstance(statement, Change):
            return _of_change(policy, rule, name, statement, subject, before)
        side = subject.judged(rule, name)
        first = side.sides[0].checkpoint
        condition = find_condition(subject, first, statement.metric, statement.condition)
        if statement.metric == "n":
            of_all = max(row.n for (text, _), row in subject.cells[first].items() if text == condition)
            figure = Figure(of_all, of_all)
        else:
            key = condition, statement.metric
            measured = side.figure(key) if isinstance(side, Method) else subject.cells[first][key]
            if measured is None:
                raise CannotTell(f"a training of {name} has no such figure", completes=subject.manifest.command)
            figure = judged_figure(measured)
            if gone := [lack for each in side.sides for lack in missing_records(each, condition, statement.metric)]:
                others = tuple(each for each in figure.findings if each.code != INCOMPLETE)
                partial, command = replace(figure, findings=others), subject.manifest.command
                return Verdict(rule, name, UNDECIDED, gone[0].text, partial, condition, completes=command, whole=False)
            if statement.by:
                return _of_slices(rule, name, statement, subject, condition)
        state, reason, needed = _decided(statement, figure, statement.metric, side)
        return Verdict(rule, name, state, reason, figure, condition, needed)
    except CannotTell as why:
        return Verdict(rule, name, UNDECIDED, str(why), command=why.command, completes=why.completes)
    except Ambiguous as why:
        raise ProtocolError(f"{policy.path}: {rule.place}: {why}") from None


def _decided(statement: Value | Change, figure: Figure, metric: str, side: Side) -> tuple[str, str, int | None]:
    """Return what `decide` does; of a method no number of samples, since trainings count as well."""
    state, reason, needed = decide(statement, figure, metric)
    if needed is None or len(side.sides) == 1:
        return state, reason, needed
    return state, "the interval contains the bound; more trainings or samples would settle it", None


def decide(statement: Value | Change, figure: Figure, metric: str, z: float = Z) -> tuple[str, str, int | None]:
    """Return state, reason, and the number of samples that would decide it. With confidence the whole interval must be
    on one side, and the point, too: what passes with confidence passes without it, and no rule passes with its
    negation. z: of the interval of a share."""
    if not math.isfinite(figure.value):
        return FAIL, f"{figure.value} is not a number to compare", None
    fine = [meets_bound(statement.compare, statement.bound, end) for end in (figure.low, figure.value, figure.high)]
    if not statement.sure:
        return (PASS if fine[1] else FAIL), "", None
    if not (math.isfinite(figure.low) and math.isfinite(figure.high)):
        return UNDECIDED, "the figure has no interval: too few samples, or the metric has none", None
    if all(fine):
        return PASS, "", None
    if not any(fine):
        return FAIL, "", None
    gap = abs(figure.value - statement.bound)
    if gap <= SLACK:
        return UNDECIDED, "the value equals the bound: no number of samples would settle it", None
    definition = find_metric(metric)
    if definition is not None and definition.narrowed_by:
        more = f"{definition.narrowed_by} would settle it if the value stays the same"
        return UNDECIDED, f"the interval contains the bound; {more}", None
    binary = definition is not None and definition.binary
    if isinstance(statement, Value) and binary:
        enough = z**2 * statement.bound * (1 - statement.bound) / gap / gap  # a square may be out of range
    else:
        facing = figure.low if figure.value > statement.bound else figure.high
        width = abs(facing - figure.value)
        enough = figure.n * min(width / gap, 1e6) ** 2
        if isinstance(statement, Change) and binary:
            unchanged = needed_unchanged(gap)
            enough = unchanged if math.isclose(width, of_outcomes(0, 0, figure.n)[1]) else max(enough, unchanged)
    needed = max(figure.n + 1, math.ceil(enough - 1e-6))
    more = f"about {needed} samples would settle it if the value stays the same"
    return UNDECIDED, f"the interval contains the bound; {more}", needed


def _of_slices(rule: Rule, name: str, statement: Value, subject: MeasuredRun, condition: str) -> Verdict:
    """Return one verdict for all slices: that of the worst. One of few samples passes nothing, and fails nothing."""
    side, by, metric = Side(subject.run, name), statement.by, statement.metric
    try:
        slices = slices_of(side, subject.columns, condition, metric, by, together=statement.sure)
    except DamagedRecord:
        raise
    except RunError as why:
        raise CannotTell(str(why)) from None
    n, findings = sum(each.figure.n for each in slices), subject.cells[name][condition, metric].findings
    z, judged = simultaneous_z(len(slices)), list[Verdict]()
    for each in slices:
        figure = replace(each.figure, findings=findings)
        state, reason, needed = decide(statement, figure, metric, z)
        if figure.n < FEWEST:
            few = f"{figure.n} sample{'s' * (figure.n > 1)} of the slice; expected {FEWEST} or more"
            state, reason, needed = UNDECIDED, few, FEWEST
        elif needed is not None:
            more = f"about {needed} samples of the slice would settle it if the value stays the same"
            reason = f"the interval contains the bound; {more}"
        of_all = needed and math.ceil(n * needed / figure.n)
        judged.append(Verdict(rule, name, state, reason, figure, condition, of_all, slice=each.name))
    worst, states = _worst_of(judged, statement), [each.state for each in judged]
    word = {FAIL: "fail", UNDECIDED: "are inconclusive", PASS: "pass"}[worst.state]
    counted = f"{states.count(worst.state)} of {len(judged)} slices {word}, the worst: {worst.slice}"
    return replace(worst, reason="; ".join(filter(None, [worst.reason, counted])))


def of_identity(rule: Rule, name: str, statement: Identity, subject: MeasuredRun) -> Verdict:
    same, reason = compare_identity(statement, subject.manifest, subject.checkpoints.get(name))
    return Verdict(rule, name, PASS if same else FAIL, reason)


def _of_findings(rule: Rule, name: str, statement: NoFindings, subject: MeasuredRun) -> Verdict:
    cells, pattern, manifest = subject.cells[name], statement.condition, subject.manifest
    if not cells:
        raise CannotTell("nothing was evaluated", completes=manifest.command)
    if pattern is not None and not any(matches(pattern, text) for text, _ in cells):
        raise missing_condition(subject, name, pattern)
    every = [(text, finding) for (text, _), row in cells.items() for finding in row.findings]
    every += ((condition, Finding.of("run/no-records")) for condition in subject.without_records(name))
    every += ((condition, Finding.of("run/no-figure")) for condition in subject.without_figures(name))
    every += (("data", finding) for finding in manifest.data.findings("data"))
    every += ((text, Finding.of("run/left-out", line=line)) for text, line in manifest.corrupted.left_out.items())
    meant = dict.fromkeys(each for each in every if pattern is None or matches(pattern, each[0]))
    what = "doubts" if statement.doubts_only else "findings"
    if not (raised := [each for each in meant if not statement.excepts(each[1])]):
        quoted = {part: each.code for _, each in meant if (part := statement.excepts(each)) != each.code}
        codes = [f"{part!r} is {code}" for part, code in quoted.items() if part in statement.excepted]
        return Verdict(rule, name, PASS, "; ".join([f"no {'other ' * bool(statement.excepted)}{what}", *codes]))
    lines = [f"{text}: {finding}" for text, finding in raised]
    more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
    reason = f"{len(lines)} {what if len(lines) > 1 else what[:-1]}: {'; '.join(lines[:3])}{more}"
    completes = manifest.command if any(finding.code in MISSING for _, finding in raised) else ""
    return Verdict(rule, name, FAIL, reason, completes=completes)


def _of_change(
    policy: Policy, rule: Rule, name: str, statement: Change, subject: MeasuredRun, before: MeasuredRun | None
) -> Verdict:
    if before is None:
        raise CannotTell("there is no baseline; give its run folder with --baseline")
    candidates, kind = (before.methods, "method") if rule.method else (before.checkpoints, "checkpoint")
    other = name if name in candidates else next(iter(candidates), "")
    if other not in candidates or (other != name and (len(candidates) != 1 or rule.method)):
        raise CannotTell(f"the baseline has no {kind} of this name; it has {', '.join(candidates) or 'none'}")
    side, baseline_side = subject.judged(rule, name), before.judged(rule, other)
    baseline = before.manifest, baseline_side.sides[0].described
    changes = [differences(baseline, (subject.manifest, e.described), statement.excepted) for e in side.sides]
    flags = tuple(dict.fromkeys(finding for each in changes for finding in each))
    first, other = side.sides[0].checkpoint, baseline_side.sides[0].checkpoint
    metric = statement.metric or subject.task.headline
    shown_by = subject.task.headline if metric_of(metric).of_pairs else metric
    theirs = {text for text, measure in before.cells[other] if measure == shown_by}
    if statement.condition is not None:
        conditions = [find_condition(subject, first, shown_by, statement.condition)]
        if conditions[0] not in theirs:
            raise CannotTell(f"the baseline has no {metric} under {conditions[0]}; audit it under that, too")
    else:
        conditions = [text for text, measure in subject.cells[first] if measure == metric and text in theirs]
        if not conditions:
            raise CannotTell("the baseline shares no condition with this run; audit both under the same conditions")
    judged = []
    for condition in conditions:
        try:
            change = change_of(baseline_side, side, condition, metric, statement.falls, policy.mid_p)
        except CannotTell as why:
            judged.append(Verdict(rule, name, UNDECIDED, str(why), condition=condition, completes=why.completes))
            continue
        figure = replace(change.figure, findings=flags)
        state, reason, needed = _decided(statement, figure, metric, side)
        if reach := SAME if change.same else out_of_reach(statement, change.before, metric):
            state, reason, needed = UNDECIDED, reach, None
        judged.append(Verdict(rule, name, state, reason, figure, condition, needed, whole=not reach))
    if statement.condition:
        return judged[0]
    idle = [verdict for verdict in judged if not verdict.whole]
    if 0 < len(idle) < len(judged):  # the others can fail
        judged = [replace(each, state=PASS, reason="", whole=True) if each in idle else each for each in judged]
    before_lacks, lacks = (
        [t for e in end.sides for t in run.without_records(e.checkpoint) if words_of(t).in_results or in_means(t)]
        for run, end in ((before, baseline_side), (subject, side))
    )
    unmatched = {
        "conditions of the baseline that were not evaluated here": sorted(theirs.difference(conditions)),
        "conditions of the baseline without records": before_lacks,
        "conditions of the run without records": lacks,
    }
    worst = _worst(judged, statement, {what: texts for what, texts in unmatched.items() if texts})
    short = subject if lacks else before if before_lacks else None
    return replace(worst, completes=worst.completes or (short.manifest.command if short else ""))


def out_of_reach(statement: Change, before: float, metric: str) -> str:
    """Return why no figure could miss the bound, given that of the baseline; empty where one could."""
    definition = find_metric(metric)
    if definition is None or not math.isfinite(before):
        return ""
    low, high = definition.ends
    ends = (before - high, before - low) if statement.falls else (low - before, high - before)
    if not always_meets(statement.compare, statement.bound, ends):
        return ""
    return (
        f"{metric} is {definition.as_text(before)} in the baseline, so that no run could miss the bound; relax the "
        "bound, or use the figure itself:"
        f" {metric} under …"
    )


def _worst(judged: list[Verdict], statement: Change, unmatched: dict[str, list[str]]) -> Verdict:
    """Return one verdict for all conditions: that of the worst of them. What could not be compared never passes."""
    worst = _worst_of(judged, statement)
    alike = sum(verdict.state == worst.state for verdict in judged)
    word = {FAIL: "fail", UNDECIDED: "are inconclusive", PASS: "pass"}[worst.state]
    parts = [worst.reason, f"{alike} of {len(judged)} shared conditions {word}, the worst: {worst.condition}"]
    if unmatched:
        gone = [f"{what}: {len(texts)}, the first: {texts[0]}" for what, texts in unmatched.items()]
        state = FAIL if worst.state == FAIL else UNDECIDED
        return replace(worst, state=state, reason="; ".join(filter(None, [*gone, *parts])), whole=False)
    return replace(worst, reason="; ".join(filter(None, parts)))


def _worst_of(judged: Sequence[Verdict], statement: Value | Change) -> Verdict:
    """Return the verdict of the worst state, and among these that of the worst figure, or of none."""
    order, sign = (FAIL, UNDECIDED, PASS), -1 if statement.compare.startswith(">") else 1

    def rank(verdict: Verdict) -> tuple[int, bool, float]:
        measured = verdict.figure is not None and not math.isnan(verdict.figure.value)
        value = sign * verdict.figure.value if measured and verdict.figure else 0.0
        return order.index(verdict.state), measured, -value

    return min(judged, key=rank)
