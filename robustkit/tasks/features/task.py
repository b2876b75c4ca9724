"""Features as a task: what simple heads make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from ...common.differences import Difference
from ...display.table import Section
from ...evaluations.aggregate import column_of, readable_rows
from ...evaluations.condition import share
from ...evaluations.metrics import Metric, mean_share, of_samples
from ...evaluations.records import CheckpointRecords, Compared, PerSample
from ...protocol.card import Samples
from ..task import Task
from .results import (
    card_parts,
    feature_rows,
    per_sample,
    recorded_difference,
    result_grids,
    terminal_tables,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...display.table import CardPart, TextTable
    from ...evaluations.aggregate import Parts, RecordReader, Results
    from ...evaluations.family import Looks
    from ...evaluations.metrics import SummaryRow
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
    compared = Compared(shown=_COMPARED, ended=_COMPARED, groups=(), sets=_COMPARED)
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "features", "features", "image-feature-extraction"
    samples = Samples("image", "images")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        return feature_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        read = readable_rows(run.table(checkpoint, condition, ["label", "knn", "error"]))
        return float((column_of(read, "label") == column_of(read, "knn")).mean()) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        return recorded_difference(first, second, condition, metric)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        return per_sample(side, condition, metric)

    def clean_clause(self, row: SummaryRow) -> str:
        return f"nearest neighbours {share(row)} right on {row['n']} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        return card_parts(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        return terminal_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        yield Section("results", "Results", lambda: {"grids": result_grids(results)}, template="features")


TASK = Features()
