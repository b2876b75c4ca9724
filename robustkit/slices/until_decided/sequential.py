"""Decide rules of a policy while samples come, by tests that may be looked at any time; audit until all are decided.

A bettor begins with a capital of 1 and bets before each value that the mean is above the bound. Where it is not, the
game is not in their favour: the capital is a non-negative supermartingale, and the probability that it ever reaches 1/a
is at most a (Ville 1939), however often and for whatever reason one looks. So a capital of 1/a refutes that the mean is
at most the bound, with an error of a.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS-B 86(1): capital
processes, and diversified Kelly betting. docs/concepts/statistics.md has the formulas.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ...cli.options import GATE_VALUES
from ...common.environment import count_in
from ...common.figure import INCOMPLETE, Figure
from ...common.intervals import Floats
from ...common.plugins import plugin_session
from ...errors import ProtocolError, RunError
from ...evaluations.condition import is_exactly, matches, pattern_of, vocabulary_of, words_of
from ...evaluations.corruptions import possible_means
from ...evaluations.records import CheckpointRecords
from ...gate import verdicts
from ...gate.policy import OF_RUN, Change, Identity, NoFindings, Policy, Rule, Statement, Value
from ...gate.verdicts import FAIL, PASS, UNDECIDED, CannotTell, MeasuredRun, Outcome, Verdict
from ...pipeline.manifest import describe_plan
from ...pipeline.pending import PendingWork, announce, checkpoint_groups, pending_work
from ...pipeline.plan import Plan, plan_of
from ...pipeline.processes import Ranks
from ...pipeline.progress import Reporter
from ...pipeline.request import ClassificationRequest
from ...pipeline.scheduler import carry_out
from ...pipeline.units import Worker
from ...protocol.condition import Condition
from ...report.run import Run
from ...results.pairing import Side, missing_records, same_identity
from ...runs.description import without_option
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ...runs.progress import Progress
from ...tasks import find_metric
from ...tasks.task import Task, task_named, task_of

if TYPE_CHECKING:
    import pyarrow as pa

LOOK = 32  # samples in a unit of work, unless given or a batch is larger: how many are computed between two looks
_STEPS = np.arange(13)
BETS = 0.99 * 2.0 ** (-_STEPS / 2)
"""What each bettor bets, as a share of the most that no value can ruin: from 0.99 down to 1/65."""
SHARES = 2.0 ** (-_STEPS / 6) / (2.0 ** (-_STEPS / 6)).sum()
"""The share of the capital that each begins with: a quarter of a step's bet less, an eighth of the capital less."""


class Capital:
    """The capital of those who bet that a mean is above a bound in (0, 1); the best of the bets soon holds nearly
    all."""

    def __init__(self, bound: float) -> None:
        self._logs, self._bets, self._bound = np.log(SHARES), BETS / bound, bound

    def take(self, values: Floats) -> Floats:
        """Bet on further values, (n,) in [0, 1]; return the logarithm of the capital after each of them, (n,)."""
        every = self._logs + np.log1p(np.outer(values - self._bound, self._bets)).cumsum(axis=0)
        if len(values):
            self._logs = every[-1]
        return np.asarray(np.logaddexp.reduce(every, axis=1))


class SequentialTest:
    """A test of whether the mean of a stream is above or below a bound in (0, 1), looked at after every value. error:
    the most that the probability of saying `above` or `below` wrongly may be. decision: 1 for above, -1 for below, 0
    while undecided. taken: values until then, total: their sum; later ones are not looked at."""

    def __init__(self, bound: float, error: float) -> None:
        self.bound, self.error = bound, error
        self.decision, self.taken, self.total = 0, 0, 0.0
        self._above, self._below = Capital(bound), Capital(1 - bound)

    def take(self, values: Floats) -> None:
        """Take further values, (n,). Raises ValueError where one is outside [0, 1], or no number."""
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"values from {values.min()} to {values.max()}; expected values in [0, 1]")
        if self.decision:
            return
        enough = -math.log(self.error)
        reached = [side >= enough for side in (self._above.take(values), self._below.take(1 - values))]
        ends = [int(side.argmax()) if side.any() else len(values) for side in reached]
        used = min(min(ends) + 1, len(values))
        if min(ends) < len(values):
            self.decision = 1 if ends[0] < ends[1] else -1
        self.taken += used
        self.total += float(values[:used].sum())

    @property
    def mean(self) -> float:
        return self.total / self.taken if self.taken else math.nan


