"""Maps of two objects as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from cam.registry import CONTROLS

from ...family import Family, Summary
from ...interface import ShortRow
from .condition import SHARE, VOCABULARY

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
    from ...subject import Batch, Evaluation, Subject


class TwoObjects(Family):
    """Whether a map shows the object that was asked for, where an image has two."""

    name, words = "two objects", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .results import TwoObjectSummary

        return TwoObjectSummary(reading)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == SHARE.name)

    def called(self, text: str, manifest: Manifest) -> str:
        return f"two objects, maps by {self.words.label(text)}"

    def where(self, text: str, manifest: Manifest) -> str:
        return f"of two objects, in maps by {self.words.label(text)}"

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import TWO_OBJECTS

        return TWO_OBJECTS.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        yield from (ShortRow(f"two objects: {SHARE.heading}", self.words.label(text), text, SHARE) for text in texts)

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        from ....display.grid import with_flags
        from ....display.table import Section
        from ...presenting import flag_lines, of_family
        from .results import TWO_OBJECTS

        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(TWO_OBJECTS.grids(tables), lines)}
            yield Section("two-objects", TWO_OBJECTS.title, lambda: values, template="plain")

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from ..methods import EVERY_EXPLAINER

        plugged = EVERY_EXPLAINER.plugin(str(dict(condition.parameters)["map"]))
        return () if plugged is None else (plugged,)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost
        from ..methods import map_with_logits
        from .condition import chosen_of

        method = str(dict(condition.parameters)["map"])
        return Cost(1) if method in CONTROLS else map_with_logits(method, chosen_of(condition), targets=2)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = TwoObjects()
