"""The task of models that give each sample one class, whatever their inputs are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import RunError
from ...evaluations.family import families_of
from ...evaluations.records import Compared, Recorded
from ...evaluations.registry import words_of
from ..task import Task
from .measures import METRICS

if TYPE_CHECKING:
    from ...display.table import CardPart, Section, TextTable
    from ...evaluations.aggregate import Gatherer, Parts, Reading, Results
    from ...evaluations.family import Looks
    from ...evaluations.metrics import SummaryRow
    from ...runs.folder import RunFolder
    from ...runs.manifest import Manifest


class Labelled(Task):
    """One class a sample. A task of this kind adds its name, terms, and the command and card that audit it."""

    headline, metrics = "top1", METRICS
    compared = Compared(shown=("top1", "nll"), ended=("top1",))
    paired: ClassVar[Mapping[str, str]] = {"top1": "correct", "top5": "top5", "nll": "nll"}
    truth = ("label", "correct", "nll")

    def rows(self, reading: Reading, conditions: Sequence[str]) -> Parts:
        from .metrics import classification_rows

        return classification_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        import pyarrow.compute as pc

        share = pc.mean(run.table(checkpoint, condition, ["correct"])["correct"]).as_py()
        return None if share is None else float(share)

    def gatherers(self, manifest: Manifest) -> Sequence[type[Gatherer]]:
        from .metrics import WeakClasses
        from .tables import Reliabilities

        return (
            Reliabilities,
            WeakClasses,
            *(kind for family in families_of(manifest) for kind in family.aggregator.gatherers()),
        )

    def read_ahead(self, side: Recorded, condition: str) -> None:
        with contextlib.suppress(RunError):  # a missing column is reported later
            side.samples(condition, [self.paired[name] for name in self.compared.shown])

    def clean_clause(self, row: SummaryRow) -> str:
        from ...evaluations.interface import share

        return f"{share(row)} right on {row['n']} clean {self.samples.many}"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        from ..condition_table import ConditionTable
        from .tables import card_parts

        yield from card_parts(ConditionTable.of(self, results, results.manifest))
        for family in families_of(results.manifest, results):
            yield from family.presenter.card(results)

    def badge_word(self, is_clean: bool) -> str:
        return self.headline_metric.word if is_clean else ""

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from ..condition_table import CHANGE, ConditionTable

        table = ConditionTable.of(self, results, results.manifest)
        yield from [table.terminal(("top5", "ece", CHANGE, "n"), mark=True)] if table.figures else []
        for family in families_of(results.manifest, results):
            yield from family.presenter.terminal(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.table import Section
        from ...evaluations.presenting import flag_lines
        from ..condition_table import ConditionTable
        from .metrics import weak_spots
        from .tables import calibration_figures, class_grids, reliabilities

        def grids() -> Mapping[str, Any]:
            flags = flag_lines(results, lambda text: words_of(text).in_results)
            return {"grids": ConditionTable.of(self, results, results.manifest).grids(flags)}

        yield Section("results", "Results", grids)
        yield Section("calibration", "Calibration", figures=tuple(calibration_figures(reliabilities(results), looks)))
        yield Section("classes", "Weak spots by class", lambda: {"grids": class_grids(weak_spots(results))})
        for family in families_of(results.manifest, results):
            yield from family.presenter.sections(results, looks)
