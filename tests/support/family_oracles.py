"""Slow replicas of the attention layers of timm and transformers, and of maps from what these layers have seen."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

import timm.layers
import torch
import transformers
from attack_oracles import slow_scores
from timm.models.beit import Attention as BeitAttention
from timm.models.cait import ClassAttn, TalkingHeadAttn
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from transformers.masking_utils import eager_mask

LAYERS = (Attention, BeitAttention, EvaAttention, timm.layers.AttentionRope, TalkingHeadAttn, ClassAttn)  # type: ignore[attr-defined, unused-ignore]
PATCHES = 9


@dataclass
class Tape:
    """What a pass leaves. cut: no gradient goes from attention to what it reads."""

    formula: str
    cut: bool = False
    scores: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    pool: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)  # of the block before, by chain

    def attend(
        self, chain: str, q: Tensor, k: Tensor, v: Tensor, own: Any, bias: Any = None, heads: Any = None
    ) -> Tensor:
        """heads: the layer whose heads talk, before softmax and after it."""
        whole = q.expand(-1, -1, k.shape[2], -1)  # the replica of logits is of as many queries as keys
        s = slow_scores(self.formula, whole, k, v, self.values.get(chain), own).to(v.dtype)[:, :, : q.shape[2]]
        self.values[chain] = v.detach()
        if heads is not None:
            s = torch.stack([sum(w * s[:, g] for g, w in enumerate(row)) for row in heads.proj_l.weight], dim=1)
            s = s + heads.proj_l.bias[:, None, None]
        s = s if bias is None else s + bias
        a = s.softmax(dim=-1)
        self.scores.append(s)
        self.attention.append(a)
        if heads is not None:
            a = torch.stack([sum(w * a[:, g] for g, w in enumerate(row)) for row in heads.proj_w.weight], dim=1)
            a = a + heads.proj_w.bias[:, None, None]
        return torch.stack([a[:, h] @ v[:, h] for h in range(v.shape[1])], dim=2).flatten(2)


def turned(x: Tensor, rope: Tensor, prefix: int, half: bool) -> Tensor:
    """Pairs of channels of the patches as complex numbers, times those of modulus 1."""
    sine, cosine = rope.to(x.dtype).split(x.shape[-1], dim=-1)
    size = x.shape[-1] // 2
    first, second = (slice(None, size), slice(size, None)) if half else (slice(0, None, 2), slice(1, None, 2))
    patches = x[:, :, prefix:]
    z = torch.complex(patches[..., first], patches[..., second]) * torch.complex(cosine[..., first], sine[..., first])
    made = torch.empty_like(patches)
    made[..., first], made[..., second] = z.real, z.imag
    return torch.cat([x[:, :, :prefix], made], dim=2)


class SlowLayer(nn.Module):
    """A layer of timm, from its tensors."""

    def __init__(self, layer: Any, chain: str, tape: Tape) -> None:
        super().__init__()
        self.layer, self.chain, self.tape = layer, chain, tape

    def forward(self, x: Tensor, rope: Any = None, shared_rel_pos_bias: Any = None, **none: Any) -> Tensor:
        layer, bias = self.layer, None
        assert not any(value is not None and value is not False for value in none.values())
        x = x.detach() if self.tape.cut else x
        if getattr(layer, "qkv", None) is not None:
            packed = x @ layer.qkv.weight.T + (0 if layer.qkv.bias is None else layer.qkv.bias)
            if getattr(layer, "q_bias", None) is not None:
                packed = packed + torch.cat([layer.q_bias, torch.zeros_like(layer.q_bias), layer.v_bias])
            q, k, v = packed.tensor_split(3, dim=-1)
        elif isinstance(layer, ClassAttn):
            q, k, v = layer.q(x[:, :1]), layer.k(x), layer.v(x)
        else:
            q, k, v = layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)
        size = q.shape[-1] // layer.num_heads
        q, k, v = (part.unflatten(-1, (-1, size)).transpose(1, 2) for part in (q, k, v))
        if isinstance(layer, EvaAttention | timm.layers.AttentionRope):  # type: ignore[attr-defined, unused-ignore]
            if not getattr(layer, "created_norms", False):
                q, k = layer.q_norm(q), layer.k_norm(k)
            if rope is not None:
                q, k = (turned(part, rope, layer.num_prefix_tokens, layer.rotate_half) for part in (q, k))
        groups = q.shape[1] // k.shape[1]
        k, v = (torch.stack([part[:, h // groups] for h in range(q.shape[1])], dim=1) for part in (k, v))
        if isinstance(layer, BeitAttention):
            bias = layer._get_rel_pos_bias() if layer.relative_position_bias_table is not None else shared_rel_pos_bias
        heads = layer if isinstance(layer, TalkingHeadAttn) else None
        mixed = self.tape.attend(self.chain, q, k, v, dict(layer.named_parameters()), bias, heads)
        mixed = layer.norm(mixed) if hasattr(layer, "norm") else mixed
        mixed = mixed if getattr(layer, "gate", None) is None else mixed * torch.sigmoid(layer.gate(x))
        return layer.proj(mixed)  # type: ignore[no-any-return]


class SlowPool(nn.Module):
    """An attention pool: timm's, or the layer of torch by which a probe of transformers looks at the tokens."""

    def __init__(self, layer: Any, tape: Tape) -> None:
        super().__init__()
        self.layer, self.tape = layer, tape

    def forward(self, x: Tensor, tokens: Tensor | None = None, *_: Tensor) -> Any:
        layer, probe = self.layer, tokens is not None
        if tokens is not None:
            weights, biases = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
            q, k, v = (part @ w.T + b for part, w, b in zip((x, tokens, tokens), weights, biases, strict=True))
        else:
            q, (k, v) = layer.q(layer.latent).expand(len(x), -1, -1), layer.kv(x).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (layer.num_heads, -1)) for part in (q, k, v))
        s = torch.einsum("bqhd,bmhd->bhqm", q, k) / q.shape[-1] ** 0.5
        a = s.exp() / s.exp().sum(dim=-1, keepdim=True)
        self.tape.pool.append((s, a))
        mixed = torch.einsum("bhqm,bmhd->bqhd", a, v).flatten(2)
        if probe:
            return layer.out_proj(mixed), None
        mixed = layer.proj(mixed)
        return (mixed + layer.mlp(layer.norm(mixed)))[:, 0]


