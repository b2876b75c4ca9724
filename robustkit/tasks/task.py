"""A task: how models of one kind are summarised, compared and shown; the table of the results of its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..common.differences import Difference, of_means, of_ranks
from ..common.figure import Figure
from ..display.format import MISSING, amount, count, counted
from ..display.table import Table, side_by_side, with_flags
from ..errors import ProtocolError, RunError, unknown
from ..evaluations.condition import Clause, kind_of, metric_in, name_of, vocabularies, words_of
from ..evaluations.family import family_of
from ..evaluations.metrics import Cells, Metric, Term, is_finite, metric_named, terms_next_to, terms_of
from ..evaluations.records import (
    CheckpointRecords,
    Pairings,
    PerSample,
    align,
    common_groups,
    common_ids,
    not_paired,
    nothing_common,
)
from ..protocol.card import SampleWords, samples_of
from . import EVERY_TASK

if TYPE_CHECKING:
    import pyarrow as pa

    from ..display.table import CardPart, Section, Table
    from ..evaluations.aggregate import Gatherer, Parts, RecordReader, Results
    from ..evaluations.family import Looks
    from ..runs.folder import RunFolder
    from ..runs.manifest import Manifest


class Task:
    """The task of one kind of model.

    name: as in cards and run.json. headline: the metric that a gate means where a rule names none. metrics: its
    numbers. compared: those by which checkpoints are compared; paired: those whose difference is a mean over samples,
    with their columns. truth: the column of what is true of a sample, and others to read with it; differs: what is said
    where two runs have another one, of a sample and both values. shows_compared: whether the terminal shows checkpoints
    compared. browsed: whether the page shows its samples. command, card: of the command line that audits it. hub: what
    a model hub calls it. terms: what the words of its tables mean, as of a `Vocabulary`, besides those in the TOML
    files next to its classes.
    """

    name: ClassVar[str]
    headline: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    compared: ClassVar[Pairings]
    paired: ClassVar[Mapping[str, str]]
    truth: ClassVar[Sequence[str]] = ("label",)
    differs: ClassVar[str] = "the label of {} is {:.0f} and {:.0f}"
    shows_compared: ClassVar[bool] = False
    browsed: ClassVar[bool] = False
    command: ClassVar[str]
    card: ClassVar[str]
    hub: ClassVar[str]
    terms: ClassVar[tuple[Term, ...]] = ()

    def plan(self, request: Any) -> Any:
        """Return the `pipeline.plan.Plan` of a `pipeline.request.Request`: what the module `plan` next to it makes."""
        return import_module(f"{type(self).__module__.rpartition('.')[0]}.plan").plan(request)

    @property
    def headline_metric(self) -> Metric:
        """The metric that summarises a condition."""
        return next(metric for metric in self.metrics if metric.name == self.headline)

    @property
    def judged(self) -> Metric:
        """The metric by which a sample is right or wrong, where there is one."""
        return self.headline_metric

    @property
    def samples(self) -> SampleWords:
        """What its samples are called."""
        return samples_of(self.name)

    # Records into results

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        """Return the rows of a checkpoint: of single conditions, of means over conditions, and of several together."""
        raise NotImplementedError

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        """Return the headline metric of a condition, for a line on the way; None where it is not known."""
        return None

    def gatherers(self, manifest: Manifest) -> Sequence[type[Gatherer]]:
        """Return what sections of the page gather from records, in addition to the results."""
        return ()

    # Two checkpoints next to each other

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        """Return how the second's figure under a condition differs from the first's, on the samples that both have.

        Raises:
            RunError: records or all its figures are missing, no sample is in common, or there is no such metric.
        """
        (first_ids, first_values), (second_ids, second_values) = (
            self.per_sample(side, condition, metric) for side in (first, second)
        )
        ids = common_ids([first_ids, second_ids])
        if not len(ids):
            raise nothing_common(first, second, condition)
        before, after = align(first_ids, first_values, ids), align(second_ids, second_values, ids)
        for side, values in ((first, before), (second, after)):
            if np.isnan(values).all():  # as of predictions alone, which have no losses
                what = f"the records of {side.checkpoint} under {condition} have no {metric}"
                raise RunError(f"{side.run.path}: {what}; compare another figure")
        groups = common_groups(first, second, ids)
        definition = metric_named(self.metrics, metric) or metric_in(words_of(condition), metric)
        if definition is not None and definition.by_rank:
            return of_ranks(before, after, groups)
        return of_means(before, after, definition is not None and definition.binary, groups)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        """Return a figure for each sample. Raises RunError as `difference` does."""
        family = family_of(kind_of(condition))
        if (figures := family.aggregator.per_sample(side, condition, metric)) is not None:
            return figures
        if metric not in self.paired:
            names = [number.name for number in family.words.metrics if number.paired]
            raise not_paired(condition, metric, [*self.paired, *names])
        read = side.samples(condition, [self.paired[metric]])
        return read.ids, read.columns[self.paired[metric]]

    def ids(self, side: CheckpointRecords, condition: str) -> pa.Array:
        """Return the samples that could be read under a condition. Raises RunError without records."""
        return side.samples(condition, self.truth[:1]).ids

    def other_truth(self, first: CheckpointRecords, second: CheckpointRecords, condition: str) -> tuple[int, str]:
        """Return how many samples both have, and which of them has another truth in the second run (empty if none)."""
        sides = [side.samples(condition, self.truth) for side in (first, second)]
        ids = common_ids([side.ids for side in sides])
        before, after = (side.of(self.truth[0], ids) for side in sides)
        places = np.flatnonzero(before != after)[:1]
        return len(ids), "".join(self.differs.format(ids[p].as_py(), before[p], after[p]) for p in places)

    def read_ahead(self, side: CheckpointRecords, condition: str) -> None:
        """Read what is compared under a condition of the task's table at once, where that spares opening files."""

    # Results for people

    def terminal(self, results: Results) -> Iterable[Table]:
        """Return the tables of a run for a terminal; flags of rows of the summary are shown apart."""
        raise NotImplementedError

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        """Return the parts of the page that show the results. looks: how each checkpoint is drawn."""
        raise NotImplementedError

    def clean_clause(self, row: Figure) -> str:
        """Return what the headline metric of clean images says, for a sentence."""
        raise NotImplementedError

    def last_clauses(self, cells: Cells) -> Iterable[Clause]:
        """Return the clauses of a sentence that follow those of the families."""
        return ()

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        """Return the parts of the model card of a checkpoint. results: its rows alone."""
        raise NotImplementedError

    def badge_word(self, is_clean: bool) -> str:
        """Return the name of its metric on a badge; is_clean: whether it is of clean images."""
        return self.headline_metric.word


