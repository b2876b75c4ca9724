"""Features as a task: what simple heads make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from ...common.differences import Difference
from ...evaluations.recorded import Compared, PerSample, Recorded
from ..task import Task
from .measures import METRICS, TERMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ...display.table import CardPart, Section, TextTable
    from ...evaluations.cells import Row
    from ...evaluations.family import Looks
    from ...evaluations.results import Results
    from ...evaluations.rows import Parts, Reading
    from ...runs.folder import RunFolder

_COMPARED = ("knn", "probe", "retrieval")


class Features(Task):
    """One class per image, which heads read from features."""

    name, headline, metrics, terms = "features", "knn", METRICS, TERMS
    compared = Compared(shown=_COMPARED, ended=_COMPARED, groups=(), sets=_COMPARED)
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "features", "features", "image-feature-extraction"

    def rows(self, reading: Reading, conditions: Sequence[str]) -> Parts:
        from .metrics import feature_rows

        return feature_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        from ...evaluations.rows import column_of, readable

        read = readable(run.table(checkpoint, condition, ["label", "knn", "error"]))
        return float((column_of(read, "label") == column_of(read, "knn")).mean()) if len(read) else None

    def difference(self, first: Recorded, second: Recorded, condition: str, metric: str) -> Difference:
        from .metrics import recorded_difference

        return recorded_difference(first, second, condition, metric)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .metrics import per_sample

        return per_sample(side, condition, metric)

    def ids(self, side: Recorded, condition: str) -> pa.Array:
        return side.samples(condition, ["label"]).ids

    def other_truth(self, first: Recorded, second: Recorded, condition: str) -> tuple[int, str]:
        from .metrics import other_label

        return other_label(first, second, condition)

    def clean_clause(self, row: Row) -> str:
        from ...evaluations.sentence import share

        return f"nearest neighbours {share(row)} right on {row['n']} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        from .tables import card_parts

        yield from card_parts(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from .tables import terminal_tables

        yield from terminal_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.table import Section
        from .tables import result_grids

        yield Section("results", "Results", lambda: {"grids": result_grids(results)}, template="features")


TASK = Features()
