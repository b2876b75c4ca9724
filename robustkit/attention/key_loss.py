"""How far queries are drawn to the keys of a box of the image, before softmax: what attacks on patches raise.

After Lovisotto et al. 2022 (arXiv:2203.13639, section 4): projected queries and keys over their mean norm, so that no
head counts more because its vectors are long; a smooth maximum over heads, and then over layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .apply import capturable_layers, watching
from .watcher import Scoring, Watcher

_MOST_PREFIX = 16  # class token, distillation token, registers


def grid_of(tokens: int, height: int, width: int) -> tuple[int, int]:
    """Return the prefix tokens, and the side in pixels of the square of the image that each other token stands for.

    Raises ModelError where no grid of squares gives that many tokens.
    """
    for side in range(1, min(height, width) + 1):
        prefix = tokens - (height // side) * (width // side)
        if height % side == 0 and width % side == 0 and 0 <= prefix <= _MOST_PREFIX:
            return prefix, side
    raise ModelError(
        f"{tokens} tokens of an image of {height} x {width} pixels are no grid of squares; "
        "loss kq needs one, use loss ce"
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
        prefix, side = grid_of(k.shape[-2], self.height, self.width)
        if self.of_class and not prefix:
            raise ModelError("loss kq-cls draws the class token's query, and there is no class token; use loss kq")
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
    """Return the model's outputs (B, K) for images (B, C, H, W), and how far queries are drawn to boxes (B,).

    forward: the model, which calls `network` once. boxes: (B, 3) top, left and side in pixels. of_class: the class
    token's query alone, otherwise the mean over all.

    Raises:
        ModelError: attention of another kind or within windows, tokens that are no grid, or no class token.
    """
    capturable_layers(network)
    drawn = _Drawn(boxes, images.shape[-2], images.shape[-1], of_class)
    with watching(network, drawn):
        outputs = forward(images)
    return outputs, torch.stack(drawn.layers).logsumexp(dim=0)