class WholeGroups:
    """Samples that come in whole groups, and a value of each group for a test of the mean over samples. The sum of what
    the samples of a group are above the bound has the sign of the mean's distance from it, whatever their number; over
    the size of the largest group, and on top of the bound, it lies in [0, 1]. groups: the group of each id of the run.
    """

    def __init__(self, test: SequentialTest, groups: Mapping[str, str]) -> None:
        self.test, self.groups, self.sizes = test, groups, Counter(groups.values())
        self.most = max(self.sizes.values(), default=1)
        self.taken, self.total, self._seen = 0, 0.0, Counter[str]()
        self._values: dict[str, list[float]] = {}

    def take(self, ids: Sequence[str], values: Mapping[str, float]) -> None:
        """Take samples as they come. values: of those that count. A group is looked at once all of it came."""
        for name in ids:
            group = self.groups[name]
            self._seen[group] += 1
            held = self._values.setdefault(group, [])
            held += [values[name]] if name in values else []
            if self._seen[group] == self.sizes[group] and held and not self.test.decision:
                above = sum(held) - self.test.bound * len(held)
                self.test.take(np.array([self.test.bound + above / self.most]))
                self.taken, self.total = self.taken + len(held), self.total + sum(held)

    @property
    def mean(self) -> float:
        return self.total / self.taken if self.taken else math.nan


@dataclass(frozen=True)
class _OfShard(CheckpointRecords):
    shard: int = 0

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        return self.run.shard(self.checkpoint, condition, self.shard, columns)


@dataclass(frozen=True)
class Question:
    """A rule about one checkpoint, which samples decide. metric: a mean over samples. needs: the conditions whose
    records it takes. before: figures of the baseline, by sample; None for a value. test: of the figure, or of a change,
    of which -1 to 1 become 0 to 1. groups: in which samples come, if in any."""

    rule: Rule
    checkpoint: str
    condition: str
    metric: str
    needs: tuple[str, ...]
    before: Mapping[str, float] | None
    test: SequentialTest
    groups: WholeGroups | None = None

    @property
    def state(self) -> str:
        if not self.test.decision:
            return UNDECIDED
        return PASS if self.test.decision == (1 if bound_statement(self.rule).compare.startswith(">") else -1) else FAIL

    @property
    def value(self) -> float:
        mean = (self.groups or self.test).mean
        return mean if self.before is None else 2 * mean - 1

    @property
    def taken(self) -> int:
        """How many samples were looked at."""
        return (self.groups or self.test).taken

    def take(self, run: RunFolder, task: Task, shard: int, ids: Sequence[str]) -> None:
        """Take samples of a shard, by id, as they come; unreadable ones are left out. Raises RunError."""
        read, figures = task.per_sample(_OfShard(run, self.checkpoint, shard), self.condition, self.metric)
        after = dict(zip(read.to_pylist(), figures.tolist(), strict=True))
        names = [name for name in ids if name in after and (self.before is None or name in self.before)]
        values = {name: self._share(after[name], name) for name in names}
        try:
            if self.groups is None:
                self.test.take(np.array(list(values.values()), np.float64))
            else:
                self.groups.take(ids, values)
        except ValueError as fault:
            raise RunError(f"{run.path}: {self.metric} under {self.condition}: {fault}") from None

    def _share(self, value: float, name: str) -> float:
        if self.before is None:
            return value
        statement = self.rule.statement
        falls = isinstance(statement, Change) and statement.falls
        change = self.before[name] - value if falls else value - self.before[name]
        return (change + 1) / 2


