"""Changed images as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...family import Family, Summary
from ...interface import ShortRow
from .condition import CHANGE, FLIPPED, FOLLOWED, RIGHT, VOCABULARY

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
    from ...records import Compared, PerSample, Recorded
    from ...subject import Batch, Evaluation, Shown, Subject


class Counterfactuals(Family):
    """What decides a prediction: images of which the colour, the outline or the background alone is another's."""

    name, words = "counterfactuals", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .results import CounterfactualSummary

        return CounterfactualSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        for text in common:
            given = dict(VOCABULARY.parse(text).parameters)
            some = [RIGHT, FLIPPED, *([FOLLOWED] if given["change"] != "background" else [])]
            yield from ((text, metric.name) for metric in (*some, *([CHANGE] if "map" in given else [])))

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == FLIPPED.name)

    def called(self, text: str, manifest: Manifest) -> str:
        return self.words.label(text)

    def where(self, text: str, manifest: Manifest) -> str:
        return f"with the {self.called(text, manifest)}"

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import CHANGED

        return CHANGED.tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterator[ShortRow]:
        yield from (ShortRow(f"changed images: {FLIPPED.label}", self.words.label(t), t, FLIPPED) for t in texts)

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        from ....display.grid import with_flags
        from ....display.table import Section
        from ...presenting import flag_lines, of_family
        from .results import CHANGED

        if tables := self.tables(results):
            lines = flag_lines(results, of_family(self.name))
            values = {"grids": with_flags(CHANGED.grids(tables), lines)}
            yield Section("counterfactuals", CHANGED.title, lambda: values, template="plain")

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from ..methods import EVERY_EXPLAINER

        plugged = EVERY_EXPLAINER.plugin(str(dict(condition.parameters).get("map", "")))
        return () if plugged is None else (plugged,)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost
        from ..methods import map_with_logits
        from .condition import chosen_of

        method = str(dict(condition.parameters).get("map", ""))
        return map_with_logits(method, chosen_of(condition)) * 2 if method else Cost(2)

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from .evaluate import show

        return show(subject, batch, condition)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Counterfactuals()
