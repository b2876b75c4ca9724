"""Drowned regions as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...family import Family, Summary
from ...interface import ShortRow
from .condition import KEPT, LEAD, OF_MAP, RANDOM, VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

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
    from ...records import PerSample, Recorded
    from ...subject import Batch, Evaluation, Shown, Subject


class Regions(Family):
    """What a model needs of an image: noise drowns the object, the background, or what a map shows."""

    name, words = "regions", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .results import RegionSummary

        return RegionSummary(reading)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == KEPT.name)

    def called(self, text: str, manifest: Manifest) -> str:
        return f"noise on the {self.words.label(text)}"

    def where(self, text: str, manifest: Manifest) -> str:
        return f"with {self.called(text, manifest)}"

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import REGIONS

        return REGIONS.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        for metric in (KEPT, LEAD):
            yield from (
                ShortRow(f"region noise: {metric.heading}", self.words.label(text), text, metric) for text in texts
            )

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        from ....display.grid import with_flags
        from ....display.table import Section
        from ...presenting import flag_lines, of_family
        from .results import REGIONS

        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(REGIONS.grids(tables), lines)}
            yield Section(self.name, REGIONS.title, lambda: values)

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from ..methods import EVERY_EXPLAINER

        plugged = EVERY_EXPLAINER.plugin(str(dict(condition.parameters).get("map", RANDOM)))
        return () if plugged is None else (plugged,)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost
        from ..methods import map_with_logits
        from .condition import chosen_of

        given = dict(condition.parameters)
        if given["region"] in OF_MAP:
            return Cost(3) + map_with_logits(str(given["map"]), chosen_of(condition))
        return Cost(2 if given["region"] == RANDOM else 3)

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from .evaluate import show

        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Regions()
