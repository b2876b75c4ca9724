"""Attention rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .attention_maps import AttentionExplainer
from .explainer import chosen
from .rng import Rng
from .watch import Transformer


class Rollout(AttentionExplainer):
    """Attention rollout (Abnar and Zuidema, ACL 2020): how much of each patch flows into the class token.

    The product over the blocks of (A + I) / 2, where A is the attention averaged over heads; the class token's row at
    the patches, or, of a model that pools its patches, the mean of their rows. It does not depend on the class: every
    target of an image has the same map. One forward, no backward.

    model: a ViT of timm's kind or of transformers. Raises ValueError for another one, and for one that has no class
        token and does not say that it pools.
    """

    name = "rollout"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.read_from(self.model, "rollout")

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        averages: list[Tensor] = []

        def see(index: int, scores: Tensor, attention: Tensor) -> None:
            averages.append(attention.float().mean(dim=1))

        with torch.no_grad(), self._transformer.showing(see):
            logits = self._logits(images)
            classes = chosen(logits, wanted)
            begin = self._transformer.read_row(averages[0][:, 0])
            grid = self._transformer.to_grid(roll(averages, begin))
        return logits, classes, grid[:, None].expand(-1, classes.shape[1], -1, -1)


def roll(averages: Sequence[Tensor], row: Tensor) -> Tensor:
    """Return (B, N): a row (B, N) times the product, last block first, of (A + I) / 2 with rows summing to 1; A are (B,
    N, N).

    A row times matrices from the last block down, which costs a factor N less than the whole product.
    """
    row = row[:, None]
    for average in reversed(averages):
        average = average / average.sum(dim=-1, keepdim=True)  # low precision leaves sums a little off
        row = (row @ average + row) / 2
    return row[:, 0]
