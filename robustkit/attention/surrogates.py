"""Surrogates of a model for attacks: its outputs, to float rounding, with other gradients through attention.

A softmax that gives nearly all to one key has hardly a gradient, so an attack may stand still before a model that is
not robust. Each surrogate opens another way to it. What an attack finds with one counts where the model agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .apply import watching
from .watcher import Scoring, Watcher

Forward = Callable[[Tensor], Tensor]


class FixedAttention(Watcher):
    """Attention is a constant: gradients flow through the values alone."""

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        return attention.detach()


class FixedValues(Watcher):
    """Values are constants: gradients flow through queries and keys alone."""

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v.detach()


_HIDDEN = -20.0  # of a bias: relative positions are of a few units, masks of -100 and less
SOFT = 6.0
"""Standard deviation of logits over the keys down to which a softmax is softened: of 1 to 12 tried on saturated ViTs,
4 to 12 did best; ordinary heads lie below it, so that their gradients stay."""


class Softened(Watcher):
    """The gradient is that of a softmax whose logits spread by `SOFT` over the keys, where they spread by more."""

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        hidden = hidden_keys(logits, bias)
        scaled = logits / (spread(logits, hidden) / SOFT).clamp(min=1.0)
        soft = scaled.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1)
        return attention.detach() + (soft - soft.detach())  # adds exactly 0


class LogitMargins(Watcher):
    """Keeps how near each query is to attending to another key: a loss of its own, before softmax."""

    def __init__(self) -> None:
        self.margins: list[Tensor] = []

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        if logits.shape[-1] > 1:
            hidden = hidden_keys(logits, bias)
            lowest = torch.finfo(logits.dtype).min / 2
            scaled = (logits / spread(logits, hidden).clamp(min=1.0)).masked_fill(hidden, lowest)
            first, place = scaled.max(dim=-1, keepdim=True)
            others = scaled.scatter(-1, place, lowest).logsumexp(dim=-1)
            chosen = (~hidden).sum(dim=-1) > 1  # over one key there is no other
            margin = torch.where(chosen, others - first[..., 0], 0.0)
            self.margins.append(margin.flatten(1).mean(dim=1))
        return attention

    def loss(self, samples: int) -> Tensor:
        """Return the mean over layers (B,); layers within windows have several parts for each sample."""
        parts = [margin.view(samples, -1).mean(dim=1) for margin in self.margins]
        return torch.stack(parts).mean(dim=0)


def hidden_keys(logits: Tensor, bias: Tensor | None) -> Tensor:
    """Return which keys a mask hides, in the shape of the logits: those whose bias leaves them e^-20 and less."""
    if bias is None:
        return torch.zeros_like(logits, dtype=torch.bool)
    return (bias.detach() < _HIDDEN).expand_as(logits)


def spread(logits: Tensor, hidden: Tensor) -> Tensor:
    """Return the standard deviation of logits over the keys that are not hidden (..., 1), a constant."""
    fixed, seen = logits.detach().masked_fill(hidden, 0.0), ~hidden
    count = seen.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = fixed.sum(dim=-1, keepdim=True) / count
    square = ((fixed - mean).square() * seen).sum(dim=-1, keepdim=True) / count
    return square.sqrt()


class _WithLoss(torch.autograd.Function):
    """An identity on logits (B, K) whose backward pass also raises a second loss (B,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, loss: Tensor) -> Tensor:
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, torch.ones_like(gradient[:, 0])


def surrogates(network: nn.Module, forward: Forward) -> dict[str, Forward]:
    """Return functions from images to the model's outputs, by what is done to gradients.

    forward: the model, which calls `network` once. By `logits`, who raises a loss of the outputs raises the margins of
    attention's logits with it.
    """

    def seen_by(make: Callable[[], Watcher]) -> Forward:
        def ask(images: Tensor) -> Tensor:
            with watching(network, make()):
                return forward(images)

        return ask

    def with_margins(images: Tensor) -> Tensor:
        margins = LogitMargins()
        with watching(network, margins):
            outputs = forward(images)
        if not (outputs.requires_grad and margins.margins):
            return outputs
        joined: Tensor = _WithLoss.apply(outputs, margins.loss(len(outputs)))
        return joined

    return {
        "attention fixed": seen_by(FixedAttention),
        "values fixed": seen_by(FixedValues),
        "softened": seen_by(Softened),
        "logits": with_margins,
    }


def can_be_seen(network: nn.Module) -> bool:
    """Whether the network has attention of a kind that is understood."""
    try:
        with watching(network, Watcher()):
            return True
    except ModelError:
        return False
