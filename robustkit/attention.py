"""Put any attention formula into a timm ViT, and look at the attention of one.

    set_attention(model, "quest")           # same weights, another formula
    with capture(model) as captured:        # scores before softmax and attention after it, in the graph
        logits = model(images)
        gradients = torch.autograd.grad(logits[:, 3].sum(), captured.attention)

Layers are changed in place by giving them another class: module objects, parameters, tensor names and hooks stay as
they are, `copy.deepcopy`, pickling and `torch.compile` go on working, and 'standard' is timm's own code again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import nn

from .attention_layer import SCALES, Captured, FormulaAttention, Handover
from .errors import ModelError
from .formulas import FORMULAS, LAYER_NORM_EPS, Formula, elliptical_metric, find_formula, scores, unit

__all__ = [
    "FORMULAS",
    "Captured",
    "Formula",
    "attention_kind",
    "attention_layers",
    "capture",
    "elliptical_metric",
    "get_attention",
    "scores",
    "set_attention",
    "unit",
]

Model = TypeVar("Model", bound=nn.Module)


def _foreign(module: nn.Module) -> bool:
    name = type(module).__name__
    if name.startswith("AttentionPool"):  # a pooling head, not attention between tokens
        return False
    return "Attention" in name or "Attn" in name or hasattr(module, "fused_attn")


def attention_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """(name, layer) of every attention layer, in order.

    Raises ModelError where the model has none, or some of another kind.
    """
    layers = [(name, m) for name, m in model.named_modules() if type(m) in (Attention, FormulaAttention)]
    own = {id(layer) for _, layer in layers}
    foreign = sorted({type(m).__name__ for m in model.modules() if id(m) not in own and _foreign(m)})
    if foreign or not layers:
        why = f"its attention is of class {', '.join(foreign)}" if foreign else "it has no attention layer"
        raise ModelError(
            f"{type(model).__name__} takes no attention formula: {why}; expected timm's ViT attention "
            "(ViT, DeiT, DeiT-3); leave --attention out"
        )
    return layers


def _formula_name(layer: Any) -> str:
    if type(layer) is FormulaAttention and layer.formula_name:
        return layer.formula_name
    if isinstance(layer.q_norm, nn.Identity):
        return "standard"
    if isinstance(layer.q_norm, nn.LayerNorm):
        return "qknorm-ln"
    raise ModelError(
        f"queries and keys are normalised by {type(layer.q_norm).__name__}, which is none of the formulas: "
        f"{', '.join(sorted(FORMULAS))}; leave --attention out"
    )


def get_attention(model: nn.Module) -> str:
    """The name of the model's attention formula. ModelError where it has none or more than one."""
    names = sorted({_formula_name(layer) for _, layer in attention_layers(model)})
    if len(names) > 1:
        raise ModelError(f"blocks differ in attention: {', '.join(names)}; expected one formula for all of a model")
    return names[0]


def attention_kind(model: nn.Module) -> str:
    """The formula's name; 'other' for attention that is none of the formulas, 'none' for a model without attention."""
    try:
        return get_attention(model)
    except ModelError:
        known = (Attention, FormulaAttention)
        return "other" if any(_foreign(m) or isinstance(m, known) for m in model.modules()) else "none"


def set_attention(model: Model, name: str) -> Model:
    """Give every attention layer of `model` the formula `name`, in place; weights keep their names and values.

    Scales of the qknorm forms (`attn.qk_scale`, or `attn.q_scale` and `attn.k_scale`) and the LayerNorms of qknorm-ln
    are created at their initial values where they are absent, frozen where the layer's weights are; load a state_dict
    after the call to fill them. They go when another formula is set. LayerNorms that the model came with always stay,
    and are passed over by the formulas that do not use them. Setting the same formula again changes nothing.

    Raises ModelError for an unknown name or a model whose attention is not timm's.
    """
    formula = find_formula(name)
    layers = attention_layers(model)
    if any(getattr(layer, "sink", None) is not None for _, layer in layers):
        raise ModelError("attention cannot be set while it is captured; leave the `with capture(...)` block first")
    chains: dict[str, list[Any]] = defaultdict(list)
    for path, layer in layers:
        match = re.fullmatch(r"(.*?)\d+\.attn", path)
        if match is None and formula.elliptical:
            raise ModelError(f"{name} attention needs blocks in a row, and layer {path!r} is not in one")
        if name == "qknorm-ln" and not isinstance(layer.q_norm, nn.Identity | nn.LayerNorm):
            _formula_name(layer)
        chains[match[1] if match else path].append(layer)
    for chain in chains.values():
        handover = Handover(len(chain)) if formula.elliptical else None
        for position, layer in enumerate(chain):
            _swap(layer, formula)
            if handover is not None:
                layer.handover, layer.position = handover, position
    return model


def _swap(layer: Any, formula: Formula) -> None:
    if getattr(layer, "formula_name", "") == formula.name:
        return
    for scale in SCALES:
        layer._parameters.pop(scale, None)
    weight = layer.qkv.weight
    if formula.name == "qknorm-ln" and isinstance(layer.q_norm, nn.Identity):
        layer.created_norms = True
        for which in ("q_norm", "k_norm"):
            norm = nn.LayerNorm(layer.head_dim, eps=LAYER_NORM_EPS).to(weight.device, weight.dtype)
            setattr(layer, which, norm.requires_grad_(weight.requires_grad).train(layer.training))
    elif formula.name != "qknorm-ln" and getattr(layer, "created_norms", False):
        layer.created_norms = False
        layer.q_norm, layer.k_norm = nn.Identity(), nn.Identity()
    for scale, value in formula.initial(layer.num_heads, layer.head_dim).items():
        value = value.to(weight.device, weight.dtype)
        layer.register_parameter(scale, nn.Parameter(value, requires_grad=weight.requires_grad))
    native = formula.name == "qknorm-ln" or (formula.name == "standard" and isinstance(layer.q_norm, nn.Identity))
    for attribute in ("formula_name", "handover", "position"):
        layer.__dict__.pop(attribute, None)
    layer.__class__ = Attention if native else FormulaAttention
    if not native:
        layer.formula_name = formula.name


@contextmanager
def capture(model: nn.Module, *, rows: slice | None = None) -> Iterator[Captured]:
    """Keep scores and attention of every block while inside, in the same pass and for every formula.

    rows: keep only these query rows of the scores (`slice(0, 1)` for CLS), which saves memory; attention is whole,
        since it is what gradients are taken for. It requires a gradient even with frozen weights and plain images,
        so `torch.autograd.grad(logit, captured.attention)` works.

    Layers run unfused while inside, and are as before after it, also after an exception. One capture a model at a
    time; an inner one takes over from an outer one. Attention that is not timm's gives a ModelError.
    """
    layers = attention_layers(model)
    captured = Captured([name for name, _ in layers], rows)
    before = [
        (layer, type(layer), getattr(layer, "sink", None), getattr(layer, "sink_index", 0)) for _, layer in layers
    ]
    try:
        for index, (_, layer) in enumerate(layers):
            layer.__class__ = FormulaAttention
            layer.sink, layer.sink_index = captured, index
        yield captured
    finally:
        for layer, kind, sink, index in before:
            layer.__class__ = kind
            if sink is None:
                layer.__dict__.pop("sink", None)
                layer.__dict__.pop("sink_index", None)
            else:
                layer.sink, layer.sink_index = sink, index
