"""The tensors that a formula adds to an attention layer, at their initial values."""

from __future__ import annotations

from typing import Any

from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn

from .formula import LAYER_NORM_EPS, Formula

SCALES = ("qk_scale", "q_scale", "k_scale", "temperature", "alpha")
"""Names of the parameters that formulas add to a layer; qana adds the module `query_network`."""


def head_size(layer: Any) -> int:
    """Return the channels of a head's queries and keys."""
    if size := int(getattr(layer, "head_dim", 0)):
        return size
    rows = layer.qkv.out_features // 3 if hasattr(layer, "qkv") else layer.wq.out_features
    return int(rows) // head_count(layer)


def head_count(layer: Any) -> int:
    """Return the number of heads."""
    named = (getattr(layer, name, 0) for name in ("num_heads", "num_attention_heads"))
    return int(next(filter(None, named), 0) or layer.config.num_attention_heads)


def give_parameters(layer: Any, formula: Formula) -> None:
    """Put the formula's tensors into the layer, and take away those that another formula had put there.

    They are of the layer's device and dtype, and frozen where its weights are.
    """
    weight: Tensor = next(nn.Module.parameters(layer))
    for scale in SCALES:
        layer._parameters.pop(scale, None)
    layer._modules.pop("query_network", None)
    _give_norms(layer, formula, weight)
    for scale, value in formula.initial(head_count(layer), head_size(layer)).items():
        value = value.to(weight.device, weight.dtype)
        layer.register_parameter(scale, nn.Parameter(value, requires_grad=weight.requires_grad))
    if formula.network is not None:
        rows = formula.network.linear(_width(layer), head_count(layer), head_size(layer))
        layer.query_network = rows.to(weight.device, weight.dtype).requires_grad_(weight.requires_grad)


def _give_norms(layer: Any, formula: Formula, weight: Tensor) -> None:
    """Put LayerNorms on queries and keys where the formula has them and the layer does not; remove those that were put
    here.
    """
    norm = getattr(layer, "q_norm", None)
    if formula.name == "qknorm-ln" and (norm is None or isinstance(norm, nn.Identity)):
        layer.created_norms = True
        for which in ("q_norm", "k_norm"):
            made = nn.LayerNorm(head_size(layer), eps=LAYER_NORM_EPS).to(weight.device, weight.dtype)
            setattr(layer, which, made.requires_grad_(weight.requires_grad).train(layer.training))
    elif formula.name != "qknorm-ln" and getattr(layer, "created_norms", False):
        layer.created_norms = False
        for which in ("q_norm", "k_norm"):
            if isinstance(layer, Attention):
                setattr(layer, which, nn.Identity())
            else:
                delattr(layer, which)


def _width(layer: Any) -> int:
    """Return the channels of what queries are projected from."""
    if isinstance(layer, nn.MultiheadAttention):
        return int(layer.embed_dim)
    return int(next(getattr(layer, name) for name in ("qkv", "wq", "dq") if hasattr(layer, name)).in_features)
