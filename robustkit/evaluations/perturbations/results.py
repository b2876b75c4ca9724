"""Changed words in results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..family import Aggregator, Presenter
from ..interface import Clause
from ..registry import name_of, words_of
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.manifest import Manifest
    from ..aggregate import Reading
    from ..metrics import Cells, Metric


_CHANGED = (
    "the words to predict are changed, too (card {card}): corruption can look like an improvement; card text keeps them"
)


class PerturbationsAggregator(Aggregator):
    """Records of perturbations into results."""

    words = VOCABULARY

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        card = reading.manifest.protocol
        changes = card.parameters.get("scoring", {}).get("targets") == "changed"
        return [_CHANGED.format(card=card.name)] if changes else []


AGGREGATOR = PerturbationsAggregator()


class PerturbationsPresenter(Presenter):
    """Results of perturbations for people."""

    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        rows = [row for (text, name), row in cells.items() if name == headline.name and words_of(text) is self.words]
        if rows:
            row = max(rows, key=lambda row: -headline.better * float(row["value"]))
            yield Clause(
                f"{headline.word} {row['value']:.1f} {name_of(row['condition'], 'sentence', manifest)}", (row,)
            )


PRESENTER = PerturbationsPresenter()