@dataclass(frozen=True)
class Trial:
    """The rules of a policy, decided while samples come. questions: in the order of the rules."""

    policy: Policy
    questions: tuple[Question, ...]

    def open(self, checkpoint: str) -> list[Question]:
        return [each for each in self.questions if each.checkpoint == checkpoint and each.state == UNDECIDED]

    def outcome(self, run: RunFolder, baseline: RunFolder | None = None) -> Outcome:
        """Return the verdicts, in the order of the rules. baseline: whose figures the changes are from."""
        subject = MeasuredRun(run)
        every = list[Verdict]()
        for rule in self.policy.rules:
            if isinstance(rule.statement, Identity):
                of_run = rule.statement.subject in OF_RUN
                names = [""] if of_run else verdicts.matching(rule.checkpoint, [*subject.checkpoints])
                every += (verdicts.of_identity(rule, name, rule.statement, subject) for name in names)
            every += (_verdict(each, subject, baseline) for each in self.questions if each.rule is rule)
        return Outcome(self.policy, tuple(every), subject.results)


def bound_statement(rule: Rule) -> Value | Change:
    assert isinstance(rule.statement, Value | Change)
    return rule.statement


def _verdict(question: Question, subject: MeasuredRun, baseline: RunFolder | None) -> Verdict:
    rule, name, taken, every = question.rule, question.checkpoint, question.taken, subject.manifest.data.n
    word = "not decided by" if question.state == UNDECIDED else "decided after"
    row = subject.cells[name].get((question.condition, question.metric))
    flags = [] if row is None else [each for each in row.findings if each.code not in (INCOMPLETE, "run/stopped-early")]
    if baseline is not None and isinstance(rule.statement, Change):
        before = baseline.manifest
        checkpoint = before.checkpoint(name if name in before.names else before.names[0])
        flags += verdicts.differences(
            (before, checkpoint), (subject.manifest, subject.checkpoints[name]), rule.statement.excepted
        )
    of_groups = 0 if question.groups is None else question.test.taken
    figure = Figure(question.value, taken, findings=tuple(flags), groups=of_groups) if taken else None
    reason = f"{word} {taken} of {every} samples"
    return Verdict(rule, name, question.state, reason, figure, question.condition, of=every)


ERROR = 0.05  # the most that the probability may be of a wrong verdict, of all rules together

_APART = "\n"  # between conditions, whose texts hold commas

Figures = Callable[[str, str, str, Sequence[str]], Mapping[str, float]]
"""The figure of each sample, by its id: of a checkpoint, a condition and a metric, with the differences that a rule
accepts.
"""


_OPTIONS = ("--attacks", "--corruptions", "--evaluations")
_DEFINITIONS = ("--constants", "--variant")


def options_asked(policy: Policy) -> dict[str, str]:
    """Return the options of an audit that evaluates what a policy is about. Raises ProtocolError where a rule cannot be
    decided while samples come, or none needs samples."""
    asked = dict.fromkeys(_OPTIONS, "")
    needs_samples = False
    for rule in policy.rules:
        of_method = "it is about a method; audit and check its trainings without --until-decided" if rule.method else ""
        if why := of_method or _why_not(rule.statement):
            raise _refused(policy, rule, why)
        pattern = None if isinstance(rule.statement, Identity) else bound_statement(rule).condition
        if pattern is None:
            continue
        needs_samples = True
        words = [*vocabulary_of(pattern.name).command(pattern, pattern_of)]
        values = dict(zip(words[::2], words[1::2], strict=False))
        if strange := [word for word in words if word.startswith("--") and word not in (*_OPTIONS, *_DEFINITIONS)]:
            why = f"{pattern.text} needs {strange[0]}, which --until-decided does not support"
            raise _refused(policy, rule, f"{why}; leave it out, or audit and check without --until-decided")
        for option, value in values.items():
            before = asked.get(option, "")
            if option in _DEFINITIONS and before not in ("", value):
                raise _refused(policy, rule, f"it takes {option} {value}, and another rule {before}; choose one")
            parts = {} if option in _DEFINITIONS else dict.fromkeys(filter(None, before.split(_APART)))
            asked[option] = _APART.join({**parts, value: None} if value != "none" else parts)
    if not needs_samples:
        remedy = "expected one such as 'top1 under clean >= 0.7'"
        raise ProtocolError(f"{policy.path}: no rule depends on samples, so there is nothing to decide; {remedy}")
    asked["--attacks"] = asked["--attacks"] or "none"
    return {option: value.replace(_APART, ",") for option, value in asked.items() if value}


