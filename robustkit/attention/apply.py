"""Put any attention formula into a model, and look at its attention.

    set_attention(model, "quest")           # same weights, another formula
    with capture(model) as captured:        # scores before softmax and attention after it, in the graph
        logits = model(images)
        gradients = torch.autograd.grad(logits[:, 3].sum(), captured.attention)

It works for timm's ViTs (ViT, DeiT, DeiT-3), those with rotary positions (EVA-02, DINOv3, PE, ViT-RoPE), BEiT, CaiT,
CrossViT and Swin, for models made of
`torch.nn.MultiheadAttention`, such as torchvision's ViTs, or of our own layers (`SelfAttention`, `LatentAttention`),
and for models of transformers whose layers ask its registry for their attention (`interface`). Layers of the others are
changed in place by giving them another class: module objects, parameters, tensor names and hooks stay as they are,
`copy.deepcopy`, pickling and `torch.compile` still work, and 'standard' is the library's own code again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from timm.layers import AttentionRope  # type: ignore[attr-defined, unused-ignore]
from timm.models.beit import Attention as BeitAttention
from timm.models.cait import ClassAttn, TalkingHeadAttn
from timm.models.crossvit import CrossAttention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer import WindowAttention
from timm.models.vision_transformer import Attention  # type: ignore[attr-defined, unused-ignore]
from torch import nn

from ..errors import ModelError
from . import interface
from .formulas import Formula, check_rotary, find_formula
from .hooks import Captured, Watcher
from .layers import (
    Formulaic,
    Handover,
    LatentAttention,
    MultiheadAttention,
    SelfAttention,
    give_parameters,
    head_size,
    norms_before_rotation,
    own_formula,
)
from .timm_layers import (
    FormulaAttention,
    FormulaBeitAttention,
    FormulaClassAttention,
    FormulaCrossAttention,
    FormulaEvaAttention,
    FormulaRopeAttention,
    FormulaTalkingHeadAttention,
    FormulaWindowAttention,
)

Model = TypeVar("Model", bound=nn.Module)
_WITH_FORMULA: dict[type, type] = {
    Attention: FormulaAttention,
    BeitAttention: FormulaBeitAttention,
    CrossAttention: FormulaCrossAttention,
    EvaAttention: FormulaEvaAttention,
    AttentionRope: FormulaRopeAttention,
    TalkingHeadAttn: FormulaTalkingHeadAttention,
    ClassAttn: FormulaClassAttention,
    WindowAttention: FormulaWindowAttention,
    nn.MultiheadAttention: MultiheadAttention,
    LatentAttention: LatentAttention,
    SelfAttention: SelfAttention,
}
_OWN = {made: plain for plain, made in _WITH_FORMULA.items()}
_OTHERWISE = {"XCA": "between channels, so no token attends to another"}  # what other attention is
_PLACE = re.compile(r"(.*?)(\d+)(\.\D*)")  # place of a layer in a row of blocks: the last number of its path


def _has_formula(module: nn.Module) -> bool:
    return type(module) in _WITH_FORMULA or type(module) in _OWN


def _foreign(module: nn.Module) -> bool:
    name = type(module).__name__
    looks = "Attention" in name or "Attn" in name or hasattr(module, "fused_attn")
    if not looks or "AttentionPool" in name:  # a pooling head, not attention between tokens
        return False
    return not any(_has_formula(part) or interface.asks(part) for part in nn.Module.modules(module))


def attention_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return the name and the layer of every attention layer, in order.

    Raises:
        ModelError: the model has none, or some of another kind.

    Example:
        >>> len(attention_layers(vit))
        12
    """
    layers = interface.layers_of(model)
    layers = layers or [(name, m) for name, m in nn.Module.named_modules(model) if _has_formula(m)]
    foreign = sorted({type(m).__name__ for m in nn.Module.modules(model) if _foreign(m)})
    if foreign or not layers:
        named = (f"{name} ({why})" if (why := _OTHERWISE.get(name)) else name for name in foreign)
        why = f"its attention is of class {', '.join(named)}" if foreign else "it has no attention layer"
        raise ModelError(
            f"{type(model).__name__} does not support attention formulas: {why}; expected timm's ViT, DeiT, "
            "DeiT-3, EVA, DINOv3, BEiT, CaiT, CrossViT or Swin, torch.nn.MultiheadAttention, or a model of "
            "transformers with its AttentionInterface"
        )
    return layers


def _formula_name(layer: Any) -> str:
    if interface.asks(layer):
        return interface.formula_of(layer)
    if isinstance(layer, Formulaic) and layer.formula is not None:
        return layer.formula.name
    return "standard" if norms_before_rotation(layer) else own_formula(layer)


