"""Watched attention as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..family import Family, Summary, family_of
from ..interface import ShortRow
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ...common.plugins import Plugin
    from ...common.randomness import SampleRng
    from ...display.table import CardPart, Section, TextTable
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..aggregate import Gatherer, Reading, Results
    from ..family import Looks
    from ..interface import Cost
    from ..metrics import Metric
    from ..records import Compared, PerSample, Recorded
    from ..subject import Batch, Evaluation, Subject


class Attention(Family):
    """What each head of each layer does on the images that another condition shows."""

    name, words = "attention", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import ATTENTION

        return ATTENTION

    def summary(self, reading: Reading) -> Summary:
        from .results import AttentionSummary

        return AttentionSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # its figures are so closely related that they would only weaken a correction

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return ()  # its figures say how a model computes, not how well

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from ..records import not_paired

        figures = super().per_sample(side, condition, metric)
        if figures is None:
            raise not_paired(condition, metric, [number.name for number in self.words.metrics if number.paired])
        return figures

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        line = "Watched attention is not compared here: its figures are in each report and summary.json."
        return [line] if there else []

    def card(self, results: Results) -> Iterable[CardPart]:
        return ()

    def gatherers(self) -> Sequence[type[Gatherer]]:
        from .results import WatchedHeads

        return (WatchedHeads,)

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import attention_tables

        return attention_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.grid import grid_of, together, with_flags
        from ...display.table import Section
        from ..presenting import flag_lines, of_family
        from .figures import attention_figures, watched
        from .results import layer_table

        heads = watched(results)
        first = [(entry, under) for entry in heads for under in list(entry.heads)[:1]]

        def values() -> dict[str, Any]:
            titles = [f"{entry.checkpoint}: {under}, layer by layer" for entry, under in first]
            layers = [
                layer_table(entry.heads[under], title) for (entry, under), title in zip(first, titles, strict=True)
            ]
            by_layer = [grid_of(table, folded=True) for table in layers]
            lines = flag_lines(results, of_family(self.name))
            return {"grids": [*with_flags(together(self.tables(results)), lines), *by_layer]}

        yield Section("attention", "Attention stability", values, tuple(attention_figures(heads)))

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        for text in texts:
            label = self.title(text, manifest)
            shown = [metric for metric in self.words.metrics if not metric.name.endswith("_change")]
            yield from (ShortRow(self.name, f"{label}: {metric.label}", text, metric) for metric in shown)

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        under = condition.under
        return () if under is None else family_of(under.name).plugins(under)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ..interface import Cost

        return Cost(1, extra=0.6)  # the images are those of the condition before

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition)


FAMILY = Attention()
