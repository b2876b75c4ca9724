"""The logit ledger as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...family import Family, Summary, family_of
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ....common.plugins import Plugin
    from ....common.randomness import SampleRng
    from ....display.table import CardPart, Section, TextTable
    from ....protocol.card import Card
    from ....protocol.condition import Condition
    from ...aggregate import Gatherer, Reading, Results
    from ...family import Looks
    from ...interface import Cost
    from ...metrics import Metric
    from ...records import Compared, PerSample, Recorded
    from ...subject import Batch, Evaluation, Subject


class LogitLedger(Family):
    """Why logits change on the images that another condition shows, and what brings predictions back."""

    name, words = "ledger", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import LEDGER

        return LEDGER

    def summary(self, reading: Reading) -> Summary:
        from .results import LedgerSummary

        return LedgerSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        from .condition import ANSWERS

        yield from ((text, metric.name) for text in common for metric in ANSWERS)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return ()  # its figures say why, not how well

    def card(self, results: Results) -> Iterable[CardPart]:
        return ()

    def gatherers(self) -> Sequence[type[Gatherer]]:
        from .results import LedgerHeads

        return (LedgerHeads,)

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import ledger_tables

        return ledger_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ....display.grid import grid_of, together, with_flags
        from ....display.table import Section
        from ...presenting import flag_lines, of_family
        from .results import LedgerHeads, layer_table, ledger_figures

        kept = results.gathered(LedgerHeads).by_unit
        first: dict[str, tuple[str, Any]] = {}
        for (checkpoint, condition), books in kept.items():
            first.setdefault(checkpoint, (condition, books))

        def values() -> dict[str, Any]:
            by_layer = [
                grid_of(layer_table(books, f"{checkpoint}: {self.words.label(condition)}, layer by layer"), folded=True)
                for checkpoint, (condition, books) in first.items()
            ]
            lines = flag_lines(results, of_family(self.name))
            return {"grids": [*with_flags(together(self.tables(results)), lines), *by_layer]}

        if self.tables(results):
            yield Section("logits", "Why logits change", values, tuple(ledger_figures(first)))

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        under = condition.under
        return () if under is None else family_of(under.name).plugins(under)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost

        return Cost(6, extra=6)  # copies of the batch, and the logits of eight combinations in float64

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition)


FAMILY = LogitLedger()
