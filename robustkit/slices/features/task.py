"""Features as a task: what simple heads make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...common.differences import Difference, of_draws, of_means
from ...common.figure import Figure
from ...display.format import share
from ...display.table import CardPart, Section, Table
from ...display.text import Made, code
from ...evaluations.aggregate import Parts, RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import shares_of
from ...evaluations.metrics import Metric, mean_share, of_samples
from ...evaluations.records import CheckpointRecords, Pairings, PerSample, align, common_ids, nothing_common
from ...protocol.card import SampleWords
from ...tasks.task import Task
from .results import (
    HEADINGS,
    feature_rows,
    head_grids,
    head_rows,
    heads_in_words,
    in_short,
    is_binary,
    recorded,
    terminal_tables,
)

if TYPE_CHECKING:
    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder

METRICS = (
    of_samples("knn", "kNN %", True, ("accuracy", "accuracy of nearest neighbours")),
    of_samples("probe", "linear probe %", hub=("probe_accuracy", "accuracy of a linear probe")),
    mean_share("retrieval", "retrieval mAP %", hub=("map", "mAP of nearest-neighbour retrieval")),
    Metric("moved", "features moved", better=-1, paired=True, least=0),
    Metric("knn(", "kNN % at k", 100, 1, paired=True, binary=True, parametric=True),
    Metric("few_shot(", "few-shot %", 100, 1, paired=True, share=True, parametric=True),
    Metric("few_shot_spread(", "spread of few-shot %", 100, parametric=True, least=0, most=1),
)


_COMPARED = ("knn", "probe", "retrieval")


class Features(Task):
    """One class per image, which heads read from features."""

    name, headline, metrics = "features", "knn", METRICS
    compared = Pairings(shown=_COMPARED, ended=_COMPARED, groups=(), sets=_COMPARED)
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "features", "features", "image-feature-extraction"
    samples = SampleWords("image", "images")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        return feature_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        read = readable_rows(run.table(checkpoint, condition, ["label", "knn", "error"]))
        return float((column_of(read, "label") == column_of(read, "knn")).mean()) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        (first_ids, before), (second_ids, after) = (recorded(side, condition, metric) for side in (first, second))
        ids = common_ids([first_ids, second_ids])
        if not len(ids):
            raise nothing_common(first, second, condition)
        before, after = align(first_ids, before, ids), align(second_ids, after, ids)
        if before.ndim > 1:
            return of_draws(before, after)
        return of_means(before, after, binary=is_binary(metric) and len(shares_of(condition)) == 1)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        ids, each = recorded(side, condition, metric)
        return ids, each if each.ndim == 1 else each.mean(axis=1)

    def clean_clause(self, row: Figure) -> str:
        return f"nearest neighbours {share(row)} right on {row.n} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        cells, entry = results.cells[checkpoint], results.manifest.checkpoint(checkpoint)
        if rows := head_rows(cells, in_short(cells), results.manifest):
            parts = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
            note = f"95 % intervals in brackets; n is the number of images. {heads_in_words(entry)}."
            yield CardPart("Accuracy of heads on its features", note, [Table("", HEADINGS[:-1], tuple(parts))])

    def terminal(self, results: Results) -> Iterable[Table]:
        return terminal_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        yield Section("results", "Results", lambda: {"grids": head_grids(results)}, template="features")


TASK = Features()
