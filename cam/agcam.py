"""Attention guided class activation maps."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .explainer import Rng, chosen, each_target
from .vit import Add, AttentionExplainer, Trail, Transformer, is_read

_UNREAD = (
    "AG-CAM follows the gradient to the class token without passing through attention, and {}: the logits are not read "
    "from it; use agcam-full, grad-cam or gradient"
)


class AGCAM(AttentionExplainer):
    """AG-CAM (Leem and Seo, AAAI 2024): where attention is high and raises the logit, over all blocks and heads.

    With S (heads, N) the class token's row of the attention before softmax, and G the gradient of the class's logit
    for the same row after softmax, the map is the sum over blocks and heads of relu(G) * sigmoid(S), at the patches.

    As in the published code, no gradient passes from an attention layer to its input: it reaches the blocks before
    through skip connections and MLPs alone. In a block that is attention and MLP in one, such as timm's
    ParallelScalingBlock, queries, keys and values take no gradient. `AGCAMFull` is the sum without this cut.

    model: a ViT with a class token, of timm's kind (ViT, DeiT, DeiT-3, EVA, BEiT), in any wrapper. The attention
        formula may be any that ends in a softmax. Raises ValueError for another model, and where the logits are not
        read from the class token (pooled patches, a Segmenter's masks), or hardly: nothing but attention leads from it
        to them. Where they are read from other tokens, too (a distilled DeiT, DINOv2's class token and the mean of
        the patches), the map tells of the class token's part alone.

    One forward and a backward for each target, down to the first block's attention and no further. With its graph a
    call holds one row of each attention; gradients are summed as they come, and not kept.
    """

    name = "agcam"
    _cut: ClassVar[bool] = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._transformer = Transformer.with_class_token(self.model, "AG-CAM")
        if self._cut and self._transformer.pools_patches:
            vit = self._transformer.vit
            raise ValueError(
                _UNREAD.format(f"this {type(vit).__name__} pools its patches (global_pool={vit.global_pool!r})")
            )

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        reading = _Reading()
        trail = Trail(reading.of, self._cut)
        try:
            with self._transformer.showing(trail.see, cut=self._cut):
                logits = self._logits(images)
            classes = chosen(logits, wanted)
            sums = [trail.sum(total, more) for total, more in each_target(logits, classes)]
        finally:
            trail.forget()
        if self._cut and not is_read(reading.of_class, reading.of_all):
            raise ValueError(_UNREAD.format("the class token's attention has hardly any gradient, that of others has"))
        return logits, classes, self._transformer.to_grid(torch.stack(sums, dim=1))


class AGCAMFull(AGCAM):
    """AG-CAM's sum with the gradient sent through the attention of all later blocks too, which the published code cuts.

    Otherwise it is `AGCAM`; so the logits may be read from any token.
    """

    name = "agcam-full"
    _cut = False


class _Reading:
    """The sum's terms, and how much gradient the rows of the class token have, and all rows."""

    def __init__(self) -> None:
        self.of_class: Tensor | float = 0.0
        self.of_all: Tensor | float = 0.0

    def of(self, scores: Tensor, attention: Tensor) -> Add:
        row = scores[:, :, 0].detach().float().sigmoid()  # a copy: the rest of the scores can go

        def add(gradient: Tensor, total: Tensor | None) -> Tensor:
            of_class = gradient[:, :, 0].float()
            term = (of_class.relu() * row).sum(dim=1)
            self.of_class = self.of_class + of_class.abs().sum()
            self.of_all = self.of_all + gradient.float().abs().sum()
            return term if total is None else total + term

        return add