def body_of(model: Any) -> Any:
    """timm's model, or that of transformers inside its wrappers."""
    inner = model.model if hasattr(model, "resized") else getattr(model, "body", model)
    return getattr(inner, "model", inner) if hasattr(model, "body") else inner


def replica(model: Any, tape: Tape) -> Any:
    """A copy of the model whose attention is the replica's."""
    model = copy.deepcopy(model)
    is_timms = body_of(model) is model
    for path, part in list(model.named_modules()):
        owner, _, name = path.rpartition(".")
        if is_timms and isinstance(part, LAYERS):
            setattr(model.get_submodule(owner), name, SlowLayer(part, re.sub(r"\d+", "", path), tape))
        elif type(part).__name__ == "AttentionPoolLatent" or isinstance(part, nn.MultiheadAttention):
            setattr(model.get_submodule(owner), name, SlowPool(part, tape))
    if not is_timms:
        listen(model, tape)
    return model


def listen(model: Any, tape: Tape) -> None:
    """Let the layers of transformers that look up their function find the replica's."""

    def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **options: Any) -> tuple[Tensor, None]:
        assert mask is None or options.get("position_bias") is None
        bias = mask if options.get("position_bias") is None else options["position_bias"]
        assert abs(options["scaling"] * q.shape[-1] ** 0.5 - 1) < 1e-6
        mixed = tape.attend("", q, k, v, dict(layer.named_parameters(recurse=False)), bias)
        return mixed.unflatten(-1, (q.shape[1], -1)), None

    functions: Any = transformers.AttentionInterface
    functions.register("slow", attend)
    transformers.AttentionMaskInterface.register("slow", eager_mask)
    for part in model.modules():
        code = getattr(getattr(type(part).forward, "__wrapped__", type(part).forward), "__code__", None)
        if code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names:
            part.config._attn_implementation = "slow"
            part.register_forward_pre_hook(lambda _, *call: _cut(tape, *call), with_kwargs=True)


