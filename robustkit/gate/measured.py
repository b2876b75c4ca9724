"""Look up the figure that a rule asks for, in one run or two, or say why there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from ..common.differences import unseen
from ..errors import NothingEvaluated, RunError
from ..evaluations.cells import Cells, Row
from ..evaluations.kinds import shares_of
from ..evaluations.pattern import fits, is_exactly
from ..protocol.pattern import ConditionPattern
from ..results.paired import Side, lacking, paired_difference
from ..results.summary import survey
from ..runs.folder import RunFolder
from ..runs.manifest import CheckpointEntry, Manifest
from ..tasks.measures import find_metric
from ..tasks.task import Task, task_of
from .remedy import missing_command


@dataclass(frozen=True)
class Measured:
    """A number with its 95 % interval (nan where there is none), of n samples."""

    value: float
    n: int
    low: float = math.nan
    high: float = math.nan
    flags: tuple[str, ...] = ()


class MeasuredRun:
    """A run with its results, computed from the records."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.manifest = run, run.manifest
        self.results = survey(run)
        if not len(self.results):
            raise NothingEvaluated(f"{run.path}: there are no results to check; run the audit again to its end")

    @cached_property
    def checkpoints(self) -> dict[str, CheckpointEntry]:
        return {checkpoint.name: checkpoint for checkpoint in self.manifest.checkpoints}

    @property
    def cells(self) -> dict[str, Cells]:
        """A row for each condition and metric, by checkpoint."""
        return self.results.cells

    def without_records(self, name: str) -> list[str]:
        """Return the conditions that run.json names and a checkpoint has no records of."""
        done = {condition for checkpoint, condition in self.run.units() if checkpoint == name}
        return [condition for condition in self.manifest.conditions if condition not in done]

    @property
    def task(self) -> Task:
        return task_of(self.manifest)


class CannotTell(Exception):  # noqa: N818 - an outcome rather than a fault
    """There is no figure.

    command: evaluates a condition that nobody asked for; completes: runs the same audit again, which makes records that
    are missing. Empty where that is not why.
    """

    def __init__(self, reason: str, command: str = "", completes: str = "") -> None:
        super().__init__(reason)
        self.command, self.completes = command, completes


class Ambiguous(Exception):  # noqa: N818
    """Several conditions fit."""


def not_evaluated(subject: MeasuredRun, name: str, wanted: ConditionPattern) -> CannotTell:
    """Return the error for a condition that was not evaluated, with the command that evaluates it."""
    command = missing_command(subject.manifest, name, wanted, subject.run.path)
    return CannotTell(f"{wanted.text} was not evaluated", command)


def find(subject: MeasuredRun, name: str, metric: str, wanted: ConditionPattern) -> str:
    """Return the condition of the run that a rule means.

    Raises:
        CannotTell: it was not evaluated, or has no such metric. Ambiguous: several fit.
    """
    cells = subject.cells[name]
    fitting = [text for text in dict.fromkeys(text for text, _ in cells) if fits(wanted, text)]
    having = [text for text in fitting if metric == "n" or (text, metric) in cells]
    having = [text for text in having if is_exactly(wanted, text)] or having
    if len(having) > 1:
        raise Ambiguous(f"{wanted.text} is ambiguous: the run has {' and '.join(having)}; write one of them in full")
    if not fitting:
        raise not_evaluated(subject, name, wanted)
    if not having:
        there = ", ".join(measure for text, measure in cells if text == fitting[0])
        raise CannotTell(f"there is no {metric} under {fitting[0]}; there are {there}")
    return having[0]


def is_of_missing(flag: str) -> bool:
    """Whether a flag is about records or evidence that are missing, and that the same audit makes."""
    return "the same command" in flag or "the same audit" in flag


def figure_of(row: Row) -> Measured:
    """Return a result. An interval of zero width is left out: resampling saw no difference in so few samples."""
    figure = Measured(row["value"], row["n"], row["ci_low"], row["ci_high"], tuple(row["flags"]))
    metric = find_metric(row["metric"])
    if figure.low != figure.high or (metric and metric.binary):
        return figure
    reach = unseen(figure.n) if metric and metric.share else math.nan
    return replace(figure, low=figure.value - reach, high=figure.value + reach)


def apart(baseline: Manifest, run: Manifest) -> tuple[str, ...]:
    """Return flags of what was computed otherwise in a baseline, though the two can be paired."""
    return tuple(
        f"{key} is {there} in the baseline and {here} here"
        for key in ("dtype", "compile")
        if (there := getattr(baseline.deciding, key)) != (here := getattr(run.deciding, key))
    )


def change_of(first: Side, second: Side, condition: str, metric: str, falls: bool) -> Measured:
    """Return how much the second is below the first, or above it where not `falls`; paired by sample.

    Raises:
        CannotTell: the two cannot be paired, or records of one are missing.
    """
    for side, which in ((first, "the baseline"), (second, "the run")):
        if gone := lacking(side, condition, metric):
            raise CannotTell(f"{which} is {gone}", completes=side.run.manifest.command)
    manifests = first.run.manifest, second.run.manifest
    for text in shares_of(condition):
        taken = [manifest.corrupted.digests.get(text) for manifest in manifests]
        if taken[0] != taken[1]:
            raise CannotTell(f"the runs cannot be paired: {text} reads other files here than in the baseline")
    try:
        difference = paired_difference(first, second, condition, metric)
    except RunError as fault:
        raise CannotTell(str(fault)) from None
    low, high = difference.ci_low, difference.ci_high
    flags = apart(*manifests)
    if falls:
        return Measured(0.0 - difference.value, difference.n, 0.0 - high, 0.0 - low, flags)
    return Measured(difference.value, difference.n, low, high, flags)
