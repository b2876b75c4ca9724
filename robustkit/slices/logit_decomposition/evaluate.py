"""Decompose the logits of a batch: what makes them change, and what of it makes predictions change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from ...common.determinism import SampleRng
from ...evaluations.attention.evaluate import Looked, UnderEvaluator
from ...evaluations.condition import Cost
from ...evaluations.family import inputs_under
from ...evaluations.records import Layer
from ...evaluations.subject import Batch, EvaluatedModel, Evaluation
from ...protocol.card import Card
from ...protocol.condition import Condition
from .condition import CHANGE, LISTS, METRICS, VOCABULARY
from .ledger import FACTORS, STREAMS, SWAPS, Ledger, ledger

LEDGER: dict[str, pa.DataType] = {
    **{metric.name: pa.float32() for metric in METRICS},
    **dict.fromkeys(LISTS, pa.list_(pa.float32())),
}
"""Of all heads together, and of each. Shares are nan where nothing changes; back is null where predictions stayed."""


def columns_of(books: Ledger) -> dict[str, list[Any]]:
    """Return the columns of a record; a layer's heads count as often as any other's."""
    change = torch.cat([layer.change for layer in books.layers], dim=1)  # (B, T)
    parts = torch.cat([layer.parts for layer in books.layers], dim=1)  # (B, T, 3)
    shares, by_head = parts.sum(dim=1) / change.sum(dim=1, keepdim=True), parts / change[..., None]
    figures = dict(zip(LISTS, [change.sqrt(), *by_head.unbind(dim=-1)], strict=True))
    return {
        CHANGE.name: change.mean(dim=1).sqrt().tolist(),
        **{f"{factor}_share": values.tolist() for factor, values in zip(FACTORS, shares.unbind(dim=1), strict=True)},
        **{f"back_with_{swap}": _back(books, books.swapped[swap]) for swap in SWAPS},
        **{name: values.tolist() for name, values in figures.items()},
    }


def _back(books: Ledger, swapped: Tensor) -> list[float | None]:
    """Return the share of a sample's changed predictions (of a segmenter, pixels) that come back; None without any."""
    clean, shown, now = (logits.argmax(dim=1).flatten(1) if logits.ndim > 2 else logits.argmax(dim=1, keepdim=True)
                         for logits in (books.clean, books.other, swapped))  # fmt: skip
    changed = clean != shown
    counts, back = changed.sum(dim=1).tolist(), (changed & (now == clean)).sum(dim=1).tolist()
    return [found / count if count else None for found, count in zip(back, counts, strict=True)]


class LogitLedgerEvaluator(UnderEvaluator):
    """Why logits change on the images that another condition shows, and what brings predictions back."""

    words, columns = VOCABULARY, LEDGER

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        return Cost(6, extra=6)  # copies of the batch, and the logits of eight combinations in float64

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        assert condition.under is not None
        shown, clean = inputs_under(subject, batch, condition.under), subject.inputs(batch.inputs)

        def of_part(place: slice) -> Looked:
            books = ledger(subject.classifier.network, clean[place], shown[place], subject.exact)
            layers = tuple(Layer(layer.name, layer.change.shape[1], layer.keys) for layer in books.layers)
            return books.other, columns_of(books), layers

        return self.watched(subject, batch, max(1, subject.settings.batch_size // STREAMS), of_part)
