"""Features as a task: what simple heads make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from ...common.differences import Difference
from ...evaluations.records import CheckpointRecords, Compared, PerSample
from ...protocol.card import Samples
from ..task import Task
from .measures import METRICS, TERMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...display.table import CardPart, Section, TextTable
    from ...evaluations.aggregate import Parts, RecordReader, Results
    from ...evaluations.family import Looks
    from ...evaluations.metrics import SummaryRow
    from ...runs.folder import RunFolder


_COMPARED = ("knn", "probe", "retrieval")


class Features(Task):
    """One class per image, which heads read from features."""

    name, headline, metrics, terms = "features", "knn", METRICS, TERMS
    compared = Compared(shown=_COMPARED, ended=_COMPARED, groups=(), sets=_COMPARED)
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "features", "features", "image-feature-extraction"
    samples = Samples("image", "images")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        from .results import feature_rows

        return feature_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        from ...evaluations.aggregate import column_of, readable_rows

        read = readable_rows(run.table(checkpoint, condition, ["label", "knn", "error"]))
        return float((column_of(read, "label") == column_of(read, "knn")).mean()) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        from .results import recorded_difference

        return recorded_difference(first, second, condition, metric)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def clean_clause(self, row: SummaryRow) -> str:
        from ...evaluations.interface import share

        return f"nearest neighbours {share(row)} right on {row['n']} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        from .results import card_parts

        yield from card_parts(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from .results import terminal_tables

        yield from terminal_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.table import Section
        from .results import result_grids

        yield Section("results", "Results", lambda: {"grids": result_grids(results)}, template="features")


TASK = Features()
