"""Rollout of attention weighed with its gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention_maps import AttentionExplainer, is_read
from .explainer import chosen, each_target
from .rng import Rng
from .trail import Add, Trail
from .watch import OTHER_METHODS, Transformer


class Chefer(AttentionExplainer):
    """Generic attention explainability (Chefer, Gur and Wolf, ICCV 2021): rollout of attention times its gradient.

    With A a block's attention and G the gradient of the class's logit for it, each block adds mean over heads of
    relu(G * A) times what is known of the blocks before: R = R + mean(relu(G * A)) R, from the identity on (equations 5
    and 6 for a pure ViT). The map is R's row of the class token, at the patches; of a model that pools its patches,
    the mean of their rows. No layer-wise relevance propagation takes part.

    model: a ViT of timm's kind or of transformers, of any attention formula that ends in a softmax. Raises ValueError
        for another model, and where the logits are not read from the class token, or hardly. Where they are read from
        other tokens, too, the map tells of the class token's part alone.

    One forward and a backward for each target. A row times matrices, last block first, in the order in which a backward
    meets them; so no product of matrices is made, and no gradient is kept.
    """

    name = "chefer"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.read_from(self.model, "chefer")

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        reading = _Reading(self._transformer)
        trail = Trail(reading.of, cut=False)
        try:
            with self._transformer.showing(trail.see):
                logits = self._logits(images)
            classes = chosen(logits, wanted)
            rows = [trail.sum(total, more) for total, more in each_target(logits, classes)]
        finally:
            trail.forget()
        if reading.unread:
            raise ValueError(
                "chefer follows the relevance from the class token, whose attention in the last block has hardly any "
                f"gradient, and that of others has: the logits are not read from it; {OTHER_METHODS}"
            )
        return logits, classes, self._transformer.to_grid(torch.stack(rows, dim=1))


class _Reading:
    """The row of R, and whether the last block's attention has its gradient elsewhere."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.unread = False

    def of(self, scores: Tensor, attention: Tensor) -> Add:
        attention = attention.detach()

        def add(gradient: Tensor, row: Tensor | None) -> Tensor:
            flow = (gradient * attention).float().relu().mean(dim=1)
            if row is None:
                row, size = self.transformer.read_row(flow[:, 0]), gradient.float().abs()
                self.unread = not (self.transformer.pools_patches or is_read(size[:, :, 0].sum(), size.sum()))
            return row + torch.einsum("bn,bnm->bm", row, flow)

        return add