def _why_not(statement: Statement) -> str:
    """Return why a rule cannot be decided while samples come, and what to do; empty where it can be."""
    whole = "leave it out, or audit and check without --until-decided"
    if isinstance(statement, Identity):
        return ""
    if isinstance(statement, NoFindings):
        return f"findings are about complete results; {whole}"
    if isinstance(statement, Change) and statement.condition is None:
        return "it covers every condition of the baseline; name one: drop in top1 under CONDITION against baseline"
    if isinstance(statement, Value) and statement.by:
        return f"slices are judged on complete records; {whole}"
    if statement.metric == "n":
        return f"the number of samples follows from the other rules; {whole}"
    metric = find_metric(statement.metric) if statement.metric else None
    if metric is not None and metric.of_pairs:
        return f"{metric.name} are counted on complete records; {whole}"
    if metric is not None and not metric.paired:
        return f"{statement.metric} is not a mean over samples, as top1 is; {whole}"
    if metric is not None and not (metric.binary or metric.share):
        return f"{statement.metric} of a sample is not limited to [0, 1], as top1 is; {whole}"
    low = 0 if isinstance(statement, Value) else -1
    if not low < statement.bound < 1:
        return f"the bound is {statement.bound:g}; expected one between {low} and 1, exclusive"
    return ""


def trial_of(
    policy: Policy,
    names: Sequence[str],
    conditions: Sequence[Condition],
    task: Task,
    baseline: Figures | None,
    groups: Mapping[str, str] | None = None,
) -> Trial:
    """Return what samples decide; the error is shared among rules and checkpoints. names, conditions: of the run.
    groups: of its samples, by id, which come in whole groups.
    Raises ProtocolError where a rule fits no checkpoint, several conditions, or one that needs all samples."""
    numbers = list[tuple[Rule, str, str, tuple[str, ...], str]]()
    for rule in policy.rules:
        chosen = verdicts.matching(rule.checkpoint, names)
        if not chosen:
            raise _refused(policy, rule, f"no checkpoint is called {rule.checkpoint}; there are {', '.join(names)}")
        if isinstance(rule.statement, Value | Change):
            metric = rule.statement.metric or task.headline
            figure = metric, *_figure(policy, rule, metric, conditions, task)
            numbers += ((rule, *figure, name) for name in chosen)
        if isinstance(rule.statement, Change) and baseline is None:
            raise _refused(policy, rule, "there is no baseline; give its run folder with --baseline")
    error, questions = ERROR / len(numbers), list[Question]()
    for rule, metric, text, needs, name in numbers:
        bound, before = bound_statement(rule).bound, None
        if isinstance(rule.statement, Change) and baseline is not None:
            bound, before = (bound + 1) / 2, baseline(name, text, metric, rule.statement.excepted)
            if why := verdicts.out_of_reach(rule.statement, sum(before.values()) / max(len(before), 1), metric):
                raise _refused(policy, rule, why)
        test = SequentialTest(bound, error)
        of_groups = None if groups is None else WholeGroups(test, groups)
        questions.append(Question(rule, name, text, metric, needs, before, test, of_groups))
    return Trial(policy, tuple(questions))


