"""timm's attention layers with any formula, or under `capture`. Each is made by changing the class of a timm layer."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import AttentionRope, apply_rot_embed_cat  # type: ignore[attr-defined, unused-ignore]
from timm.models.beit import Attention as BeitAttention
from timm.models.cait import ClassAttn, TalkingHeadAttn
from timm.models.crossvit import CrossAttention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer import WindowAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn

from .layers import Formulaic, head_size, norms_before_rotation


class FormulaAttention(Formulaic, Attention):  # type: ignore[misc, unused-ignore]
    """timm's Attention with another formula."""

    def _standard(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, N, _ = x.shape
        gate = getattr(self, "gate", None)
        gate = None if gate is None else gate(x).sigmoid()
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        mixed = mixed.transpose(1, 2).reshape(B, N, self.num_heads * self.head_dim)
        mixed = mixed if (norm := getattr(self, "norm", None)) is None else norm(mixed)
        mixed = mixed if gate is None else mixed * gate
        return self.proj_drop(self.proj(mixed))  # type: ignore[no-any-return]


class _FormulaRotary(Formulaic):
    """What timm's layers with rotary positions share. A formula is given queries and keys after the layer's own norms
    and after their rotation, of patches and not of prefix tokens.
    """

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layer: Any = self
        if layer.qkv is None:
            parts = (layer.q_proj(x), layer.k_proj(x), layer.v_proj(x))
        else:
            packed = layer.qkv(x)
            if getattr(layer, "q_bias", None) is not None:
                packed = packed + torch.cat((layer.q_bias, layer.k_bias, layer.v_bias))
            parts = packed.chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (-1, head_size(layer))).transpose(1, 2) for part in parts)
        return q, k, v

    def forward(
        self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        layer: Any = self
        q, k, v = self._projected(x)
        if norms_before_rotation(layer):
            q, k = layer.q_norm(q), layer.k_norm(k)
        if rope is not None:
            q, k = (self._rotated(part, rope).type_as(v) for part in (q, k))
        if (groups := q.shape[1] // k.shape[1]) > 1:  # fewer heads of keys and values
            k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=layer.fused_attn)
        mixed = layer.norm(mixed.transpose(1, 2).flatten(2))
        mixed = mixed if (gate := getattr(layer, "gate", None)) is None else mixed * gate(x).sigmoid()
        return layer.proj_drop(layer.proj(mixed))  # type: ignore[no-any-return]

    def _rotated(self, x: Tensor, rope: Tensor) -> Tensor:
        layer: Any = self
        prefix, patches = x[:, :, : layer.num_prefix_tokens], x[:, :, layer.num_prefix_tokens :]
        halves = {"half": True} if getattr(layer, "rotate_half", False) else {}
        turned = apply_rot_embed_cat(patches, rope, **halves)
        return torch.cat((prefix, turned), dim=2)


class FormulaEvaAttention(_FormulaRotary, EvaAttention):
    """timm's Attention of EVA."""


class FormulaRopeAttention(_FormulaRotary, AttentionRope):
    """timm's AttentionRope, of ViTs with rotary positions such as the Perception Encoder."""


class FormulaBeitAttention(Formulaic, BeitAttention):  # type: ignore[misc, unused-ignore]
    """timm's Attention of BEiT: relative positions are added to the logits of every formula."""

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
    """timm's WindowAttention of Swin: a window attends to itself, by any formula that needs no other block."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self._get_rel_pos_bias()  # (1, H, N, N)
        if mask is not None:  # (windows of an image, N, N), the same for each image
            bias = bias + mask[:, None].repeat(len(x) // len(mask), 1, 1, 1)
        mixed, _ = self._attend(q, k, v, source=x, mask=bias, fused=self.fused_attn)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class FormulaCrossAttention(Formulaic, CrossAttention):  # type: ignore[misc, unused-ignore]
    """timm's CrossAttention of CrossViT, in which the class token alone asks all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        asking = x[:, 0:1]
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.wq(asking), self.wk(x), self.wv(x))
        )
        mixed, _ = self._attend(q, k, v, source=asking)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


class FormulaTalkingHeadAttention(Formulaic, TalkingHeadAttn):
    """timm's attention between the patches of CaiT (Shazeer 2020): heads mix a formula's logits, then their attention.

    What is captured is what softmax is given and what it returns, so scores are of mixed heads.
    """

    def _mixed(self, logits: Tensor) -> Tensor:
        return _over_heads(self.proj_l, logits)

    def _remixed(self, attention: Tensor) -> Tensor:
        return _over_heads(self.proj_w, attention)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed, _ = self._attend(q, k, v, source=x)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


def _over_heads(linear: nn.Module, x: Tensor) -> Tensor:
    mixed: Tensor = linear(x.movedim(1, -1)).movedim(-1, 1)
    return mixed


class FormulaClassAttention(Formulaic, ClassAttn):
    """timm's attention of CaiT's last blocks, in which the class token alone asks all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        asking = x[:, 0:1]
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (self.q(asking), self.k(x), self.v(x))
        )
        mixed, _ = self._attend(q, k, v, source=asking, fused=self.fused_attn)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]
