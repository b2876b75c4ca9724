"""The attention layer that computes any formula, hands values from block to block, and can be watched."""

from __future__ import annotations

import threading
from typing import Any

import torch
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor
from torch.nn import functional

from .errors import ModelError
from .formulas import FORMULAS, Formula, elliptical_metric

SCALES = ("qk_scale", "q_scale", "k_scale")  # names of the parameters that the qknorm forms add to a layer


class Captured:
    """What `capture` saw in the last forward, one entry a block, in order.

    names: the layers. scores: before softmax, (B, H, N, N), or the chosen rows of them.
    attention: after softmax and before dropout, (B, H, N, N), part of the graph. query_norms, key_norms: the l2 norms
    (B, H, N) of queries and keys as projected, before the formula touches them; without gradient.
    """

    def __init__(self, names: list[str], rows: slice | None) -> None:
        self.names = names
        self.rows = rows
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}
        self._norms: dict[int, tuple[Tensor, Tensor]] = {}

    def record(self, index: int, logits: Tensor, attention: Tensor) -> None:
        kept = logits if self.rows is None else logits[:, :, self.rows].clone()  # a view would hold all rows
        self._seen[index] = (kept, attention)

    def record_norms(self, index: int, q: Tensor, k: Tensor) -> None:
        self._norms[index] = (q.detach().norm(dim=-1), k.detach().norm(dim=-1))

    @property
    def query_norms(self) -> list[Tensor]:
        return [self._norms[index][0] for index in sorted(self._norms)]

    @property
    def key_norms(self) -> list[Tensor]:
        return [self._norms[index][1] for index in sorted(self._norms)]

    @property
    def scores(self) -> list[Tensor]:
        return [self._seen[index][0] for index in sorted(self._seen)]

    @property
    def attention(self) -> list[Tensor]:
        return [self._seen[index][1] for index in sorted(self._seen)]

    def clear(self) -> None:
        """Let go of the tensors, and with them of the graph."""
        self._seen.clear()
        self._norms.clear()


class Handover:
    """Carries the values of one block to the next one of the same chain, for each thread apart.

    The first block of a chain starts afresh and the last one leaves nothing behind, so a forward that broke off
    half-way does not reach the next one. Copies and pickles start empty.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.waiting: dict[int, tuple[int, Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Handover, (self.blocks,)

    def metric(self, index: int, v: Tensor) -> Tensor | None:
        """M for block `index`, None for the first one; keeps v for the block after it."""
        thread = 0 if torch.compiler.is_compiling() else threading.get_ident()
        before = self.waiting.pop(thread, None)
        if index < self.blocks - 1:
            self.waiting[thread] = (index, v.detach())
        if index == 0:
            return None
        if before is None or before[0] != index - 1:
            raise ModelError(
                f"elliptical attention in block {index} needs the values of block {index - 1} from the same forward; "
                "run the blocks in order, without gradient checkpointing"
            )
        return elliptical_metric(v, before[1])


class FormulaAttention(Attention):  # type: ignore[misc, unused-ignore]
    """timm's Attention with another formula, or under `capture`. Made by changing the class of a timm layer."""

    formula_name: str = ""  # '' is timm's own: q_norm and k_norm, then 1/sqrt(d)
    handover: Handover | None = None
    position: int = 0  # in its chain of blocks
    sink: Captured | None = None
    sink_index: int = 0

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, N, _ = x.shape
        gate = getattr(self, "gate", None)
        gate = None if gate is None else gate(x).sigmoid()
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        if self.sink is not None:
            self.sink.record_norms(self.sink_index, q, k)
        q, k, formula = self._reduce(q, k, v)
        if self.fused_attn and self.sink is None:
            x = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=attn_mask,
                dropout_p=self.attn_drop.p if self.training else 0.0,
                is_causal=is_causal,
                scale=None if formula.scaled else 1.0,
            )
        else:
            x = self._open_attention(q * self.scale if formula.scaled else q, k, v, _bias(q, attn_mask, is_causal))
        x = x.transpose(1, 2).reshape(B, N, self.num_heads * self.head_dim)
        norm = getattr(self, "norm", None)
        x = x if norm is None else norm(x)
        x = x if gate is None else x * gate
        return self.proj_drop(self.proj(x))  # type: ignore[no-any-return]

    def _reduce(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Formula]:
        if not self.formula_name:
            return self.q_norm(q), self.k_norm(k), FORMULAS["standard"]
        formula = FORMULAS[self.formula_name]
        metric = None
        if formula.elliptical and self.handover is not None:
            metric = self.handover.metric(self.position, v)
        parameters = {name: getattr(self, name) for name in SCALES if name in self._parameters}
        return *formula.reduce(q, k, metric=metric, parameters=parameters), formula

    def _open_attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        logits = q @ k.transpose(-2, -1)
        logits = logits if bias is None else logits + bias
        attention = logits.softmax(dim=-1)
        if self.sink is not None:
            if torch.is_grad_enabled() and not attention.requires_grad:
                attention.requires_grad_()  # frozen weights and plain images: the graph begins here
            self.sink.record(self.sink_index, logits, attention)
        return self.attn_drop(attention) @ v  # type: ignore[no-any-return]


def _bias(q: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """What is added to the logits: 0 where attention may go and -inf elsewhere, or the caller's own numbers."""
    if is_causal:
        return q.new_full((q.shape[-2], q.shape[-2]), float("-inf")).triu(1)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return q.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))
