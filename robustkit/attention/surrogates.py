"""What attacks on attention need: surrogates with other gradients through attention, and a loss on queries and keys.

A softmax that gives nearly all to one key has hardly a gradient, so an attack may stand still before a model that is
not robust. Each surrogate opens another way to it. What an attack finds with one counts where the model agrees.

After Lovisotto et al. 2022 (arXiv:2203.13639, section 4): projected queries and keys over their mean norm, so that no
head counts more because its vectors are long; a smooth maximum over heads, and then over layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .apply import capturable_layers, watching
from .hooks import Scoring, Watcher

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
# Standard deviation of logits over the keys down to which a softmax is softened: of 1 to 12 tried on saturated ViTs,
# 4 to 12 did best; ordinary heads lie below it, so that their gradients stay.
SOFT = 6.0


class Softened(Watcher):
    """The gradient is that of a softmax whose logits spread by `SOFT` over the keys, where they spread by more."""

    def attended(self, index: int, logits: Tensor, attention: Tensor, bias: Tensor | None) -> Tensor:
        hidden = hidden_keys(logits, bias)
        scaled = logits / (logit_deviation(logits, hidden) / SOFT).clamp(min=1.0)
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
            scaled = (logits / logit_deviation(logits, hidden).clamp(min=1.0)).masked_fill(hidden, lowest)
            first, place = scaled.max(dim=-1, keepdim=True)
            others = scaled.scatter(-1, place, lowest).logsumexp(dim=-1)
            chosen = (~hidden).sum(dim=-1) > 1  # over one key there is no other
            self.margins.append(torch.where(chosen, others - first[..., 0], 0.0).flatten(1).mean(dim=1))
        return attention

    def loss(self, samples: int) -> Tensor:
        """Return the mean over layers (B,); layers within windows have several parts for each sample."""
        return torch.stack([margin.view(samples, -1).mean(dim=1) for margin in self.margins]).mean(dim=0)


def hidden_keys(logits: Tensor, bias: Tensor | None) -> Tensor:
    """Return which keys a mask hides, in the shape of the logits: those whose bias leaves them e^-20 and less."""
    if bias is None:
        return torch.zeros_like(logits, dtype=torch.bool)
    return (bias.detach() < _HIDDEN).expand_as(logits)


def logit_deviation(logits: Tensor, hidden: Tensor) -> Tensor:
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
    """Return functions from images to outputs, by what is done to gradients; `forward` calls `network` once.

    By `logits`, who raises a loss of the outputs raises the margins of attention's logits with it.
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


_MOST_PREFIX = 16  # class token, distillation token, registers


def patches(tokens: int, height: int, width: int) -> tuple[int, int]:
    """Return prefix tokens, and the side in pixels of the square of each other token. ModelError for other grids."""
    for side in range(1, min(height, width) + 1):
        prefix = tokens - (height // side) * (width // side)
        if height % side == 0 and width % side == 0 and 0 <= prefix <= _MOST_PREFIX:
            return prefix, side
    raise ModelError(
        f"{tokens} tokens of an image of {height} x {width} pixels do not form a square grid, which loss kq needs; "
        "use loss ce"
    )


@dataclass
class _Drawn(Watcher):
    """Keeps for each layer the smooth maximum over heads, (B,)."""

    boxes: Tensor
    height: int
    width: int
    of_class: bool
    layers: list[Tensor] = field(default_factory=list)

    def projected(self, index: int, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        prefix, side = patches(k.shape[-2], self.height, self.width)
        if self.of_class and not prefix:
            raise ModelError("loss kq-cls needs a class token, and the model has none; use loss kq")
        inside = _inside(self.boxes, self.height // side, self.width // side, side)
        weights = nn.functional.pad(inside, (prefix, 0)).to(k)
        weights = weights / weights.sum(dim=1, keepdim=True)
        queries, keys = (x / x.norm(dim=-1).mean(dim=-1)[..., None, None] for x in (q, k))
        drawn = (queries @ keys.transpose(-2, -1)) @ weights[:, None, :, None] / q.shape[-1] ** 0.5  # (B, H, N, 1)
        of_heads = drawn[:, :, 0, 0] if self.of_class else drawn[..., 0].mean(dim=2)
        self.layers.append(of_heads.logsumexp(dim=1))
        return q, k, v


def _inside(boxes: Tensor, rows: int, columns: int, side: int) -> Tensor:
    """Return which of the squares (B, rows * columns) a box (B, 3) of top, left and side has pixels of."""
    top, left, length = boxes.unbind(dim=1)

    def met(start: Tensor, count: int) -> Tensor:
        edges = torch.arange(count, device=boxes.device) * side
        return (edges < (start + length)[:, None]) & (edges + side > start[:, None])

    return (met(top, rows)[:, :, None] & met(left, columns)[:, None, :]).flatten(1)


def key_loss(
    network: nn.Module, forward: Callable[[Tensor], Tensor], images: Tensor, boxes: Tensor, of_class: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the model's outputs (B, K), and how far queries (of_class: the class token's) are drawn to boxes (B,).

    forward: the model, which calls `network` once. boxes: (B, 3) top, left and side in pixels. Raises ModelError for
    attention of another kind or within windows, tokens that are no grid, or no class token.
    """
    capturable_layers(network)
    drawn = _Drawn(boxes, images.shape[-2], images.shape[-1], of_class)
    with watching(network, drawn):
        outputs = forward(images)
    return outputs, torch.stack(drawn.layers).logsumexp(dim=0)
