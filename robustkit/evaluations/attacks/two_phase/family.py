"""Attacks in two phases as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...family import Family, Summary, family_of
from ...registry import kind_of
from .condition import VOCABULARY, phases_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ....common.plugins import Plugin
    from ....common.randomness import SampleRng
    from ....display.table import Section, TextTable
    from ....protocol.card import Card
    from ....protocol.condition import Condition
    from ....runs.folder import RunFolder
    from ....runs.manifest import Manifest
    from ...aggregate import Reading, Results
    from ...family import Looks
    from ...interface import Clause, Cost
    from ...metrics import Cells, Metric
    from ...records import Compared, Recorded
    from ...subject import Batch, Evaluation, Subject
    from .evaluate import Choice


class TwoPhase(Family):
    """What an attack in stages leaves standing, estimated: its last stages run on a random part of what stands."""

    name, words = "two phases", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        import pyarrow as pa

        return {"drawn": pa.bool_()}

    def summary(self, reading: Reading) -> Summary:
        from .results import TwoPhaseSummary

        return TwoPhaseSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # other samples are drawn for each checkpoint

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        line = (
            "Estimates from two phases are not compared here: of each checkpoint other samples went through the "
            "second. They are in each report; what stands after the first phase is compared."
        )
        return [line] if there else []

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        from ...interface import Clause, share
        from .condition import ESTIMATE

        rows = [row for (_, name), row in cells.items() if name == ESTIMATE.name]
        if rows:
            row = min(rows, key=lambda row: float(row["value"]))
            text = f"{self.called(row['condition'], manifest)}, leaves an estimated {share(row)}"
            yield Clause(text, (row,))

    def called(self, text: str, manifest: Manifest) -> str:
        phases = phases_of(text)
        if phases is None:
            return text
        return f"{family_of(kind_of(phases.attack)).called(phases.attack, manifest)}, two-phase(m={phases.m})"

    def title(self, text: str, manifest: Manifest) -> str:
        return self.called(text, manifest)

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import two_phase_tables

        return two_phase_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ....display.table import of_tables

        if tables := self.tables(results):
            yield of_tables("two-phases", "Attacks in two phases", tuple(tables))

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        return () if condition.under is None else family_of(condition.under.name).plugins(condition.under)

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        return True

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        assert condition.under is not None  # an upper bound: of all samples, not of those that are drawn
        return replace(family_of(condition.under.name).cost(condition.under, card, classes), at_most=True)

    def choice(self, run: RunFolder, checkpoint: str, condition: Condition) -> Choice:
        from .evaluate import choose

        phases = phases_of(condition.text)
        assert phases is not None
        return choose(run, checkpoint, condition, phases.m)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition)


FAMILY = TwoPhase()