def _cut(tape: Tape, inputs: Any, named: dict[str, Any]) -> Any:
    def cut(part: Any) -> Any:
        return part.detach() if tape.cut and isinstance(part, Tensor) else part

    return tuple(map(cut, inputs)), {name: cut(part) for name, part in named.items()}


# --- maps ------------------------------------------------------------------------------------------------------------


def rows_of(reads: str, tokens: int) -> list[int]:
    """The tokens that a head reads: `class`, or the mean of the `patches`."""
    return [0] if reads == "class" else list(range(tokens - PATCHES, tokens))


def agcam(tape: Tape, logit: Tensor, reads: str) -> Tensor:
    """For each patch the sum over blocks and heads of the mean over the rows that are read; a pool has one row."""
    seen = tape.pool if reads == "pool" else list(zip(tape.scores, tape.attention, strict=True))
    gradients = torch.autograd.grad(logit, [a for _, a in seen], retain_graph=True)
    total = torch.zeros(PATCHES, dtype=torch.float64)
    for (scores, _), gradient in zip(seen, gradients, strict=True):
        rows = [0] if reads == "pool" else rows_of(reads, scores.shape[-1])
        for row in rows:
            for head in range(scores.shape[1]):
                slope, score = gradient[0, head, row, -PATCHES:], scores[0, head, row, -PATCHES:]
                total += slope.clamp(min=0) / (1 + torch.exp(-score.detach())) / len(rows)
    return total


def flowed(tape: Tape, matrices: list[Tensor], pool: Tensor | None, reads: str) -> Tensor:
    """Whole matrices (N, N), from the first block up, then the row that is read; the pool's row (M,) is of tokens."""
    product = torch.eye(len(matrices[0]), dtype=torch.float64)
    for matrix in matrices:
        product = matrix @ product
    if pool is not None:
        return (pool[None] @ product[len(product) - len(pool) :])[0, -PATCHES:]
    return product[rows_of(reads, len(product)), -PATCHES:].mean(dim=0)


def rollout(tape: Tape, reads: str) -> Tensor:
    averages = [a[0].detach().double().mean(dim=0) for a in tape.attention]
    pool = tape.pool[0][1][0, :, 0].detach().double().mean(dim=0) if reads == "pool" else None
    return flowed(tape, [(a + torch.eye(len(a))) / 2 for a in averages], pool, reads)


def chefer(tape: Tape, logit: Tensor, reads: str) -> Tensor:
    attention = [*tape.attention, *(a for _, a in tape.pool)] if reads == "pool" else tape.attention
    gradients = torch.autograd.grad(logit, attention, retain_graph=True)
    flows = [(g * a.detach())[0].double().clamp(min=0).mean(dim=0) for g, a in zip(gradients, attention, strict=True)]
    pool = flows.pop()[0] if reads == "pool" else None
    return flowed(tape, [torch.eye(len(flow)) + flow for flow in flows], pool, reads)


def legrad(model: Any, blocks: list[str], image: Tensor, target: int, formula: str) -> Tensor:
    """One forward for each block: what the head makes of the mean of its tokens, and the gradient of its attention."""
    total = torch.zeros(PATCHES, dtype=torch.float64)
    for place in range(len(blocks)):
        tape = Tape(formula)
        slow, formed = replica(model, tape), []

        def keep(module: Any, inputs: Any, output: Any, formed: list[Tensor] = formed) -> None:
            formed.append(output.mean(dim=1, keepdim=True).expand_as(output))

        slow.get_submodule(blocks[place]).register_forward_hook(keep)
        slow.get_submodule(blocks[-1]).register_forward_hook(lambda *_, formed=formed: formed[0])
        logit = slow(image[None])[0, target]
        (gradient,) = torch.autograd.grad(logit, tape.attention[place])
        total += gradient[0].clamp(min=0).mean(dim=(0, 1))[-PATCHES:]
    return total
