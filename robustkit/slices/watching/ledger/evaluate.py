"""Why logits change from one input to another: shares of queries, keys and norms; and how much attention can change.

A logit is a function of three things: the norm of the query, the norm of the key, and their directions (of both, with
what a formula adds from elsewhere: M of the elliptical ones, a query's own network). Its change is split by their
Shapley values: the mean, over the orders in which the three change one after the other, of what each adds. They sum to
the change. A factor that the formula does not see adds exactly nothing.

The test of cause puts what one input has in the place of what the other has, in every layer of one forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from ....attention.apply import attention_layers, watching
from ....attention.hooks import Scoring, Watcher
from ....common.determinism import SampleRng
from ....errors import ModelError
from ....evaluations.condition import Cost
from ....evaluations.family import inputs_under
from ....evaluations.layers import Layer
from ....evaluations.subject import Batch, EvaluatedModel, Evaluation
from ....protocol.card import Card
from ....protocol.condition import Condition
from ..evaluate import Looked, UnderEvaluator
from . import CHANGE, LISTS, METRICS, VOCABULARY

FACTORS = ("query_norm", "key_norm", "angle")
SWAPS = ("query_norms", "key_norms", "norms", "angles")  # what of the clean input takes the place of the other's
STREAMS = 2 + len(SWAPS)  # copies of a batch side by side: clean, as shown, and one for each swap


@dataclass(frozen=True)
class Projected:
    """Queries (B, H, N, d) and keys (B, H, M, d) as projected, and how a layer makes logits of them."""

    q: Tensor
    k: Tensor
    scoring: Scoring

    def part(self, rows: slice) -> Projected:
        """Return some samples in float64 (float32 on a device without it): changes are far smaller than the logits."""
        dtype = torch.float32 if self.q.device.type == "mps" else torch.float64
        return Projected(self.q[rows].to(dtype), self.k[rows].to(dtype), self.scoring.part(rows, dtype, self.q.dtype))

    def sees_norms(self) -> tuple[bool, bool]:
        """Whether the formula sees the norms of queries, and of keys: twice a row is another row, to the bit."""
        mine = Projected(self.q[:1], self.k[:1], self.scoring.part(slice(1), self.q.dtype, self.q.dtype))
        logits = mine.scoring(mine.q, mine.k)
        doubled = mine.scoring(2 * mine.q, mine.k), mine.scoring(mine.q, 2 * mine.k)
        return not torch.equal(logits, doubled[0]), not torch.equal(logits, doubled[1])


def with_norms(x: Tensor, other: Tensor) -> Tensor:
    """Return the rows of x (..., d) with the norms of the rows of `other`; a zero row stays zero."""
    length = x.norm(dim=-1, keepdim=True)
    scaled: Tensor = x * (other.norm(dim=-1, keepdim=True) / length.clamp(min=torch.finfo(x.dtype).tiny))
    return scaled


def logit_shares(before: Projected, after: Projected) -> tuple[Tensor, Tensor]:
    """Return the change of the logits (B, H, N, M) and its parts by `FACTORS`, (3, B, H, N, M), which sum to it."""
    sees_query, sees_key = before.sees_norms()
    logits: dict[tuple[int, ...], Tensor] = {}
    for query, key, angle in product((0, 1), repeat=3):
        side, sides = (before, after)[angle], (before, after)
        q = side.q if query == angle or not sees_query else with_norms(side.q, sides[query].q)
        k = side.k if key == angle or not sees_key else with_norms(side.k, sides[key].k)
        logits[query, key, angle] = side.scoring(q, k)
    parts = []
    for place in range(3):
        part = torch.zeros_like(logits[0, 0, 0])
        for others in ((0, 0), (0, 1), (1, 0), (1, 1)):
            one, none = ((*others[:place], value, *others[place:]) for value in (1, 0))
            part.add_(logits[one] - logits[none], alpha=1 / 3 if others[0] == others[1] else 1 / 6)
        parts.append(part)
    return logits[1, 1, 1] - logits[0, 0, 0], torch.stack(parts)


@dataclass(frozen=True)
class LayerLedger:
    """One layer's part of a ledger, without what all keys of a query share, which softmax does not see."""

    name: str
    keys: int
    change: Tensor  # (B, H) mean square of the change of the logits
    parts: Tensor  # (B, H, 3) how much of that is due to each of `FACTORS`, which sum to it


@dataclass(frozen=True)
class Ledger:
    """What changed between two inputs."""

    layers: list[LayerLedger]
    clean: Tensor  # outputs (B, K)
    other: Tensor
    swapped: dict[str, Tensor]  # by `SWAPS`: of the second with that of the first in its place, in every layer


@dataclass
class _Streams(Watcher):
    """Keeps the books of `STREAMS` copies of a batch, one after the other, in one forward."""

    names: list[str]
    samples: int
    layers: list[LayerLedger] = field(default_factory=list)

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        size = self.samples
        if len(q) != STREAMS * size:
            raise ModelError(
                f"{self.names[index]}: {len(q)} rows of attention for {STREAMS * size} samples; expected one each, of "
                "attention over the whole image"
            )
        everything = Projected(q, k, scoring)
        clean, other = everything.part(slice(size)), everything.part(slice(size, 2 * size))
        self.layers.append(_entry(self.names[index], clean, other))
        sees_query, sees_key = everything.sees_norms()
        queries, keys = list(torch.split(q, size)), list(torch.split(k, size))
        for place, swap in enumerate(SWAPS, 2):
            if swap == "angles":
                queries[place], keys[place] = with_norms(queries[0], queries[place]), with_norms(keys[0], keys[place])
                continue
            if sees_query and swap != "key_norms":
                queries[place] = with_norms(queries[place], queries[0])
            if sees_key and swap != "query_norms":
                keys[place] = with_norms(keys[place], keys[0])
        return torch.cat(queries), torch.cat(keys), v


def _entry(name: str, clean: Projected, other: Projected) -> LayerLedger:
    change, parts = logit_shares(clean, other)
    change, parts = (table - table.mean(dim=-1, keepdim=True) for table in (change, parts))
    square = change.square().mean(dim=(-2, -1)).float()
    shares = (parts * change).mean(dim=(-2, -1)).movedim(0, -1).float()
    return LayerLedger(name, change.shape[-1], square.cpu(), shares.cpu())


@torch.inference_mode()
def ledger(
    network: nn.Module, clean: Tensor, other: Tensor, forward: Callable[[Tensor], Tensor] | None = None
) -> Ledger:
    """Return what changes in a network's attention from the images `clean` to the images `other`, (B, ...) both.

    It takes one forward of `STREAMS` copies of the batch. forward: called with images in place of the network, which
    it calls once. Raises ModelError for attention of another kind or within windows, or where no layer of it ran.
    """
    streams = _Streams([name for name, _ in attention_layers(network)], len(clean))
    with watching(network, streams):
        outputs = (forward or network)(torch.cat([clean, *[other] * (STREAMS - 1)]))
    if not streams.layers:
        raise ModelError(f"{type(network).__name__}: none of its attention layers ran; expected one at least")
    first, second, *others = torch.split(outputs, len(clean))
    return Ledger(streams.layers, first, second, dict(zip(SWAPS, others, strict=True)))


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
