"""What all tasks share whose samples have one class each: records, scores, tables, figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...common.differences import Difference
from ...common.figure import Figure
from ...display.format import share
from ...display.table import CardPart, Section, Table, of_tables
from ...display.text import Made, code
from ...errors import RunError
from ...evaluations.condition import words_of
from ...evaluations.family import families_of
from ...evaluations.presenting import card_parts_of, finding_lines, tables_of_families
from ...evaluations.records import CheckpointRecords, Pairings
from ..task import CHANGE, ConditionTable, Task
from . import flips
from .metrics import METRICS, WeakClasses, classification_rows
from .parity import parity_tables
from .tables import Reliabilities, calibration_figures, stacked_grids

if TYPE_CHECKING:
    from ...evaluations.aggregate import Gatherer, Parts, RecordReader, Results
    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder
    from ...runs.manifest import Manifest


class Labelled(Task):
    """One class a sample. A task of this kind adds its name, terms, and the command and card that audit it."""

    headline, metrics = "top1", (*METRICS, *flips.METRICS)
    compared = Pairings(shown=("top1", "nll"), ended=("top1",))
    paired: ClassVar[Mapping[str, str]] = {"top1": "correct", "top5": "top5", "nll": "nll"}
    truth = ("label", "correct", "nll")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        return classification_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        import pyarrow.compute as pc

        right = pc.mean(run.table(checkpoint, condition, ["correct"])["correct"]).as_py()
        return None if right is None else float(right)

    def gatherers(self, manifest: Manifest) -> Sequence[type[Gatherer]]:
        of_families = (kind for family in families_of(manifest) for kind in family.aggregator.gatherers())
        return (Reliabilities, WeakClasses, *of_families)

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        of_pair = flips.flip_difference(first, second, condition, metric)
        return super().difference(first, second, condition, metric) if of_pair is None else of_pair

    def other_truth(self, first: CheckpointRecords, second: CheckpointRecords, condition: str) -> tuple[int, str]:
        for side in (first, second):
            with contextlib.suppress(RunError):  # a missing column is reported later
                side.samples(condition, [*self.truth, "prediction"])
        return super().other_truth(first, second, condition)

    def read_ahead(self, side: CheckpointRecords, condition: str) -> None:
        with contextlib.suppress(RunError):  # a missing column is reported later
            side.samples(condition, ["prediction", *(self.paired[name] for name in self.compared.shown)])

    def clean_clause(self, row: Figure) -> str:
        return f"accuracy {share(row)} on {row.n} clean {self.samples.many}"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        table, rows = ConditionTable.of(self, results, results.manifest), list[dict[str, str]]()
        for key, figures in table.figures.items():
            mark = " ⚑" * any(row.findings for row in figures.values())
            rows.append(table.cells(key, whole=True) | {"condition": Made(code(key[1]) + mark)})
        if rows:
            samples = results.manifest.protocol.samples.many
            note = f"95 % intervals in brackets; n is the number of {samples}; ⚑ marks flagged figures (see above)."
            headings = tuple({CHANGE: "largest change"}.get(heading, heading) for heading in rows[0])
            lines = tuple(tuple(row.values()) for row in rows)
            yield CardPart("Clean and under attack", note, [Table("", headings, lines)])
        for parity in parity_tables(results):
            if parity.checkpoint == checkpoint:
                yield CardPart("Parity", parity.note, [parity])
        yield from card_parts_of(checkpoint, results)

    def badge_word(self, is_clean: bool) -> str:
        return self.headline_metric.word if is_clean else ""

    def terminal(self, results: Results) -> Iterable[Table]:
        table = ConditionTable.of(self, results, results.manifest)
        yield from [table.terminal(("top5", "ece", CHANGE, "n"), mark=True)] if table.figures else []
        yield from parity_tables(results)
        yield from tables_of_families(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        def grids() -> Mapping[str, Any]:
            flags = finding_lines(results, lambda text: words_of(text).in_results)
            return {"grids": ConditionTable.of(self, results, results.manifest).grids(flags)}

        yield Section("results", "Results", grids)
        if tables := tuple(parity_tables(results)):
            yield of_tables("parity", "Parity", tables)
        diagrams = calibration_figures(results.gathered(Reliabilities).entries, looks)
        yield Section("calibration", "Calibration", figures=tuple(diagrams))
        weak = results.gathered(WeakClasses).tables
        yield Section("classes", "Weakest classes", lambda: {"grids": stacked_grids(weak, len(results.names) > 1)})
        for family in families_of(results.manifest, results):
            yield from family.presenter.sections(results, looks)