def task_of(manifest: Manifest) -> Task:
    """Return the task of a run by its run.json."""
    return task_named(manifest.protocol.task)


def task_named(name: str | None) -> Task:
    """Return the task of a name, as cards have it; classification for None. Raises ProtocolError for an unknown one."""
    try:
        task: Task = EVERY_TASK[name or "classification"]
    except KeyError:
        raise ProtocolError(unknown("task", str(name), EVERY_TASK)) from None
    return task


def glossary(task: Task) -> tuple[Term, ...]:
    """Return the terms of a task's reports, `{one}` and `{many}` in them standing for its samples; of two with the same
    name the first: the task's, then families'.
    """
    owners = (task, *vocabularies())
    every = (*(term for owner in owners for term in terms_of(owner)), *terms_next_to("robustkit.evaluations.metrics"))
    return tuple({term.name: _about(term, task.samples) for term in reversed(every)}.values())[::-1]


def _about(term: Term, samples: SampleWords) -> Term:
    def filled(text: str) -> str:
        return text.replace("{one}", samples.one).replace("{many}", samples.many)

    return Term(filled(term.name), filled(term.definition), tuple(map(filled, term.also)))


CHANGE = "largest |δ|"  # the last column: the size of the changes in the norm of the condition
_OF_NORMS = {f"{norm}_max": norm for norm in ("linf", "l2")}