def get_attention(model: nn.Module) -> str:
    """Return the name of the model's attention formula.

    Raises:
        ModelError: it has none or more than one.

    Example:
        >>> get_attention(vit)
        'quest'
    """
    names = sorted({_formula_name(layer) for _, layer in attention_layers(model)})
    if len(names) > 1:
        raise ModelError(f"blocks differ in attention: {', '.join(names)}; expected one formula for all of a model")
    return names[0]


def attention_kind(model: nn.Module) -> str:
    """Return the formula's name; 'other' for attention that is none of the formulas, 'none' without attention.

    Example:
        >>> attention_kind(torch.nn.Linear(2, 2))
        'none'
    """
    try:
        return get_attention(model)
    except ModelError:
        return "other" if any(_foreign(m) or _has_formula(m) for m in nn.Module.modules(model)) else "none"


def set_attention(model: Model, name: str) -> Model:
    """Give every attention layer of `model` the formula `name`, in place; weights keep their names and values.

    Scales (`attn.qk_scale`, `attn.q_scale` and `attn.k_scale`, `attn.head_scale`), a learned `attn.temperature`, the
    norms of qknorm-ln and qk-rms and the `attn.query_network` of qana are created at their initial values where they
    are absent, frozen where the layer's weights are; load a state_dict after the call to fill them. They are
    removed when another formula is set. Norms that the model came with always stay; formulas that do not use them
    bypass them. In layers with rotary positions they are applied before the rotation, by every formula, as part of
    'standard'; the formula is given queries and keys after both. Pooling heads with a latent query (timm's
    AttentionPoolLatent, that of SigLIP in transformers) are no attention between tokens, and stay as they are. Setting
    the same formula again changes nothing.

    Values of the block before, which the elliptical formulas compare, come from the layer of the same path with another
    last number: `blocks.3.attn` and `blocks.2.attn`. The class token's attention in CrossViT has no block before it, so
    it counts as a first block.

    Args:
        model: any with attention between tokens.
        name: a formula of `FORMULAS`, with options in brackets.

    Returns:
        The model itself.

    Raises:
        ModelError: an unknown name, a model whose attention is of another kind, or an elliptical formula for Swin,
            whose windows hold other tokens from block to block.

    Example:
        >>> get_attention(set_attention(vit, "quest"))
        'quest'
    """
    formula = find_formula(name)
    layers = attention_layers(model)
    if formula.elliptical and any(_is_windowed(layer) for _, layer in layers):
        raise ModelError(
            f"{name} attention compares the values of neighbouring blocks, and the windows of {type(model).__name__} "
            "hold other tokens in each; expected a formula that needs no other block, such as quest"
        )
    theirs = interface.asks(layers[0][1])
    if any((interface.layer_place(layer) if theirs else layer).__dict__.get("sink") is not None for _, layer in layers):
        raise ModelError("attention cannot be set while it is captured; exit the `with capture(...)` block first")
    chains: dict[str, list[Any]] = defaultdict(list)
    for path, layer in layers:
        _check(formula, layer)
        if formula.elliptical and ".attns." in path:
            raise ModelError(f"{name} attention needs blocks in a row, and {path!r} is one of several side by side")
        match = None if isinstance(layer, CrossAttention) else _PLACE.fullmatch(path)
        if match is None and formula.elliptical and len(layers) > 1 and not isinstance(layer, CrossAttention):
            raise ModelError(f"{name} attention needs blocks in a row, and layer {path!r} is not in one")
        chains[f"{match[1]}*{match[3]}" if match else path].append(layer)
    if theirs:
        interface.set_formula(model, formula, list(chains.values()))
        return model
    for chain in chains.values():
        handover = Handover(len(chain)) if formula.elliptical else None
        for position, layer in enumerate(chain):
            _swap(layer, formula)
            if handover is not None:
                layer.handover, layer.position = handover, position
    _nest(model, formula.name == "standard")
    return model


def _nest(model: nn.Module, allowed: bool) -> None:
    """Whether torch's encoders may cut padded tokens off in inference: our layers cannot take nested tensors."""
    for part in nn.Module.modules(model):
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = part.__dict__.setdefault("_nests", part.use_nested_tensor) and allowed


