"""Several labels an image as a task: what its numbers are, of one checkpoint and of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from ...common.differences import Difference, of_resamples
from ...common.figure import FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import chosen_groups
from ...display.format import count, counted, figure_cell, percent, scaled, share
from ...display.table import CardPart, Section, Table, of_tables, side_by_side, tables_for, with_flags
from ...display.text import Made, code
from ...errors import RunError
from ...evaluations.aggregate import Parts, RecordReader, Results, readable_rows
from ...evaluations.condition import (
    Clause,
    in_means,
    is_over_groups,
    kind_of,
    name_of,
    shares_of,
    stops_early,
    words_of,
)
from ...evaluations.corruptions import in_short, possible_means
from ...evaluations.corruptions.results import merged_flags, quick_notes
from ...evaluations.family import AnyFamily, Summary, families_of, summary_of
from ...evaluations.metrics import Cells, Metric, finite_or_none, mean_share, of_samples
from ...evaluations.presenting import card_parts_of, finding_lines, of_family, tables_of_families
from ...evaluations.records import CheckpointRecords, Pairings, common_groups, common_ids, nothing_common
from ...protocol.card import SampleWords
from ...protocol.condition import CLEAN
from ...tasks.labelled import flips
from ...tasks.task import CHANGE, ConditionTable, Task
from .figures import COLUMNS, OF_LABELS, Outcomes, flip_shares, images_of, mean_rows, outcome_rows, place_of, weighted

if TYPE_CHECKING:
    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder

_MAIN = (
    replace(mean_share("map", "mAP %", drafted=True, hub=("mean_average_precision", "mAP")), noun="mAP"),
    mean_share("micro_f1", "micro F1 %", hub=("f1", "micro F1")),
    mean_share("macro_f1", "macro F1 %", hub=("f1", "macro F1")),
    replace(of_samples("exact_match", "exact match %", hub=("accuracy", "exact match")), noun="exact match"),
    Metric("bce", "BCE", better=-1, paired=True, least=0, bare=True),
)
_OF_LABEL = tuple(
    Metric(f"{kind}(", f"{word} %", 100, 1, paired=True, share=True, parametric=True)
    for kind, word in zip(OF_LABELS, ("AP", "precision", "recall", "F1"), strict=True)
)
METRICS = (
    *_MAIN,
    *_OF_LABEL,
    *flips.METRICS,
    *(
        replace(metric, name=f"{metric.name}(", label=f"{metric.label} of a label", parametric=True, meaning="")
        for metric in flips.METRICS
    ),
)
OF_ONE_LABEL = ("apgd", "square", "fmn")
"""Attacks that turn one label: they leave an image that has a wrong one as it is."""
_FLIPS = tuple(metric.name for metric in flips.METRICS)
_HEADLINE, _LONGEST = "mAP % [95 %]", 40  # rows of a table of labels that a terminal shows


class Multilabel(Task):
    """Several labels per image, each there or not."""

    name, headline, metrics = "multilabel", "map", METRICS
    compared = Pairings(shown=("map", "exact_match"), ended=("exact_match",), groups=("map",), sets=("map",))
    paired: ClassVar[Mapping[str, str]] = {"exact_match": "correct", "bce": "bce"}
    shows_compared = True
    command, card, hub = "multilabel", "multilabel", "image-classification"
    samples = SampleWords("image", "images")

    @property
    def judged(self) -> Metric:
        return next(metric for metric in self.metrics if metric.name == "exact_match")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        rows, by_condition = list[Figure](), dict[str, Outcomes]()
        summaries: dict[AnyFamily, Summary | None] = {}
        names = reading.manifest.data.class_names
        for condition in conditions:
            if (summary := summary_of(condition, reading, summaries)[1]) is not None:
                rows += reading.figures(summary.add(condition))
                continue
            takers = [each for each in reading.gatherers.values() if each.wants(reading.checkpoint, condition)]
            table, notes = reading.joined(reading.shards(condition, {*COLUMNS, "label"}))  # as takers need no others
            if not len(read := readable_rows(table)):
                continue
            for taker in takers:
                taker.take(reading.checkpoint, condition, read)
            flags = [*reading.findings(condition, table), *notes]
            outcomes = Outcomes.of(table, flags, reading.sample_groups)
            if non_finite := int((~np.isfinite(outcomes.logits)).any(axis=1).sum()):
                flags.append(Finding.of("model/non-finite-logits", count=non_finite, n=len(read)))
            flags += reading.dependence(condition, outcomes.ids, outcomes.correct)
            outcomes = replace(outcomes, flags=tuple(flags))
            early = kind_of(condition) in OF_ONE_LABEL or stops_early(condition, reading.manifest)
            rows += reading.figures(outcome_rows(condition, outcomes, names, early))
            for norm in ("linf", "l2"):
                if (largest := pc.max(read[norm]).as_py() or 0.0) > 0:
                    rows += reading.figures([Figure(largest, len(read)).of(condition, f"{norm}_max", flags)])
            if in_means(condition):
                by_condition[condition] = outcomes
        of_families = (row for summary in summaries.values() if summary for row in summary.finish())
        return rows, reading.figures(means_of(by_condition, reading.manifest.data.n)), reading.figures(of_families)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        outcomes = Outcomes.of(run.table(checkpoint, condition, COLUMNS))
        return float(outcomes.values[0]) if len(outcomes.ids) else None

    # Two checkpoints next to each other

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        names, shares = first.manifest.data.class_names, shares_of(condition)
        kind, _, label = metric.removesuffix(")").partition("(")
        place, of_pairs = place_of(metric, names), kind in _FLIPS and label in ("", *names)
        if not of_pairs and (place is None or (metric in self.paired and len(shares) == 1)):
            return super().difference(first, second, condition, metric)
        sides = [[_outcomes(side, text) for text in shares] for side in (first, second)]
        ids = common_ids([each.ids for side in sides for each in side])
        if not len(ids):
            raise nothing_common(first, second, condition)
        groups, sample_groups = common_groups(first, second, ids), first.sample_groups or second.sample_groups
        same = [[replace(each.of_samples(ids), sample_groups=sample_groups) for each in side] for side in sides]
        if place is not None:
            old, new = (weighted(list(zip(shares.values(), side, strict=True)), place) for side in same)
            which = images_of(place, same[0] + same[1], len(names))
            return of_resamples(old[0], new[0], new[1] - old[1], int(which.sum()), FEWEST, chosen_groups(groups, which))
        if len(shares) > 1:
            raise RunError(f"{metric} under {condition}: expected one condition, not a mean over several")
        figure = flip_shares(same[0][0], same[1][0], names.index(label) if label else None)[kind]
        return Difference(figure.value, figure.n, figure.low, figure.high, math.nan, groups=figure.groups)

    def other_truth(self, first: CheckpointRecords, second: CheckpointRecords, condition: str) -> tuple[int, str]:
        one, two = (_outcomes(side, condition) for side in (first, second))
        ids = common_ids([one.ids, two.ids])
        before, after = one.of_samples(ids), two.of_samples(ids)
        names = first.manifest.data.class_names, second.manifest.data.class_names
        if before.truths.shape != after.truths.shape or names[0] != names[1]:
            return len(ids), "the labels are others, or in another order"
        places = np.flatnonzero((before.truths != after.truths).any(axis=1))[:1]
        return len(ids), "".join(f"the labels of {ids[place].as_py()} differ" for place in places)

    # Results for people

    def clean_clause(self, row: Figure) -> str:
        return f"mAP {share(row)} on {row.n} clean images"

    def last_clauses(self, cells: Cells) -> Iterable[Clause]:
        of_labels = [row for (text, name), row in cells.items() if text == CLEAN.text and name.startswith("ap(")]
        if len(of_labels) > 1:
            row = min(of_labels, key=lambda row: row.value)
            yield Clause(f"its weakest label is {row.metric[3:-1]} with AP {percent(row.value)}, clean", (row,))

    def terminal(self, results: Results) -> Iterable[Table]:
        table = ConditionTable.of(self, results, results.manifest)
        yield from [table.terminal(("bce", "macro_f1", CHANGE, "n"), mark=True)] if table.figures else []
        for corrupted in _corrupted(results):
            yield replace(corrupted, title=f"{corrupted.checkpoint}: {corrupted.title}", spare=("BCE", "n"))
        for labels in _of_labels(results):
            title, long = f"{labels.checkpoint}: {labels.title}", len(labels.rows) > _LONGEST
            many = Table(f"{title}: {len(labels.rows)} labels; see the report", (), ())
            yield many if long else replace(labels, title=title)
        yield from _flipped(results)
        yield from tables_of_families(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        def grids() -> Mapping[str, Any]:
            flags = finding_lines(results, lambda text: words_of(text).in_results)
            parts = ConditionTable.of(self, results, results.manifest).grids(flags)
            under = side_by_side("Under corruption", _corrupted(results), headline=_HEADLINE)
            parts += with_flags(under, finding_lines(results, of_family("corruptions")))
            return {"grids": [*parts, *side_by_side("By label", _of_labels(results)), *_flipped(results)]}

        yield Section("results", "Results", grids, template="multilabel")
        for family in families_of(results.manifest, results):
            if not family.words.in_results and family.name != "corruptions":
                yield from family.presenter.sections(results, looks)
            elif tables := tuple(tables_for("page", family.presenter.tables(results))):
                yield of_tables(family.name, family.name.capitalize(), tables)

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        table = ConditionTable.of(self, results, results.manifest)
        rows = [table.cells(key, whole=True) | {"condition": Made(code(key[1]))} for key in table.figures]
        tables = [Table("", tuple(rows[0]), tuple(tuple(row.values()) for row in rows))] if rows else []
        tables += [each for each in (*_corrupted(results), *_of_labels(results)) if len(each.rows) <= _LONGEST]
        if tables:
            yield CardPart("Several labels", "95 % intervals in brackets; n is the number of images.", tables)
        yield from card_parts_of(checkpoint, results)


def _outcomes(side: CheckpointRecords, condition: str) -> Outcomes:
    if ("outcomes", condition) not in side.memo:
        side.memo["outcomes", condition] = Outcomes.of(side.table(condition, list(COLUMNS)))
    outcomes: Outcomes = side.memo["outcomes", condition]
    return outcomes


def means_of(by_condition: Mapping[str, Outcomes], expected: int) -> Iterator[Figure]:
    """Yield the rows of every mean that the conditions allow, over the images read under all of it."""
    for mean in possible_means(by_condition):
        shares = shares_of(mean)
        if not all(text in by_condition for text in shares):
            continue
        ids = common_ids([by_condition[text].ids for text in shares])
        if len(ids):
            members = [by_condition[text].of_samples(ids) for text in shares]
            lost = expected - len(ids)
            lack = [Finding.of("data/lacks-conditions", count=lost, expected=expected)] if lost else []
            parts = list(zip(shares.values(), members, strict=True))
            yield from mean_rows(mean, parts, [*merged_flags(members), *lack, *quick_notes(mean)])


def _corrupted(results: Results) -> list[Table]:
    """Return a table of each checkpoint: its figures under each corruption, and means over them."""
    tables, manifest = list[Table](), results.manifest
    for name, cells in results.cells.items():
        every = dict.fromkeys(text for text, metric in cells if metric == "map")
        texts = [text for text in every if words_of(text).name == "corruptions"]
        short = in_short(texts)
        conditions = [*short, *(text for text in texts if text not in short and text in manifest.conditions)]
        rows = []
        for text in conditions:
            figures = (metric.cell(cells.get((text, metric.name))) for metric in _MAIN)
            rows.append((name_of(text, "table", manifest), counted(cells[text, "map"]), *figures))
        headings = ("condition", "n", *(metric.column for metric in _MAIN))
        table = Table("under corruption", headings, tuple(rows), checkpoint=name, shaded=(_HEADLINE,))
        tables += [table] if rows else []
    return tables


def _of_labels(results: Results) -> list[Table]:
    """Return a table of each checkpoint: figures of each label clean, and its AP under all but single corruptions."""
    manifest, tables = results.manifest, list[Table]()
    for name, cells in results.cells.items():
        texts = dict.fromkeys(text for text, metric in cells if metric.startswith("ap("))
        columns = [text for text in texts if text != CLEAN.text and (words_of(text).in_results or is_over_groups(text))]
        labels = dict.fromkeys(metric[3:-1] for _, metric in cells if metric.startswith("ap("))
        rows = []
        for label in labels:
            clean = [cells.get((CLEAN.text, f"{metric.name}{label})")) for metric in _OF_LABEL]
            under = (scaled(finite_or_none(cells, text, f"ap({label})")) for text in columns)
            n = count(0) if clean[0] is None else counted(clean[0])
            rows.append((label, n, *(each.cell(row) for each, row in zip(_OF_LABEL, clean, strict=True)), *under))
        named = [f"AP %, {name_of(text, 'table', manifest)}" for text in columns]
        headings = ("label", "n", *(metric.label.removesuffix(" of a label") for metric in _OF_LABEL), *named)
        tables += [Table("by label, clean", headings, tuple(rows), checkpoint=name)] if rows else []
    return tables


def _flipped(results: Results) -> list[Table]:
    """Return a table of each checkpoint but the first, which it is compared with: the labels that changed."""
    if results.kind != "checkpoints":
        return []
    (base, *others), tables, kinds = results.manifest.names, list[Table](), _FLIPS[:2]
    first = CheckpointRecords(results.run, base)
    for second in (CheckpointRecords(results.run, name) for name in others):
        rows = []
        for text in flips.flipping(first, second)[0]:
            for name in results.manifest.data.class_names:
                every = (TASK.difference(first, second, text, f"{kind}({name})") for kind in kinds)
                shares = [Figure(each.value, each.n, each.ci_low, each.ci_high) for each in every]
                cells = (counted(shares[0]), *map(figure_cell, shares))
                rows += [(name_of(text, "table", results.manifest), name, *cells)] if shares[0].n else []
        headings = ("condition", "label", "n", *(f"{kind} % [95 %]" for kind in kinds))
        title = f"{second.checkpoint} against {base}: labels that changed"
        tables += [Table(title, headings, tuple(rows), checkpoint=second.checkpoint, keys=2)] if rows else []
    return tables


TASK = Multilabel()
