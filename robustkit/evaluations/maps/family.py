"""Explanation maps as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..family import Family, Summary, family_of
from ..interface import ShortRow
from ..registry import kind_of
from .condition import VOCABULARY

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from ...common.plugins import Plugin
    from ...common.randomness import SampleRng
    from ...display.table import CardPart, Section, TextTable
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..aggregate import Reading, Results
    from ..family import Looks
    from ..interface import Clause, Cost
    from ..metrics import Cells, Metric
    from ..records import Compared, PerSample, Recorded
    from ..subject import Batch, Evaluation, Subject


class Maps(Family):
    """What a model looks at: scores of maps that explain a class, and how maps change with the images."""

    name, words = "maps", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .results import MapSummary

        return MapSummary(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        from .results import compared as scores

        return scores(first, second, common)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        return ["Maps are compared on images that both predict right."] if shown else []

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        from .tables import front

        return front(keys)

    def called(self, text: str, manifest: Manifest) -> str:
        from .tables import called, only_boxes

        return called(text, lambda under: family_of(kind_of(under)).called(under, manifest), only_boxes(manifest))

    def where(self, text: str, manifest: Manifest) -> str:
        return f"in its maps ({self.called(text, manifest)})"

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        from .tables import clauses, only_boxes

        return clauses(cells, only_boxes(manifest))

    def card(self, results: Results) -> Iterable[CardPart]:
        from .tables import card_parts, only_boxes

        return card_parts(results, only_boxes(results.manifest))

    def overlay(self, image: NDArray[np.uint8], heat: NDArray[np.float32]) -> NDArray[np.uint8]:
        from .gallery import overlay

        return overlay(image, heat)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from ..estimation import support_tables
        from .tables import is_of_maps, map_tables, only_boxes, terminal_maps

        tables = map_tables(results, only_boxes(results.manifest))
        return [*terminal_maps(tables), *support_tables(results, is_of_maps)]

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        from .tables import only_boxes, short

        return short(texts, only_boxes(manifest))

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.grid import with_flags
        from ...display.table import Section
        from ..estimation import support_grids
        from ..presenting import flag_lines, of_family
        from .gallery import gallery_uri
        from .tables import is_of_maps, map_figures, map_grids, map_tables, only_boxes, scores

        lines, boxes = flag_lines(results, of_family(self.name)), only_boxes(results.manifest)

        def values() -> dict[str, Any]:
            grids = [*map_grids(map_tables(results, boxes)), *support_grids(results, is_of_maps)]
            return {"grids": with_flags(grids, lines), "gallery": gallery_uri(results.run)}

        yield Section(
            "maps",
            "What it looks at",
            values,
            tuple(map_figures(scores(results, boxes), looks)),
        )

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from .condition import explained_of
        from .methods import EVERY_EXPLAINER

        spec = explained_of(condition)
        if spec is not None and (plugged := EVERY_EXPLAINER.plugin(spec.method)) is not None:
            yield plugged
        if condition.under is not None:
            yield from family_of(condition.under.name).plugins(condition.under)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from .evaluate import map_cost

        return map_cost(condition, card, classes)

    def cost_lines(self, costs: Mapping[Condition, Cost]) -> Iterable[str]:
        from .evaluate import cost_lines

        return cost_lines(costs)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Maps()
