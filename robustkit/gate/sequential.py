"""Rules that are decided while samples come: what they say, and after how many samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..common.betting import SequentialTest
from ..errors import RunError
from ..evaluations.cells import INCOMPLETE
from ..evaluations.recorded import Recorded
from ..evaluations.rows import STOPPED
from ..runs.folder import RunFolder
from ..tasks.task import Task
from .measured import Measured, MeasuredRun, apart
from .policy import Policy, Rule
from .statements import OF_RUN, Change, Identity, Value
from .verdicts import FAIL, PASS, UNDECIDED, Outcome, Verdict, matching, of_identity

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class _OfShard(Recorded):
    """A checkpoint's records of one shard."""

    shard: int = 0

    def table(self, condition: str, columns: Sequence[str]) -> pa.Table:
        return self.run.shard(self.checkpoint, condition, self.shard, columns)


@dataclass(frozen=True)
class Question:
    """A rule about one checkpoint, which samples decide.

    condition: in full. metric: a mean over samples. needs: the conditions whose records it takes. before: the figure of
    each sample of the baseline; None for a rule about a value. test: of the figure, or of a change, of which -1 to 1
    become 0 to 1.
    """

    rule: Rule
    checkpoint: str
    condition: str
    metric: str
    needs: tuple[str, ...]
    before: Mapping[str, float] | None
    test: SequentialTest

    @property
    def state(self) -> str:
        """What the samples so far say about the rule."""
        if not self.test.said:
            return UNDECIDED
        return PASS if self.test.said == (1 if bounded(self.rule).compare.startswith(">") else -1) else FAIL

    @property
    def value(self) -> float:
        """The figure of the samples that were taken."""
        return self.test.mean if self.before is None else 2 * self.test.mean - 1

    def take(self, run: RunFolder, task: Task, shard: int, ids: Sequence[str]) -> None:
        """Take samples of a shard, by their ids in the order in which they come; those that could not be read are left
        out.

        Raises:
            RunError: a record cannot be read, or a figure is not between 0 and 1.
        """
        read, figures = task.per_sample(_OfShard(run, self.checkpoint, shard), self.condition, self.metric)
        after = dict(zip(read.to_pylist(), figures.tolist(), strict=True))
        values = np.array([self._share(after[name], name) for name in ids if self._has(after, name)], np.float64)
        try:
            self.test.take(values)
        except ValueError as fault:
            raise RunError(f"{run.path}: {self.metric} under {self.condition}: {fault}") from None

    def _has(self, after: Mapping[str, float], name: str) -> bool:
        return name in after and (self.before is None or name in self.before)

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
        """Return what is still undecided about a checkpoint."""
        return [each for each in self.questions if each.checkpoint == checkpoint and each.state == UNDECIDED]

    def outcome(self, run: RunFolder, baseline: RunFolder | None = None) -> Outcome:
        """Return the verdicts, in the order of the rules. baseline: whose figures the changes are from."""
        subject = MeasuredRun(run)
        verdicts = list[Verdict]()
        for rule in self.policy.rules:
            if isinstance(rule.statement, Identity):
                of_run = rule.statement.subject in OF_RUN
                names = [""] if of_run else matching(rule.checkpoint, [*subject.checkpoints])
                verdicts += (of_identity(rule, name, rule.statement, subject) for name in names)
            verdicts += (_verdict(each, subject, baseline) for each in self.questions if each.rule is rule)
        return Outcome(self.policy, tuple(verdicts), subject.results)


def bounded(rule: Rule) -> Value | Change:
    """Return the statement of a rule about a figure."""
    assert isinstance(rule.statement, Value | Change)
    return rule.statement


def _apart(question: Question, subject: MeasuredRun, baseline: RunFolder | None) -> Sequence[str]:
    """Return flags of what was computed otherwise in the baseline of a question, if it has one."""
    statement = question.rule.statement
    if baseline is None or not isinstance(statement, Change):
        return ()
    manifest, name = baseline.manifest, question.checkpoint
    there = manifest.checkpoint(name if name in manifest.names else manifest.names[0])
    return apart((manifest, there), (subject.manifest, subject.checkpoints[name]), statement.excepted)


def _verdict(question: Question, subject: MeasuredRun, baseline: RunFolder | None) -> Verdict:
    rule, taken, every = question.rule, question.test.taken, subject.manifest.data.n
    word = "not decided by" if question.state == UNDECIDED else "decided after"
    row = subject.cells[question.checkpoint].get((question.condition, question.metric))
    flags = [] if row is None else [flag for flag in row["flags"] if not flag.startswith((INCOMPLETE, STOPPED))]
    flags += _apart(question, subject, baseline)
    figure = Measured(question.value, taken, flags=tuple(flags)) if taken else None
    reason = f"{word} {taken} of {every} samples"
    return Verdict(rule, question.checkpoint, question.state, reason, figure, question.condition, of=every)
