"""The attention layers that compute any formula, hand values from block to block, and can be watched.

    x ──dq──► c_q ──uq──► q_nope        x ──dkv──► c_kv ──uk──► k_nope
                └───qr──► q_rope                     └────uv──► v            x ──kr──► k_rope, one for all heads

q and k are the two parts side by side; only the rope part is turned by the token's position, so that what is cached at
inference is c_kv and k_rope. As in the paper's equations there is no norm on the latents and there are no biases.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch
from timm.layers import AttentionRope  # type: ignore[attr-defined, unused-ignore]
from timm.models.eva import EvaAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ModelError
from .formulas import QK_NORM_EPS, STANDARD, Formula, check_rotary, find_formula, rms, value_text
from .hooks import Scoring, Watcher
from .registry import EVERY_FORMULA

SCALES = ("qk_scale", "q_scale", "k_scale", "head_scale", "temperature", "alpha")
"""Parameters that formulas add to a layer."""


def head_size(layer: Any) -> int:
    """Return the channels of a head's queries and keys."""
    if size := int(getattr(layer, "head_dim", 0)):
        return size
    if getattr(layer, "qkv", None) is not None:
        return int(layer.qkv.out_features) // 3 // head_count(layer)
    return int(_first(layer, "wq", "q", "q_proj").out_features) // head_count(layer)


def _first(layer: Any, *names: str) -> Any:
    """Return the first of these parts that a layer has; a fused projection that it could have is None. Raises
    ModelError where it has none: an older timm or transformers may call them otherwise.
    """
    value = next((part for name in names if (part := getattr(layer, name, None)) is not None), None)
    if value is None:
        what = f"{type(layer).__name__} has no projection of queries; expected one called {' or '.join(names)}"
        raise ModelError(f"{what}: update timm and transformers")
    return value


def norms_before_rotation(layer: Any) -> bool:
    """Whether the norms that a layer came with stand before its rotation, where no formula of queries and keys is."""
    rotary = isinstance(layer, EvaAttention | AttentionRope)
    return rotary and not getattr(layer, "created_norms", False)


def head_count(layer: Any) -> int:
    named = (getattr(layer, name, 0) for name in ("num_heads", "num_attention_heads"))
    return int(next(filter(None, named), 0) or layer.config.num_attention_heads)


def give_parameters(layer: Any, formula: Formula) -> None:
    """Put the formula's tensors into the layer, frozen where its weights are, in place of another formula's."""
    weight: Tensor = next(nn.Module.parameters(layer))
    for scale in SCALES:
        layer._parameters.pop(scale, None)
    layer._modules.pop("query_network", None)
    _give_norms(layer, formula, weight)
    for scale, value in formula.initial(head_count(layer), head_size(layer)).items():
        value = value.to(weight.device, weight.dtype)
        layer.register_parameter(scale, nn.Parameter(value, requires_grad=weight.requires_grad))
    if formula.network is not None:
        multihead = isinstance(layer, nn.MultiheadAttention)
        width = layer.embed_dim if multihead else _first(layer, "qkv", "wq", "dq", "q_proj", "q").in_features
        rows = formula.network.linear(width, head_count(layer), head_size(layer))
        layer.query_network = rows.to(weight.device, weight.dtype).requires_grad_(weight.requires_grad)


def _give_norms(layer: Any, formula: Formula, weight: Tensor) -> None:
    """Put the formula's norms on queries and keys where the layer has none; remove those put here before."""
    if getattr(layer, "created_norms", False) and own_formula(layer) != formula.name:
        layer.created_norms = False
        for which in ("q_norm", "k_norm"):
            if isinstance(layer, Attention | EvaAttention | AttentionRope):
                setattr(layer, which, nn.Identity())
            elif hasattr(layer, which):
                delattr(layer, which)
    if formula.norms and own_formula(layer) == "standard":
        layer.created_norms = True
        for which, make in formula.norms.items():
            made = make(head_size(layer)).to(weight.device, weight.dtype)
            setattr(layer, which, made.requires_grad_(weight.requires_grad).train(layer.training))


