"""Changed words as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..family import Family
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..aggregate import Reading
    from ..interface import Clause
    from ..metrics import Cells, Metric
    from ..subject import Batch, Shown, Subject

_CHANGED = (
    "the words to predict are changed, too (card {card}): corruption can look like an improvement; card text keeps them"
)


class Perturbations(Family):
    """Documents in which some words are swapped, mistyped, or in another case."""

    name, words = "perturbations", VOCABULARY

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        card = reading.manifest.protocol
        changes = card.parameters.get("scoring", {}).get("targets") == "changed"
        return [_CHANGED.format(card=card.name)] if changes else []

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        from ..interface import Clause
        from ..registry import words_of

        rows = [row for (text, name), row in cells.items() if name == headline.name and words_of(text) is self.words]
        if rows:
            row = max(rows, key=lambda row: -headline.better * float(row["value"]))
            yield Clause(f"{headline.word} {row['value']:.1f} {self.where(row['condition'], manifest)}", (row,))

    def where(self, text: str, manifest: Manifest) -> str:
        return f"with {self.called(text, manifest)}"

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ...data.documents import WORD, as_bytes, as_text
        from ..subject import Shown
        from .evaluate import CHANGES, DRAWS, changed

        texts = [as_text(row) for row in batch.inputs]
        most = max(len(WORD.findall(text)) for text in texts)
        draws = rng.uniform((most, DRAWS), condition.name).tolist()
        share, change = float(dict(condition.parameters)["rate"]) / 100, CHANGES[condition.name]
        shown = [changed(text, drawn, share, change) for text, drawn in zip(texts, draws, strict=True)]
        inputs = as_bytes(shown).to(subject.settings.device)
        return Shown(inputs, lambda: inputs, None)


FAMILY = Perturbations()
