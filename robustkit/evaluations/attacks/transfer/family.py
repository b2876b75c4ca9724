"""Adversarial images of one checkpoint, shown to others, as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...family import Family, Overview, Summary, family_of
from ...interface import ShortRow
from ...registry import kind_of
from .condition import ACCURACY, VOCABULARY, passed_of

if TYPE_CHECKING:
    from ....common.plugins import Plugin
    from ....common.randomness import SampleRng
    from ....display.table import Section, TextTable
    from ....protocol.card import Card
    from ....protocol.condition import Condition
    from ....runs.manifest import Manifest
    from ...aggregate import Reading, Results
    from ...family import Looks
    from ...interface import Cost
    from ...metrics import Metric
    from ...records import Compared, Recorded
    from ...subject import Batch, Evaluation, Subject


class Transfer(Family):
    """Whether what misleads one checkpoint misleads another; what does so better than its own attack is a doubt."""

    name, words = "transfer", VOCABULARY

    def summary(self, reading: Reading) -> Summary:
        from .results import TransferSummary

        return TransferSummary(reading)

    def overview(self, reading: Reading) -> Overview:
        from .results import Masked

        return Masked(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # one of two checkpoints may be attacked with its own gradients, the other not

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        line = "Transfer is not compared here: its matrix is in each report and summary.json."
        return [line] if there else []

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return ()  # a column for each checkpoint would not say whose images were found with whose gradients

    def called(self, text: str, manifest: Manifest) -> str:
        passed = passed_of(text)
        if passed is None:
            return text
        attack = family_of(kind_of(passed.attack)).called(passed.attack, manifest)
        return f"transfer of {attack}" + (f", from {passed.source}" if passed.source else "")

    def title(self, text: str, manifest: Manifest) -> str:
        passed = passed_of(text)
        if passed is None:
            return text
        return f"{family_of(kind_of(passed.attack)).title(passed.attack, manifest)}, found for {passed.source}"

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import transfer_tables

        return transfer_tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        for text in texts:
            yield ShortRow(ACCURACY.heading, self.title(text, manifest), text, ACCURACY)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ....display.grid import with_flags
        from ....display.table import Section
        from ...presenting import flags_of, of_family
        from .results import CHECK, transfer_grids

        if grids := transfer_grids(results):
            masked = tuple(flag.line for flag in flags_of(results) if flag.text.startswith(CHECK))
            own = tuple(flag.line for flag in flags_of(results, of_family(self.name)))
            yield Section(
                "transfers",
                "Transfer between checkpoints",
                lambda: {"grids": with_flags(grids, tuple(dict.fromkeys((*masked, *own))))},
            )

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        return () if condition.under is None else family_of(condition.under.name).plugins(condition.under)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost

        return Cost(1)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition)


FAMILY = Transfer()