def _figure(
    policy: Policy, rule: Rule, metric: str, conditions: Sequence[Condition], task: Task
) -> tuple[str, tuple[str, ...]]:
    """Return the condition that a rule means, in full, and the conditions whose records its figure needs."""
    by_text, pattern = {condition.text: condition for condition in conditions}, bound_statement(rule).condition
    assert pattern is not None
    fitting = [text for text in dict.fromkeys((*by_text, *possible_means(by_text))) if matches(pattern, text)]
    exact = [text for text in fitting if is_exactly(pattern, text)] or fitting
    if len(exact) != 1:
        several = f"{pattern.text} may be {' or '.join(exact)}; write one of them in full"
        raise _refused(policy, rule, several if exact else f"{pattern.text} is no condition of this audit")
    text, words = exact[0], words_of(exact[0])
    names = [number.name for number in words.metrics if number.paired]
    early = text in by_text and by_text[text].early_stop
    if early and metric in task.paired and metric not in task.compared.ended:
        why = f"samples leave {text} at their first wrong prediction, so {metric} has no meaning there"
        raise _refused(policy, rule, f"{why}; use {', '.join(task.compared.ended)}")
    if metric not in [*names, *(task.paired if text in by_text else ())]:
        why = f"{metric} under {text} is not a mean over samples; use {', '.join(names) or 'top1'}"
        raise _refused(policy, rule, why)
    needs = words.needs(text, metric, [*by_text])
    for need in needs:
        if need not in by_text or by_text[need].waits or by_text[need].on:
            raise _refused(policy, rule, f"{need} uses only some of the samples; use a condition that uses all of them")
    return text, tuple(needs)


def baseline_of(run: RunFolder, planned: Manifest) -> Figures:
    """Return the figures of a baseline for a planned run; they raise RunError where the two cannot be paired."""
    manifest, takes = run.manifest, planned.corrupted.digests

    def figures(name: str, condition: str, metric: str, excepted: Sequence[str] = ()) -> Mapping[str, float]:
        other = name if name in manifest.names else manifest.names[0]
        if other != name and len(manifest.names) > 1:
            remedy = "name the rule's checkpoint as one of them, or give a baseline of one checkpoint"
            raise RunError(f"{run.path}: the baseline has no {name}; it has {', '.join(manifest.names)}; {remedy}")
        side, subject = Side(run, other), planned.checkpoint(name)
        needs = words_of(condition).needs(condition, metric, manifest.conditions)
        try:
            verdicts.differences((manifest, side.described), (planned, subject), excepted)
            for text in needs:
                verdicts.check_card(manifest, planned, text)
        except CannotTell as why:
            raise RunError(f"{run.path}: {why}") from None
        if same_identity(side.described, subject):
            raise RunError(f"{run.path}: {verdicts.SAME}")
        for text in needs:
            if text not in manifest.conditions:
                raise RunError(f"{run.path}: the baseline has no {text}; audit it under that, too")
            if manifest.corrupted.digests.get(text) != takes.get(text):
                raise RunError(f"{run.path}: the runs cannot be paired: {text} reads different files there")
        if gone := missing_records(side, condition, metric):
            raise RunError(f"{run.path}: the baseline is {gone[0].text}")
        ids, values = task_of(manifest).per_sample(side, condition, metric)
        return dict(zip(ids.to_pylist(), values.tolist(), strict=True))

    return figures


def _refused(policy: Policy, rule: Rule, why: str) -> ProtocolError:
    return ProtocolError(f"{policy.path}: {rule.place}: {rule.require!r} cannot be decided sequentially: {why}")


