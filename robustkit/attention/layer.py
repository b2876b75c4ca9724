"""The attention layers that compute any formula, hand values from block to block, and can be watched."""

from __future__ import annotations

import threading
from typing import Any

import torch
from timm.models.crossvit import CrossAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ModelError
from .formula import PLAIN, Formula, elliptical_metric
from .parameters import SCALES
from .watcher import Scoring, Watcher


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
        """Return m for block `index`, None for the first one; keep v for the block after it."""
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


class Formulaic:
    """What layers of every make share: a formula, a place in a chain of blocks, and being watched.

    A layer becomes one by a change of its class, so these are class attributes, and an instance holds only what
    differs. formula: None for the layer's own code, unfused, under `capture`.
    """

    formula: Formula | None = None
    handover: Handover | None = None
    position: int = 0  # in its chain of blocks
    sink: Watcher | None = None
    sink_index: int = 0
    query_network: nn.Linear  # of qana
    dropout: float = 0.0

    def _standard(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Apply what the layer's own code does to queries and keys."""
        return q, k

    def _drop(self, attention: Tensor) -> Tensor:
        return functional.dropout(attention, self.dropout, self.training)  # type: ignore[attr-defined]

    def _dropout(self) -> float:
        """Return the share of attention that is dropped, for fused kernels."""
        return self.dropout if self.training else 0.0  # type: ignore[attr-defined]

    def _parameters_of(self, formula: Formula) -> dict[str, Tensor]:
        parameters: dict[str, Tensor | None] = self._parameters  # type: ignore[attr-defined]
        tensors = {}
        for name in SCALES:
            scale = parameters.get(name)
            if scale is not None:
                tensors[name] = scale
        if formula.name == "qknorm-ln":
            for which in ("q_norm", "k_norm"):
                norm = getattr(self, which)
                tensors[f"{which}.weight"], tensors[f"{which}.bias"] = norm.weight, norm.bias
        return tensors

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        source: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        fused: bool = False,
        factor: float = 1.0,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, H, N, d) of the values, and the attention (B, H, N, M) unless a fused kernel kept it to itself.

        source: what the queries were projected from, (B, N, C). mask: as `scaled_dot_product_attention` takes it.
        factor: of the logits, for layers that scale them otherwise than by 1/sqrt(d).
        """
        formula = self.formula or PLAIN["standard"]
        metric = None
        if formula.sees_all:
            _check_sees_all(formula, k, mask, is_causal)
        if formula.elliptical and self.handover is not None:
            metric = self.handover.metric(self.position, v)
        network = None
        if formula.network is not None:
            network = self.query_network(source).unflatten(-1, (q.shape[1], -1)).transpose(1, 2)
        own = self._standard if self.formula is None else None
        scoring = Scoring(formula, own, metric, self._parameters_of(formula), network, factor)
        if self.sink is not None:
            q, k, v = self.sink.projected(self.sink_index, q, k, v, scoring)
        q, k, extra = scoring.reduce(q, k)
        if fused and self.sink is None and formula.cap is None:
            if extra is not None:
                mask, is_causal = _joined(extra, q, k, mask, is_causal), False
            mixed = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=self._dropout(),
                is_causal=is_causal,
                scale=None if formula.scaled else 1.0,
            )
            return mixed, None
        logits = scoring.logits(q, k, extra)
        bias = _bias(q, k, mask, is_causal)
        logits = logits if bias is None else logits + bias
        attention = logits.softmax(dim=-1)
        if self.sink is not None:
            attention = self.sink.attended(self.sink_index, logits, attention, bias)
        dropped = self._drop(attention)
        return dropped @ v, dropped


class FormulaAttention(Formulaic, Attention):  # type: ignore[misc, unused-ignore]
    """timm's Attention with another formula, or under `capture`. Made by changing the class of a timm layer."""

    def _standard(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q), self.k_norm(k)

    def _drop(self, attention: Tensor) -> Tensor:
        return self.attn_drop(attention)  # type: ignore[no-any-return]

    def _dropout(self) -> float:
        return self.attn_drop.p if self.training else 0.0

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, N, _ = x.shape
        gate = getattr(self, "gate", None)
        gate = None if gate is None else gate(x).sigmoid()
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        mixed = mixed.transpose(1, 2).reshape(B, N, self.num_heads * self.head_dim)
        norm = getattr(self, "norm", None)
        mixed = mixed if norm is None else norm(mixed)
        mixed = mixed if gate is None else mixed * gate
        return self.proj_drop(self.proj(mixed))  # type: ignore[no-any-return]


class FormulaCrossAttention(Formulaic, CrossAttention):  # type: ignore[misc, unused-ignore]
    """timm's CrossAttention of CrossViT, in which the class token alone asks all tokens."""

    def _drop(self, attention: Tensor) -> Tensor:
        return self.attn_drop(attention)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        asking = x[:, 0:1]
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.wq(asking), self.wk(x), self.wv(x))
        )
        mixed, _ = self._attend(q, k, v, source=asking)
        return self.proj_drop(self.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


def _check_sees_all(formula: Formula, k: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    """Raise ModelError for a mask that hides some key from some query: what a formula makes of all tokens carries what
    is hidden to the query. k, mask, is_causal: as `scaled_dot_product_attention` takes them.
    """
    given = "is_causal" if is_causal and k.shape[-2] > 1 else "attn_mask" if mask is not None and hides(mask) else ""
    if given:
        raise ModelError(
            f"{formula.name} attention with {given}: it {formula.sees_all} of all tokens, hidden ones too, and would "
            "leak them; expected no mask that hides keys; leave the mask out, or choose another formula, such as quest"
        )


def hides(mask: Tensor) -> bool:
    """Whether a key is hidden: by False, or by a bias whose exponential is below float32's normal numbers."""
    hidden = ~mask if mask.dtype == torch.bool else mask.float().exp() < torch.finfo(torch.float32).tiny
    return bool(hidden.any())


def _bias(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return what is added to the logits: 0 where attention may go and -inf elsewhere, or the caller's own numbers."""
    if is_causal:
        return q.new_full((q.shape[-2], k.shape[-2]), float("-inf")).triu(1)
    if mask is None or mask.dtype != torch.bool:
        return mask
    return q.new_zeros(mask.shape).masked_fill(~mask, float("-inf"))


def _joined(extra: Tensor, q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    bias = _bias(q, k, mask, is_causal)
    return extra if bias is None else extra + bias
