"""Hooks into attention layers: they see what every layer computes in a pass, and may change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .formulas import Formula, Parameters


@dataclass(frozen=True)
class Scoring:
    """How a layer makes logits of queries and keys in one forward."""

    formula: Formula
    prepare: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None  # what the layer's own code does to them first
    metric: Tensor | None  # (B, H, 1, d) of the elliptical formulas
    parameters: Parameters
    network: Tensor | None  # (B, H, N, rows) of the queries' own networks
    factor: float  # of the logits, for layers that scale them otherwise than by 1/sqrt(d)

    def reduce(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return Q' and K', and what the networks add to the logits."""
        if self.prepare is not None:
            q, k = self.prepare(q, k)
        q, k = self.formula.reduce(q, k, metric=self.metric, parameters=self.parameters)
        q = q if self.factor == 1 else q * self.factor
        if self.formula.network is None or self.network is None:
            return q, k, None
        return q, k, self.formula.network.logits(self.network, k, self.parameters.get("alpha"))

    def part(self, rows: slice, dtype: torch.dtype, narrow: torch.dtype) -> Scoring:
        """Return the same for some samples in a floating type; `prepare` runs in `narrow`, in which its weights are."""
        metric, network = (None if x is None else x[rows].to(dtype) for x in (self.metric, self.network))

        def narrowed(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            assert self.prepare is not None
            q, k = self.prepare(q.to(narrow), k.to(narrow))
            return q.to(dtype), k.to(dtype)

        return replace(self, prepare=self.prepare and narrowed, metric=metric, network=network)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the logits (B, H, N, M) before masks and relative positions are added."""
        return self.logits(*self.reduce(q, k))

    def logits(self, q: Tensor, k: Tensor, extra: Tensor | None) -> Tensor:
        """Return the logits of what `reduce` gave."""
        logits = self.formula.bend((q * self.formula.constant(q.shape[-1])) @ k.transpose(-2, -1))
        return logits if extra is None else logits + extra


class Watcher:
    """Sees every attention layer of a model during a forward (`apply.watching`), and may change what it computes.

    index: of the layer, in order. q, k, v: (B, H, N, d) as projected, with rotary positions as rotated, before the
    formula touches them.

    Example:
        >>> class First(Watcher):
        ...     def attended(self, index, logits, attention, bias):
        ...         print(attention.shape) if index == 0 else None
        ...         return attention
        >>> with watching(vit, First()):
        ...     logits = vit(torch.rand(1, 3, 224, 224))
        torch.Size([1, 3, 197, 197])
    """

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the layer goes on with in place of q, k and v. scoring: how it makes logits of them."""
        return q, k, v

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        """Return what the layer goes on with in place of `attention` (B, H, N, M), softmax of the logits.
        bias: what the logits have of masks and relative positions, as broadcast over (B, H, N, M); None without.
        """
        return attention


class Captured(Watcher):
    """What `capture` saw in the last forward, one entry per block, in order.

    names: the layers. scores: before softmax, (B, H, N, N), or the chosen rows of them.
    attention: after softmax and before dropout, (B, H, N, N), part of the graph; N x M where M tokens are attended to.
    query_norms, key_norms: the l2 norms (B, H, N) of queries and keys as projected, before the formula touches them;
    without gradient.

    Example:
        >>> with capture(vit) as captured:
        ...     logits = vit(torch.rand(1, 3, 224, 224))
        >>> captured.names[0], captured.query_norms[0].shape
        ('blocks.0.attn', torch.Size([1, 3, 197]))
    """

    def __init__(self, names: list[str], rows: slice | None) -> None:
        self.names, self.rows = names, rows
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}
        self._norms: dict[int, tuple[Tensor, Tensor]] = {}

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        self._norms[index] = (q.detach().norm(dim=-1), k.detach().norm(dim=-1))
        return q, k, v

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        if torch.is_grad_enabled() and not attention.requires_grad:
            attention.requires_grad_()  # frozen weights and plain images: the graph begins here
        part = logits if self.rows is None else logits[:, :, self.rows].clone()  # a view would hold all rows
        self._seen[index] = (part, attention)
        return attention

    @property
    def query_norms(self) -> list[Tensor]:
        return [self._norms[index][0] for index in sorted(self._norms)]

    @property
    def key_norms(self) -> list[Tensor]:
        return [self._norms[index][1] for index in sorted(self._norms)]

    @property
    def scores(self) -> list[Tensor]:
        return [self._seen[index][0] for index in sorted(self._seen)]

    @property
    def attention(self) -> list[Tensor]:
        return [self._seen[index][1] for index in sorted(self._seen)]

    def clear(self) -> None:
        """Drop the tensors, and with them the graph."""
        self._seen.clear()
        self._norms.clear()
