"""Look up the figure that a rule asks for, in one run or two, or say why there is none."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..common.differences import unseen
from ..display.text import no_controls
from ..errors import NothingEvaluated, RunError
from ..evaluations.metrics import Cells, SummaryRow
from ..evaluations.registry import fits, is_exactly, pattern_of, shares_of, vocabulary_of
from ..protocol.card import card_names
from ..protocol.condition import ConditionPattern
from ..results.pairing import (
    Side,
    checkpoint_changes,
    checkpoint_setup,
    is_of_rounding,
    is_same_model,
    lacking,
    paired_difference,
    run_changes,
    run_setup,
)
from ..results.summary import survey
from ..runs.folder import RunFolder
from ..runs.manifest import CheckpointEntry, Manifest
from ..runs.merging import card_difference, differing
from ..tasks.registry import find_metric
from ..tasks.task import Task, task_of
from .policy import quoted

_OPTIONS = (
    *("limit", "ids", "shuffle", "boxes", "masks", "classes", "frost_dir", "seed", "dtype", "compile"),
    *("layout", "labels_csv", "real_labels", "ignore", "arch", "attention", "num_classes", "use_ema", "allow_partial"),
    *("mean", "std", "interpolation", "crop_pct", "crop_mode", "img_size", "window", "stride", "short_side", "resize"),
)


def missing_command(manifest: Manifest, name: str, wanted: ConditionPattern, out: Path) -> str:
    """Return the command that evaluates a condition of a checkpoint into the same run, whose folder is `out`."""
    asked, task = manifest.arguments, task_of(manifest)
    words = ["robustkit", task.command, manifest.checkpoint(name).spec]
    words += [
        "--data-dir",
        str(asked.get("data_dir", manifest.data.root)),
        *vocabulary_of(wanted.name).command(wanted, pattern_of),
    ]
    card = manifest.protocol.name
    own_card = ["--protocol", card if card in card_names() else f"{card}.toml"]
    words += [] if card == task.card else own_card
    kept = ("limit", "ids", "shuffle", "boxes", "masks", "classes", "frost_dir")
    given: dict[str, Any] = {key: asked.get(key) for key in kept}
    given |= {**(asked.get("model") or {}), **(asked.get("data") or {}), "seed": manifest.seed or None}
    deciding = manifest.deciding
    given |= {"dtype": deciding.dtype if deciding.dtype != "float32" else None, "compile": deciding.compile or None}
    for key, value in given.items():
        if key not in _OPTIONS:  # run.json may be someone else's
            continue
        if value is not None and value is not False:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{key.removesuffix('_csv').replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join([*words, "--out", str(out)])


@dataclass(frozen=True)
class Measured:
    """A number with its 95 % interval (nan where there is none), of n samples. before: of a change, the baseline's
    figure; same: both are of one checkpoint, and equal.
    """

    value: float
    n: int
    low: float = math.nan
    high: float = math.nan
    flags: tuple[str, ...] = ()
    before: float = math.nan
    same: bool = False


_SHOWN = 3  # differences of set-ups that a line names


class MeasuredRun:
    """A run with its results, computed from the records."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.manifest = run, run.manifest
        if said := run.refusal():
            raise RunError(
                f"{run.path}: the last audit into this run was refused, so that it may not be what was meant: "
                f"{no_controls(said)}; run the audit again to its end, or delete {run.refusal_path}"
            )
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


def figure_of(row: SummaryRow) -> Measured:
    """Return a result. An interval of zero width is left out: resampling saw no difference in so few samples."""
    figure = Measured(row["value"], row["n"], row["ci_low"], row["ci_high"], tuple(row["flags"]))
    metric = find_metric(row["metric"])
    if figure.low != figure.high or (metric and metric.binary):
        return figure
    reach = unseen(figure.n) if metric and metric.share else math.nan
    return replace(figure, low=figure.value - reach, high=figure.value + reach)


Described = tuple[Manifest, CheckpointEntry]
"""A checkpoint of a run, as run.json describes both."""


def apart(baseline: Described, run: Described, excepted: Sequence[str] = ()) -> tuple[str, ...]:
    """Return flags of what was computed otherwise in a baseline, though the two can be paired.

    excepted: parts of the lines on differences that a rule accepts.

    Raises:
        CannotTell: they differ in what decides figures besides the weights, as `robustkit compare` says it.
    """
    (before, first), (after, second) = baseline, run
    check_card(before, after)
    there, here = before.deciding.to_plain(), after.deciding.to_plain()
    for key in ("data digest", "seed"):
        if there[key] != here[key]:
            what = differing(key, there[key], here[key], "in the baseline")
            raise CannotTell(f"the runs cannot be paired: {what}; audit both alike")
    for what, one, other in (
        ("the task", task_of(before).name, task_of(after).name),
        ("the number of classes", before.data.classes, after.data.classes),
        ("the number of outputs", first.num_classes, second.num_classes),
    ):
        if one != other:
            raise CannotTell(f"the runs cannot be paired: {what} is {one} in the baseline and {other} here")
    lines = [
        *checkpoint_changes(checkpoint_setup(first), checkpoint_setup(second)),
        *run_changes(run_setup(before), run_setup(after), ()),
    ]
    told = [line for line in lines if line.startswith("weights ") or is_of_rounding(line)]
    strange = [line for line in lines if line not in told and not any(part in line for part in excepted)]
    if strange:
        parts = ", ".join(map(quoted, strange[:_SHOWN]))
        more = f"; and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        raise CannotTell(
            f"the baseline has another set-up: {'; '.join(strange[:_SHOWN])}{more}; audit both alike, or accept this "
            f"in the rule: except {parts}"
        )
    accepted = [f"set-up: {line}, which the rule accepts" for line in lines if line not in told]
    return (*(f"baseline: {line}" for line in told), *accepted)


def check_card(before: Manifest, after: Manifest, *conditions: str) -> None:
    """Raise CannotTell where one of some conditions uses another part of the card in a baseline, or where a run of
    format 1 has another card.
    """
    if other := card_difference(before, after, conditions):
        raise CannotTell(f"the runs cannot be paired: {differing(*other, 'in the baseline')}; audit both alike")


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
        check_card(*manifests, text)
        if taken[0] != taken[1]:
            raise CannotTell(f"the runs cannot be paired: {text} reads other files here than in the baseline")
    try:
        difference = paired_difference(first, second, condition, metric)
    except RunError as fault:
        raise CannotTell(str(fault)) from None
    same = difference.value == 0 and is_same_model(first, second)
    low, high = difference.ci_low, difference.ci_high
    if falls:
        return Measured(0.0 - difference.value, difference.n, 0.0 - high, 0.0 - low, (), difference.first, same)
    return Measured(difference.value, difference.n, low, high, (), difference.first, same)