def own_formula(layer: Any) -> str:
    """Return the formula of the norms that a layer has on queries and keys, by class, or for RMSNorm by what they
    compute. ModelError for others.
    """
    norms = [getattr(layer, which, nn.Identity()) for which in ("q_norm", "k_norm")]
    kinds = [_of_norm(norm, head_size(layer)) for norm in norms if not isinstance(norm, nn.Identity)]
    if not kinds:
        return "standard"
    family, options = kinds[-1]
    if family and len(kinds) == 2 and kinds[0] == kinds[1]:
        return find_formula(f"{family}({options})").name
    if family == "qk-rms" and isinstance(norms[0], nn.Identity):
        return find_formula(f"qk-rms(on=keys,{options})").name
    classes = " and ".join(dict.fromkeys(type(norm).__name__ for norm in norms))
    raise ModelError(
        f"queries and keys are normalised by {classes}, which is not one of the formulas: "
        f"{', '.join(sorted(EVERY_FORMULA))}"
    )


def _of_norm(norm: Any, dim: int) -> tuple[str, str]:
    """Return the family of a norm over `dim` channels of a head, and its options; empty texts for another norm."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if isinstance(norm, nn.LayerNorm):
        return "qknorm-ln", f"affine={'none' if weight is None else 'scale' if bias is None else 'both'}"
    eps = next((getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), QK_NORM_EPS)
    like = torch.empty(0) if weight is None else weight
    eps = torch.finfo(like.dtype).eps if eps is None else eps
    rows = torch.randn(8, dim, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 3, 8)[:, None]
    rows = rows.to(like.device, like.dtype)
    try:
        with torch.no_grad():
            same = torch.allclose(norm(rows), rms(rows, eps, weight), rtol=1e-2, atol=1e-3)
    except (RuntimeError, TypeError):  # a norm over the channels of all heads, or of another kind
        return "", ""
    scale = "none" if weight is None else "channels"
    return ("qk-rms", f"scale={scale},eps={value_text(float(eps))}") if same and bias is None else ("", "")


class Handover:
    """Carries the values of one block to the next one of the same chain, for each thread apart.

    The first block starts afresh and the last one leaves nothing behind, so a forward that broke off does not reach the
    next one. Copies and pickles start empty.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.waiting: dict[int, tuple[int, Tensor]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Handover, (self.blocks,)

    def metric(self, index: int, v: Tensor, formula: Formula) -> Tensor | None:
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
        return formula.metric(v, before[1])


class Formulaic:
    """What layers of every make share; attributes of the class, as a layer becomes one by a change of its class."""

    formula: Formula | None = None  # None: the layer's own code, unfused, under `capture`
    handover: Handover | None = None
    position: int = 0  # in its chain of blocks
    sink: Watcher | None = None
    sink_index: int = 0
    query_network: nn.Linear  # of qana
    dropout: float = 0.0

    def _standard(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Apply what the layer's own code does to queries and keys."""
        return q, k

    def _mixed(self, logits: Tensor) -> Tensor:
        """Mix the logits (B, H, N, M) of the heads, in layers that do, before softmax."""
        return logits

    def _remixed(self, attention: Tensor) -> Tensor:
        """Mix the attention (B, H, N, M) of the heads, in layers that do, before it meets the values."""
        return attention

    def _drop(self, attention: Tensor) -> Tensor:
        drop: Any = getattr(self, "attn_drop", None)  # of timm's layers
        return functional.dropout(attention, self._dropout()) if drop is None else drop(attention)

    def _dropout(self) -> float:
        """Return the share of attention that is dropped now, for fused kernels."""
        share = getattr(getattr(self, "attn_drop", None), "p", self.dropout)
        return float(share) if self.training else 0.0  # type: ignore[attr-defined]

    def _parameters_of(self, formula: Formula) -> dict[str, Tensor]:
        parameters: dict[str, Any] = self._parameters  # type: ignore[attr-defined]
        tensors: dict[str, Tensor] = {name: parameters[name] for name in SCALES if parameters.get(name) is not None}
        for which in formula.norms:
            held = getattr(self, which)._parameters
            tensors |= {f"{which}.{part}": tensor for part, tensor in held.items() if tensor is not None}
        return tensors

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        source: Tensor,  # what the queries were projected from, (B, N, C)
        mask: Tensor | None = None,  # as `scaled_dot_product_attention` takes it
        is_causal: bool = False,
        fused: bool = False,
        factor: float = 1.0,  # of the logits, for layers that scale them otherwise than by 1/sqrt(d)
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, H, N, d) of the values, and the attention (B, H, N, M) unless a fused kernel kept it."""
        formula, metric, network = self.formula or STANDARD, None, None
        if formula.sees_all:
            _check_sees_all(formula, k, mask, is_causal)
        if formula.elliptical and self.handover is not None:
            metric = self.handover.metric(self.position, v, formula)
        if formula.network is not None:
            network = self.query_network(source).unflatten(-1, (q.shape[1], -1)).transpose(1, 2)
        standard = self._standard if self.formula is None else None
        scoring = Scoring(formula, standard, metric, self._parameters_of(formula), network, factor)
        if self.sink is not None:
            q, k, v = self.sink.projected(self.sink_index, q, k, v, scoring)
        q, k, extra = scoring.reduce(q, k)
        if fused and self.sink is None and formula.cap is None:
            if extra is not None:
                bias, is_causal = _bias(q, k, mask, is_causal), False
                mask = extra if bias is None else extra + bias
            scale = None if formula.scaled else 1.0
            attend = partial(functional.scaled_dot_product_attention, attn_mask=mask, is_causal=is_causal, scale=scale)
            return attend(q, k, v, dropout_p=self._dropout()), None
        logits = self._mixed(scoring.logits(q, k, extra))
        bias = _bias(q, k, mask, is_causal)
        logits = logits if bias is None else logits + bias
        attention = logits.softmax(dim=-1)
        if self.sink is not None:
            attention = self.sink.attended(self.sink_index, logits, attention, bias)
        dropped = self._drop(self._remixed(attention))
        return dropped @ v, dropped


def _check_sees_all(formula: Formula, k: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    """Raise ModelError for a mask that hides some key from some query: what a formula makes of all tokens tells it."""
    argument = "is_causal" if is_causal and k.shape[-2] > 1 else "attn_mask"
    if argument == "is_causal" or (mask is not None and is_hidden(mask)):
        raise ModelError(
            f"{formula.name} attention with {argument}: it {formula.sees_all} of all tokens, hidden ones too, which "
            "would leak them; leave the mask out, or choose another formula, such as quest"
        )


def is_hidden(mask: Tensor) -> bool:
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


class SelfAttention(Formulaic, nn.Module):
    """Multi-head attention between the tokens of (B, N, dim), with any formula. It is called like timm's Attention.

    key, value: sizes per head of queries and keys, and of values; dim / num_heads where left out. Raises ModelError
    for an impossible size.
    """

    def __init__(self, dim: int, num_heads: int, *, key: int | None = None, value: int | None = None) -> None:
        super().__init__()
        if num_heads < 1 or (None in (key, value) and dim % num_heads):
            raise ModelError(f"{num_heads} heads for {dim} channels; expected a number that divides them")
        self.num_heads = num_heads
        self.head_dim, self.value_dim = (dim // num_heads if size is None else size for size in (key, value))
        for what, size in {"dim": dim, "key": self.head_dim, "value": self.value_dim}.items():
            if size < 1:
                raise ModelError(f"{what} {size}: expected a size of 1 or more")
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.wq = nn.Linear(dim, num_heads * self.head_dim)
        self.wk = nn.Linear(dim, num_heads * self.head_dim)
        self.wv = nn.Linear(dim, num_heads * self.value_dim)
        self.proj = nn.Linear(num_heads * self.value_dim, dim)

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _heads(self, self.wq(x)), _heads(self, self.wk(x))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k = self.queries_and_keys(x)
        v = _heads(self, self.wv(x))
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _heads(layer: SelfAttention | LatentAttention, x: Tensor) -> Tensor:
    """Reshape (B, N, H * d) to (B, H, N, d)."""
    return x.reshape(*x.shape[:2], layer.num_heads, -1).transpose(1, 2)


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn the pairs (2i, 2i + 1) of x (..., N, d) by positions (N,) * base^(-2i/d) (Su 2021), in float32 or wider."""
    kind = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=kind)
    angles = positions.to(x.device, kind)[:, None] * base ** (-pairs / x.shape[-1])
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