def until_decided(
    request: ClassificationRequest,
    policy: Policy,
    baseline: RunFolder | None,
    at_most: int | None,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[Run, Outcome]:
    """Compute the records of a shuffled run that undecided rules need, by shards; return the run and the verdicts.
    request: without what the policy says. at_most: samples looked at. A stopped run goes on. Raises ProtocolError where
    a rule cannot be decided so, and RobustkitError as `run`, both before a file is written.
    """
    if count_in("WORLD_SIZE", 1) > 1:
        raise ProtocolError(
            "--until-decided in several processes: samples are evaluated one after another; run it without torchrun"
        )
    options = options_asked(policy)
    words = (*_command(sys.argv[1:]), *(word for option in options.items() for word in option), "--shuffle")
    asked: dict[str, Any] = {option.removeprefix("--"): value for option, value in options.items()}
    size = request.shard_size or max(LOOK, request.settings.batch_size)
    with plugin_session(), request.noted():
        request = replace(request, **asked, shuffle=True, shard_size=size)
        plan = plan_of(request)
        for name, texts in plan.unsuited.items():
            why = f"{texts[0]} is not evaluated on {name}, which has no gradients"
            raise ProtocolError(f"--until-decided: {why}; audit it in a run of its own")
        digest = plan.digest()
        plan = replace(plan, digest=lambda: digest, command=words, sequential=True)
        names = [planned.name for planned in plan.contenders]
        before = (
            None if baseline is None else baseline_of(baseline, describe_plan(plan, digest, plan.run.read_manifest()))
        )
        samples, groups = plan.metadata, None
        if samples is not None and samples.group_names is not None:
            groups = dict(zip(samples.ids, samples.group_names, strict=True))
        trial = trial_of(policy, names, plan.conditions, task_named(request.card.task), before, groups)
        ids = [sample.id for sample in plan.dataset.samples][:at_most]
        carry_out(plan, progress, say, partial(_compute, trial, ids))
        return plan.run, trial.outcome(plan.run, baseline)


def _command(words: Sequence[str]) -> list[str]:
    """Return the words of the audit that completes the run, without what it evaluates."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in (*GATE_VALUES, "at_most"):
            words = without_option(words, parameter.opts[0])
    rest = [word for word in words if word not in ("--until-decided", "--details")]
    if "check" in rest:
        rest.remove("check")
    return ["robustkit", "audit", *rest]


def _compute(trial: Trial, ids: Sequence[str], plan: Plan, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the records that undecided rules need. ids: of the samples that may be looked at, in their order."""
    run, size, task = plan.run, plan.run.manifest.shard_size, task_named(plan.request.card.task)
    shards = [ids[start : start + size] for start in range(0, len(ids), size)]
    of_lots = [*zip(checkpoint_groups(plan), pending_work(plan, 1), strict=True)]
    every = [_wanted(trial, planned.name, len(shards), work) for (planned, _), work in of_lots]
    say(f"{len(trial.questions)} rules are checked after every {size} samples, up to {len(ids)}")
    reporter = announce(plan, Ranks.of_environment(), progress, say, every, len(ids))
    worker = Worker(plan, reporter, say)
    for ((planned, conditions), _), work in zip(of_lots, every, strict=True):
        name = planned.name
        if conditions[0].waits:  # no rule needs these
            continue
        if work.checks_setup:
            worker.check_setup(name)
        for text in work.doubted:
            worker.take_evidence(name, text, before=True)
        for shard, some in enumerate(shards):
            open_ = trial.open(name)
            if not open_:
                break
            needs = {text for question in open_ for text in question.needs}
            pieces = [
                (shard, [text for text in texts if text in needs]) for place, texts in work.units if place == shard
            ]
            worker.compute(name, [piece for piece in pieces if piece[1]])
            for question in open_:
                question.take(run, task, shard, some)
                if question.state != UNDECIDED:
                    status = f"{question.rule.name}: {question.state}"
                    say(f"{name}: {status} after {question.taken} of {len(ids)} samples")
        for text in work.doubted:
            worker.take_evidence(name, text)
    worker.rest()
    return reporter


def _wanted(trial: Trial, name: str, shards: int, work: PendingWork) -> PendingWork:
    needs = {text for question in trial.open(name) for text in question.needs}
    some = [(shard, [text for text in texts if text in needs]) for shard, texts in work.units if shard < shards]
    return work._replace(
        units=[piece for piece in some if piece[1]],
        doubted=[text for text in work.doubted if text in needs],
        checks_setup=work.checks_setup and bool(needs),
        unchecked=work.unchecked if needs else "",
    )