@dataclass(frozen=True)
class ConditionTable:
    """metrics: one for each column. figures: the rows of the summary by checkpoint and condition, then by metric."""

    task: Task
    manifest: Manifest
    metrics: tuple[Metric, ...]
    figures: Mapping[tuple[str, str], Mapping[str, Figure]]

    @classmethod
    def of(cls, task: Task, results: Iterable[Figure], manifest: Manifest) -> ConditionTable:
        """Return the table of conditions that have the headline figure, of metrics with a label and a figure."""
        every: dict[tuple[str, str], dict[str, Figure]] = {}
        for row in results:
            if words_of(row.condition).in_results:
                every.setdefault((row.checkpoint, row.condition), {})[row.metric] = row
        figures = {key: by_metric for key, by_metric in every.items() if task.headline in by_metric}
        names = {name for by_metric in figures.values() for name in by_metric} - {*_OF_NORMS}
        metrics = (metric for metric in task.metrics if metric.label and not metric.parametric)
        return cls(task, manifest, tuple(metric for metric in metrics if metric.name in names), figures)

    def cells(self, key: tuple[str, str], whole: bool = False) -> dict[str, str]:
        """Return the texts of a row by heading. whole: every interval; a dash for what is not finite or left early."""
        figures, norm = self.figures[key], self.manifest.norm(key[1])
        if whole:
            figures = {name: row for name, row in figures.items() if row.is_finite}
        metrics = [replace(metric, bare=False) for metric in self.metrics] if whole else self.metrics
        largest = figures.get(f"{norm}_max")
        size = largest.value if largest else None
        none = MISSING if self.manifest.checkpoint(key[0]).is_elsewhere else count(0)  # nobody measured it
        return {
            "condition": name_of(key[1], "table", self.manifest),
            "n": counted(self.figures[key][self.task.headline]),
            **{metric.column: metric.cell(figures.get(metric.name)) for metric in metrics},
            CHANGE: amount(size, norm, self.manifest.protocol.space) if is_finite(size) and size else none,
        }

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        attention = {
            entry.name: "no" if entry.attention == "none" else entry.attention for entry in self.manifest.checkpoints
        }
        return [{"checkpoint": key[0], "attention": attention[key[0]], **self.cells(key)} for key in self.figures]

    def text_table(self, spare: tuple[str, ...] = (), mark: bool = False) -> Table:
        """Return all rows. spare: headings to leave out where room is short. mark: show which rows have a flag."""
        rows = self.rows
        flags = [self.figures[key][self.task.headline].findings for key in self.figures]
        if mark and any(flags):
            rows = [{**row, "flag": "⚑" if some else ""} for row, some in zip(rows, flags, strict=True)]
        protocol, columns = self.manifest.protocol, {metric.name: metric.column for metric in self.metrics}
        headings = tuple(rows[0]) if rows else ()
        texts = tuple(tuple(row.values()) for row in rows)
        title = f"protocol {protocol.tag}: {protocol.summary}"
        return Table(title, headings, texts, spare=tuple(columns.get(name, name) for name in spare))

    def terminal(self, spare: tuple[str, ...], mark: bool = False) -> Table:
        heads = [f"{name}, {self.manifest.checkpoint(name).attention_words}" for name, _ in self.figures]
        return self.text_table(spare, mark).said_once("n").under_heads(heads, 2)

    def grids(self, flags: tuple[str, ...]) -> list[Table]:
        """Return the headline of all checkpoints side by side, then every figure. flags: lines below the first."""
        headline, parts = self.task.headline_metric, []
        for checkpoint in dict.fromkeys(checkpoint for checkpoint, _ in self.figures):
            rows = [self.cells(key) for key in self.figures if key[0] == checkpoint]
            lines = tuple(tuple(row.values()) for row in rows)
            parts.append(Table("", tuple(rows[0]), lines, checkpoint=checkpoint, shaded=(headline.column,)))
        return with_flags(side_by_side("Clean and attacked", parts, headline=headline.column), flags)
