"""Layers that add relative positions to the logits of any formula: timm's BEiT, and the windows of its Swin."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.beit import Attention as BeitAttention
from timm.models.swin_transformer import WindowAttention
from torch import Tensor

from .layer import Formulaic


class FormulaBeitAttention(Formulaic, BeitAttention):  # type: ignore[misc, unused-ignore]
    """timm's Attention of BEiT: relative positions are added to the logits of every formula."""

    def _drop(self, attention: Tensor) -> Tensor:
        return self.attn_drop(attention)  # type: ignore[no-any-return]

    def _dropout(self) -> float:
        return self.attn_drop.p if self.training else 0.0

    def forward(self, x: Tensor, shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        qkv = self.qkv(x)
        if self.q_bias is not None:
            biases: tuple[Any, ...] = (self.q_bias, self.k_bias, self.v_bias)
            qkv = qkv + torch.cat(biases)
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = None if self.relative_position_bias_table is None else self._get_rel_pos_bias()
        if shared_rel_pos_bias is not None:
            bias = shared_rel_pos_bias if bias is None else bias + shared_rel_pos_bias
        mixed, _ = self._attend(q, k, v, source=x, mask=bias, fused=self.fused_attn)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class FormulaWindowAttention(Formulaic, WindowAttention):  # type: ignore[misc, unused-ignore]
    """timm's WindowAttention of Swin: each window of tokens attends to itself, by any formula that needs no other
    block.
    """

    def _drop(self, attention: Tensor) -> Tensor:
        return self.attn_drop(attention)  # type: ignore[no-any-return]

    def _dropout(self) -> float:
        return self.attn_drop.p if self.training else 0.0

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self._get_rel_pos_bias()  # (1, H, N, N)
        if mask is not None:  # (windows of an image, N, N), the same for each image
            bias = bias + mask[:, None].repeat(len(x) // len(mask), 1, 1, 1)
        mixed, _ = self._attend(q, k, v, source=x, mask=bias, fused=self.fused_attn)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]