class LatentAttention(Formulaic, nn.Module):
    """MLA between the tokens of (B, N, dim). It is called like timm's Attention, and can replace it in a block.

    Formulas take the whole of queries and keys, so those that normalise keys need them at inference, where MLA keeps
    the latents only; in training, and where keys are made anyway, `set_attention` gives it any.

    nope, rope, value: sizes per head: of the parts of queries and keys without and with position, and of values.
    query_latent, key_latent: sizes of c_q and c_kv. base: of the rotation. Raises ModelError for an impossible size.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        nope: int,
        rope: int,
        value: int,
        query_latent: int,
        key_latent: int,
        base: float = 10_000.0,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "num_heads": num_heads, "nope": nope, "rope": rope, "value": value}
        for what, size in {**sizes, "query_latent": query_latent, "key_latent": key_latent}.items():
            if size < 1:
                raise ModelError(f"{what} {size}: expected a size of 1 or more")
        if rope % 2:
            raise ModelError(f"rope {rope}: expected an even size: positions turn pairs of channels; give {rope + 1}")
        self.num_heads, self.nope, self.rope, self.base = num_heads, nope, rope, base
        self.head_dim, self.value_dim = nope + rope, value
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.dq = nn.Linear(dim, query_latent, bias=False)
        self.uq = nn.Linear(query_latent, num_heads * nope, bias=False)
        self.qr = nn.Linear(query_latent, num_heads * rope, bias=False)
        self.dkv = nn.Linear(dim, key_latent, bias=False)
        self.uk = nn.Linear(key_latent, num_heads * nope, bias=False)
        self.uv = nn.Linear(key_latent, num_heads * value, bias=False)
        self.kr = nn.Linear(dim, rope, bias=False)
        self.o = nn.Linear(num_heads * value, dim, bias=False)

    def queries_and_keys(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return queries and keys, (B, H, N, nope + rope) each, at `positions` (N,): 0, 1, … if left out."""
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        latent = self.dq(x)
        turned = rotate(_heads(self, self.qr(latent)), positions, self.base)
        shared = rotate(self.kr(x)[:, None], positions, self.base).expand_as(turned)
        q = torch.cat((_heads(self, self.uq(latent)), turned), dim=-1)
        k = torch.cat((_heads(self, self.uk(self.dkv(x))), shared), dim=-1)
        return q, k

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, positions: Tensor | None = None
    ) -> Tensor:
        q, k = self.queries_and_keys(x, positions)
        v = _heads(self, self.uv(self.dkv(x)))
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class MultiheadAttention(Formulaic, nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with a formula; arguments and tensors are the same.

    For `standard` its outputs and weights equal torch's. `set_attention` turns layers of torch's class into this one.
    An elliptical formula needs the values of the block before; a single layer counts as the first block.

    Args:
        *args: as of torch's class.
        attention: a formula.
        **kwargs: as of torch's class.

    Example:
        >>> layer, tokens = MultiheadAttention(64, 4, batch_first=True, attention="quest"), torch.rand(2, 5, 64)
        >>> layer(tokens, tokens, tokens)[0].shape
        torch.Size([2, 5, 64])
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
        """Whether torch's encoder layers may compute standard attention without this layer: never, once it is built."""
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
        """Attend as torch's layer: bool masks are True where attention must not go; `is_causal` needs `attn_mask`."""
        if is_causal and attn_mask is None:
            raise ModelError(
                "is_causal without attn_mask: torch treats it as a hint about the mask; pass the mask as well"
            )
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
        out = out[0] if alone else out if self.batch_first else out.transpose(0, 1)
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
        lead = () if alone else (batch,)
        inputs = {"key": (key, {(*key.shape[:-1], self.kdim)}), "value": (value, {(*key.shape[:-1], self.vdim)})}
        if key.dim() != query.dim() or (not alone and key.shape[samples] != batch):
            raise ModelError(
                f"queries have shape {tuple(query.shape)} and keys {tuple(key.shape)}; expected as many samples of both"
            )
        if padding is not None:
            inputs["key_padding_mask"] = (padding, {(*lead, asked)})
        if mask is not None:
            inputs["attn_mask"] = (mask, {(asking, asked), (batch * self.num_heads, asking, asked)})
        for name, (tensor, shapes) in inputs.items():
            if tuple(tensor.shape) not in shapes:
                expected = " or ".join(str(shape) for shape in sorted(shapes, key=len))
                raise ModelError(f"{name} has shape {tuple(tensor.shape)}; expected {expected}")
            if "mask" in name and tensor.dtype != torch.bool and not tensor.is_floating_point():
                raise ModelError(f"{name} is of {tensor.dtype}; expected torch.bool, or numbers that are added")
        if padding is None or self.formula is None or not self.formula.sees_all:
            return
        if is_hidden(~padding if padding.dtype == torch.bool else padding):
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
        """Merge both masks into one for the logits, (B or 1, H or 1, N or 1, M); added tokens are never hidden."""

        def numbers(part: Tensor) -> Tensor:
            if part.dtype == torch.bool:
                part = q.new_zeros(part.shape).masked_fill(part, float("-inf"))
            return functional.pad(part.to(q.dtype), (0, added))

        parts = []
        if mask is not None:
            values = numbers(mask)
            parts.append(values if values.dim() == 2 else values.view(-1, self.num_heads, *values.shape[1:]))
        if padding is not None:
            parts.append(numbers(padding)[:, None, None])
        return sum(parts[1:], parts[0]) if parts else None
