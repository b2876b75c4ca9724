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

    def attended(self, index: int, logits: Tensor, attention: Tensor) -> Tensor:
        return attention.detach()


class FixedValues(Watcher):
    """Values are constants: gradients flow through queries and keys alone."""

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        return q, k, v.detach()


SOFT = 6.0
"""Standard deviation of logits over the keys down to which a softmax is softened: of 1 to 12 tried on saturated ViTs,
4 to 12 did best; ordinary heads lie below it, so that their gradients stay."""


class Softened(Watcher):
    """The gradient is that of a softmax whose logits spread by `SOFT` over the keys, where they spread by more."""

    def attended(self, index: int, logits: Tensor, attention: Tensor) -> Tensor:
        soft = (logits / (spread(logits) / SOFT).clamp(min=1.0)).softmax(dim=-1)
        return attention.detach() + (soft - soft.detach())  # adds exactly 0


class LogitMargins(Watcher):
    """Keeps how near each query is to attending to another key: a loss of its own, before softmax."""

    def __init__(self) -> None:
        self.margins: list[Tensor] = []

    def attended(self, index: int, logits: Tensor, attention: Tensor) -> Tensor:
        if logits.shape[-1] > 1:
            scaled = logits / spread(logits).clamp(min=1.0)
            first = scaled.amax(dim=-1, keepdim=True)
            place = scaled.argmax(dim=-1, keepdim=True)
            others = scaled.scatter(-1, place, -torch.inf).logsumexp(dim=-1)
            self.margins.append((others - first[..., 0]).flatten(1).mean(dim=1))
        return attention

    def loss(self, samples: int) -> Tensor:
        """Return the mean over layers (B,); layers within windows have several parts for each sample."""
        parts = [margin.view(samples, -1).mean(dim=1) for margin in self.margins]
        return torch.stack(parts).mean(dim=0)


def spread(logits: Tensor) -> Tensor:
    """Return the standard deviation of finite logits over the keys (..., 1), a constant."""
    fixed = logits.detach()
    finite = fixed.isfinite()
    count = finite.sum(dim=-1, keepdim=True).clamp(min=1)
    fixed = fixed.masked_fill(~finite, 0.0)
    mean = fixed.sum(dim=-1, keepdim=True) / count
    square = ((fixed - mean).square() * finite).sum(dim=-1, keepdim=True) / count
    return square.sqrt()


class _WithLoss(torch.autograd.Function):
    """Logits as they are; whoever raises a loss of them raises another loss, too."""

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
