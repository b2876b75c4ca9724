"""Attacks that look for the smallest change as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....common.differences import Difference, of_ranks
from ...family import Family, Overview, Summary
from ...interface import ShortRow
from ...registry import words_of
from .condition import AREA, MEDIAN, RATIO, VOCABULARY, norm_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

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
    from ...subject import Batch, Evaluation, Subject


class Distances(Family):
    """How far the nearest wrong point is: a distance for each sample, and so accuracy at every radius."""

    name, words = "distances", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        import pyarrow as pa

        return {"distance": pa.float32()}

    def summary(self, reading: Reading) -> Summary:
        from .results import DistanceSummary

        return DistanceSummary(reading)

    def overview(self, reading: Reading) -> Overview:
        from .results import LeftStanding

        return LeftStanding(reading, _ours(reading.manifest.conditions))

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        yield from ((text, RATIO.name) for text in common)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample:
        from .results import per_sample

        return per_sample(side, condition, metric)

    def difference(self, metric: str, before: NDArray[np.float64], after: NDArray[np.float64]) -> Difference | None:
        return of_ranks(before, after) if metric == RATIO.name else None

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        line = (
            "ln distance: the logarithm of the distance to the nearest wrong point, over the samples that both predict "
            "right; baseline and value are medians, the difference is the median shift of a sample, by Wilcoxon's test."
        )
        return [line] if shown else []

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return (key for key in keys if key[1] == AREA.name)

    def tables(self, results: Results) -> Sequence[TextTable]:
        from .results import distance_tables

        return distance_tables(results, _ours(dict.fromkeys(row["condition"] for row in results)))

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        for text in texts:
            in_levels = norm_of(text) == "linf"
            metric = replace(MEDIAN, scale=255.0) if in_levels else MEDIAN
            label = f"{VOCABULARY.label(text)}: median{', 1/255' * in_levels}"
            yield ShortRow("smallest change that misleads, more is better", label, text, metric)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ....display.grid import with_flags
        from ....display.table import Section
        from ...presenting import flag_lines, of_family
        from .results import distance_figures, distance_grids

        texts = _ours(dict.fromkeys(row["condition"] for row in results))
        if texts:
            lines = flag_lines(results, of_family(self.name))
            yield Section(
                "distances",
                "Smallest changes that mislead",
                lambda: {"grids": with_flags(distance_grids(self.tables(results)), lines)},
                tuple(distance_figures(results, texts, looks)),
            )

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        return True  # the attack makes its own batches

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost

        steps = int(dict(condition.parameters)["steps"])
        return Cost(steps + 2, steps)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


def _ours(texts: Iterable[str]) -> list[str]:
    """Return the conditions of this family."""
    return [text for text in texts if words_of(text) is VOCABULARY]


FAMILY = Distances()