def _check(formula: Formula, layer: Any) -> None:
    """Raise ModelError where the layer cannot have the formula, before any layer is changed."""
    if formula.network is not None and formula.network.rope:
        check_rotary(head_size(layer))
    sizes = head_size(layer), getattr(layer, "value_dim", head_size(layer))
    if formula.elliptical and sizes[0] != sizes[1]:
        raise ModelError(
            f"{formula.name} attention multiplies queries by what it finds in the values, and heads have queries of "
            f"{sizes[0]} numbers and values of {sizes[1]}; expected the same size, or another formula, such as quest"
        )
    came_with = formula.norms and not getattr(layer, "created_norms", False)
    original = own_formula(layer) if came_with else "standard"
    if original != "standard" and norms_before_rotation(layer):
        raise ModelError(
            f"{formula.name}: {type(layer).__name__} has norms of its own, which it applies before it rotates queries "
            "and keys, so they are part of 'standard'; expected another formula, such as quest"
        )
    if original != "standard" and interface.asks(layer):
        raise ModelError(f"{formula.name} attention would normalise twice: the layer has its own norms; use standard")
    if original not in ("standard", formula.name):
        raise ModelError(f"{formula.name} attention has other norms than the layer came with; expected {original}")


def _swap(layer: Any, formula: Formula) -> None:
    """Make one layer compute the formula; the one that it has changes nothing."""
    if isinstance(layer, Formulaic) and layer.formula is not None and layer.formula.name == formula.name:
        return
    give_parameters(layer, formula)
    for attribute in ("formula", "handover", "position"):
        layer.__dict__.pop(attribute, None)
    plain = _OWN.get(type(layer), type(layer))
    if norms_before_rotation(layer):
        native = formula.name == "standard"
    else:
        native = (formula.name == "standard" or plain is Attention) and _native(layer, formula)
    layer.__class__ = plain if native else _WITH_FORMULA[plain]
    if not native:
        layer.formula = formula


def _native(layer: Any, formula: Formula) -> bool:
    """Whether the library's own code computes the formula; norms of other kinds are the library's alone."""
    try:
        return own_formula(layer) == formula.name
    except ModelError:
        return False


def _is_windowed(layer: Any) -> bool:  # timm's Swin, and transformers' of any version
    return isinstance(layer, WindowAttention) or type(layer).__name__.startswith("Swin")


def capturable_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Return `attention_layers`. ModelError, too, where attention is within windows of the image."""
    layers = attention_layers(model)
    if any(_is_windowed(layer) for _, layer in layers):
        raise ModelError(
            f"{type(model).__name__} attends within windows: its attention does not cover the whole image and is not "
            "captured;"
            " use grad-cam or gradient"
        )
    return layers


@contextmanager
def capture(model: nn.Module, *, rows: slice | None = None) -> Iterator[Captured]:
    """Keep scores and attention of every block while inside, in the same pass and for every formula.

    Layers run unfused while inside, and are restored on leaving, also after an exception. One capture per model at a
    time; an inner one takes over from an outer one.

    Args:
        model: any with attention between tokens.
        rows: keep only these query rows of the scores (`slice(0, 1)` for CLS), which saves memory; attention is whole,
            since it is what gradients are taken for. It requires a gradient even with frozen weights and plain images,
            so `torch.autograd.grad(logit, captured.attention)` works.

    Raises:
        ModelError: attention of another kind, or in windows.

    Example:
        >>> with capture(vit, rows=slice(0, 1)) as captured:
        ...     logits = vit(torch.rand(1, 3, 224, 224))
        >>> captured.scores[0].shape, captured.attention[0].shape
        (torch.Size([1, 3, 1, 197]), torch.Size([1, 3, 197, 197]))
    """
    layers = capturable_layers(model)
    captured = Captured([name for name, _ in layers], rows)
    with watching(model, captured):
        yield captured


@contextmanager
def watching(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Let `watcher` see, and change, what every attention layer computes while inside.

    As for `capture`, layers run unfused and are restored on leaving, and an inner watcher takes over; layers may also
    attend within windows.

    Example:
        >>> with watching(vit, Watcher()):
        ...     logits = vit(torch.rand(1, 3, 224, 224))
    """
    layers = attention_layers(model)
    if interface.asks(layers[0][1]):
        with interface.watched(layers, watcher):
            yield
        return
    before = [(one, type(one), getattr(one, "sink", None), getattr(one, "sink_index", 0)) for _, one in layers]
    try:
        _nest(model, False)
        for index, (_, layer) in enumerate(layers):
            layer.__class__ = _WITH_FORMULA.get(type(layer), type(layer))
            layer.sink, layer.sink_index = watcher, index
        yield
    finally:
        for layer, kind, sink, index in before:
            layer.__class__ = kind
            if sink is None:
                layer.__dict__.pop("sink", None)
                layer.__dict__.pop("sink_index", None)
            else:
                layer.sink, layer.sink_index = sink, index
        _nest(model, all(type(layer) in _WITH_FORMULA for _, layer in layers))
