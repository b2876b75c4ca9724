"""torch's MultiheadAttention with any formula, as torchvision's ViTs and torch's own encoder layers use it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ModelError
from .formulas import check_rotary, find_formula
from .layers import Formulaic, give_parameters, hides


class MultiheadAttention(Formulaic, nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with a formula; arguments and tensors are the same.

        layer = MultiheadAttention(64, 4, batch_first=True, attention="quest")

    For `standard` its outputs and weights equal torch's. `set_attention` turns layers of torch's class into this one.
    An elliptical formula needs the values of the block before; a single layer counts as the first block.
    """

    def __init__(self, *args: Any, attention: str = "standard", **kwargs: Any) -> None:
        formula = find_formula(attention)
        self.__dict__["_built"] = False
        super().__init__(*args, **kwargs)
        self.__dict__["_built"] = True
        if formula.network is not None and formula.network.rope:
            check_rotary(self.head_dim)
        give_parameters(self, formula)
        self.formula = formula

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """What torch's encoder layers ask before they compute standard attention by themselves, in one fused kernel
        that never calls this layer. So it is False once the layer is built, whatever the sizes are."""
        return not self.__dict__.get("_built", True) and bool(self.__dict__["_qkv_same_embed_dim"])

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        self.__dict__["_qkv_same_embed_dim"] = value  # for torch's own class, which the layer may get back

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as torch's layer does: bool masks are True where attention may not go; `is_causal` goes with
        `attn_mask`.
        """
        if is_causal and attn_mask is None:
            raise ModelError("is_causal without attn_mask: torch takes it as a hint about the mask; give the mask, too")
        self._check(query, key, value, key_padding_mask, attn_mask)
        alone = query.dim() == 2
        if alone:
            query, key, value = (part[None] for part in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (part.transpose(0, 1) for part in (query, key, value))
        q, k, v = self._projected(query, key, value)
        mixed, weights = self._attend(
            *(part.view(*part.shape[:2], self.num_heads, self.head_dim).transpose(1, 2) for part in (q, k, v)),
            source=query,
            mask=self._mask(attn_mask, key_padding_mask, q, k.shape[1] - key.shape[1]),
            fused=not need_weights,
        )
        out = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if alone:
            out = out[0]
        elif not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights or weights is None:
            return out, None
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return out, weights[0] if alone else weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None) -> None:
        """Raise ModelError for shapes that torch would refuse, or broadcast without a word."""
        alone = query.dim() == 2
        tokens, samples = (0, 0) if alone else (1, 0) if self.batch_first else (0, 1)
        batch = 1 if alone else query.shape[samples]
        asking, asked = query.shape[tokens], key.shape[tokens]
        expected = {"key": (*key.shape[:-1], self.kdim), "value": (*key.shape[:-1], self.vdim)}
        lead = () if alone else (batch,)
        given = {"key": (key, {expected["key"]}), "value": (value, {expected["value"]})}
        if key.dim() != query.dim() or (not alone and key.shape[samples] != batch):
            raise ModelError(
                f"queries have shape {tuple(query.shape)} and keys {tuple(key.shape)}; expected as many samples of both"
            )
        if padding is not None:
            given["key_padding_mask"] = (padding, {(*lead, asked)})
        if mask is not None:
            given["attn_mask"] = (mask, {(asking, asked), (batch * self.num_heads, asking, asked)})
        for name, (tensor, shapes) in given.items():
            if tuple(tensor.shape) not in shapes:
                said = " or ".join(str(shape) for shape in sorted(shapes, key=len))
                raise ModelError(f"{name} has shape {tuple(tensor.shape)}; expected {said}")
            if "mask" in name and tensor.dtype != torch.bool and not tensor.is_floating_point():
                raise ModelError(f"{name} is of {tensor.dtype}; expected torch.bool, or numbers that are added")
        if padding is None or self.formula is None or not self.formula.sees_all:
            return
        if hides(~padding if padding.dtype == torch.bool else padding):
            raise ModelError(
                f"{self.formula.name} attention {self.formula.sees_all} of all tokens, padded ones too; expected a "
                "batch of one length, without padding, or another formula, such as quest"
            )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (B, N, E) queries, and keys and values with the learned and the zero token that torch may add."""
        separate = self._parameters["q_proj_weight"] is not None
        of_query, of_key, of_value = (
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if separate else self.in_proj_weight.chunk(3)
        )
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q = functional.linear(query, of_query, biases[0])
        k = functional.linear(key, of_key, biases[1])
        v = functional.linear(value, of_value, biases[2])
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (torch.cat((x, b.expand(len(x), 1, -1)), 1) for x, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return q, k, v

    def _mask(self, mask: Tensor | None, padding: Tensor | None, q: Tensor, added: int) -> Tensor | None:
        """Merge both masks into one that is added to the logits, (B or 1, H or 1, N or 1, M); added tokens are never
        hidden.
        """

        def numbers(part: Tensor) -> Tensor:
            if part.dtype == torch.bool:
                part = q.new_zeros(part.shape).masked_fill(part, float("-inf"))
            return functional.pad(part.to(q.dtype), (0, added))

        parts = []
        if mask is not None:
            shown = numbers(mask)
            parts.append(shown if shown.dim() == 2 else shown.view(-1, self.num_heads, *shown.shape[1:]))
        if padding is not None:
            parts.append(numbers(padding)[:, None, None])
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]
