"""Formulas for models of the transformers library, through its registry of attention functions.

    set_attention(model, "quest")                           # any formula but those with a network of their own
    model.set_attn_implementation("robustkit:quest")        # the same, where a formula has no tensors to learn

Each formula is registered as `robustkit:NAME` together with the library's own additive mask: a function without a mask
of its own would be given none, and a language model would see the future. Layers keep their classes; what a layer
computes is kept next to it, in a `Place`. Facts: transformers 5.24, `AttentionInterface`, `AttentionMaskInterface`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .formulas import Formula, find_formula
from .hooks import Watcher
from .layers import Formulaic, Handover, give_parameters
from .registry import EVERY_FORMULA

PREFIX = "robustkit:"
NOTED = "robustkit_attention"  # the key of config.json that names a formula
_KEPT = "_robustkit_place"  # the attribute of a layer
_DISPATCHER = "ALL_ATTENTION_FUNCTIONS"  # the global by which a layer of the library finds its attention function
_UNKNOWN = {
    "s_aux": "attention sinks",
    "softcap": "capped logits",
    "cache": "a paged cache",
    "head_mask": "a head mask",
}


@dataclass
class LayerPlace:
    """What a layer computes, and who watches it."""

    before: str  # the library's function that it had
    formula: Formula | None = None
    handover: Handover | None = None
    position: int = 0
    sink: Watcher | None = None
    sink_index: int = 0


class _Call(Formulaic):
    """One call of a layer: its place, its tensors, and the dropout of this call."""

    attn_drop = None  # whatever the layer has

    def __init__(self, layer: nn.Module, place: LayerPlace, formula: Formula, dropout: float) -> None:
        self.formula, self.handover, self.position = formula, place.handover, place.position
        self.sink, self.sink_index = place.sink, place.sink_index
        self.layer, self.dropout, self.training = layer, dropout, layer.training
        self._parameters = layer._parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)  # the norms of qknorm-ln and qk-rms


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, layer) of the layers that ask the library's registry for their attention, in order."""
    loaded = "transformers" in sys.modules
    return [(name, layer) for name, layer in nn.Module.named_modules(model) if loaded and asks(layer)]


def asks(layer: nn.Module) -> bool:
    """Whether a layer asks the library's registry for its attention."""
    code = getattr(inspect.unwrap(type(layer).forward), "__code__", None)  # the library renames arguments by decorators
    return code is not None and _DISPATCHER in code.co_names and hasattr(layer, "config")


def layer_place(layer: nn.Module) -> LayerPlace:
    """Return the place of a layer; a new one where it has none."""
    layer_: Any = layer
    place: LayerPlace | None = layer.__dict__.get(_KEPT)
    if place is None:
        used = str(layer_.config._attn_implementation)
        place = layer.__dict__[_KEPT] = LayerPlace("eager" if used.startswith(PREFIX) else used)
    return place


def formula_of(layer: Any) -> str:
    """Return the name of the formula that a layer computes."""
    used = str(layer.config._attn_implementation)
    return find_formula(used.removeprefix(PREFIX)).name if used.startswith(PREFIX) else "standard"


def register(formula: Formula) -> str:
    """Register a formula with the library, once; return its name there."""
    import transformers
    from transformers.masking_utils import eager_mask

    functions: Any = transformers.AttentionInterface
    name = PREFIX + formula.name
    if name not in functions():
        functions.register(name, _function(formula))
        transformers.AttentionMaskInterface.register(name, eager_mask)
    return name


def register_all() -> None:
    """Register every formula that needs no tensors and no other block, for `model.set_attn_implementation`."""
    for name in EVERY_FORMULA:
        if (formula := EVERY_FORMULA[name]).network is None:
            register(formula)


def _function(formula: Formula) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (B, N, H, d) of the values and the attention (B, H, N, M), as the library's own functions do."""
        for name, what in _UNKNOWN.items():
            if others.get(name) is not None:
                raise ModelError(f"{type(module).__name__} asks for {what} ({name}); {formula.name} attention has none")
        place = module.__dict__.get(_KEPT)
        if place is None or place.formula is None:
            place = place or LayerPlace("")
            _check_bare(formula, module)
        if (groups := query.shape[1] // key.shape[1]) > 1:
            key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        mask = attention_mask
        if position_bias is not None and mask is not None and mask.dtype == torch.bool:
            mask = position_bias.masked_fill(~mask, float("-inf"))
        elif position_bias is not None:
            mask = position_bias if mask is None else position_bias + mask
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and attention_mask is None and query.shape[2] > 1
        if causal and query.shape[2] != key.shape[2]:
            raise ModelError(
                f"{type(module).__name__} is causal and was given {query.shape[2]} queries of {key.shape[2]} keys "
                "without a mask; expected one that says which keys each may see"
            )
        fused = bool(getattr(module, "fused_attn", True))  # explainers switch it, as timm's
        # Relative to 1/sqrt(d), which the formula's constant takes the place of.
        factor = 1.0 if scaling is None else float(scaling) * query.shape[-1] ** 0.5
        mixed, attention = _Call(module, place, formula, dropout)._attend(
            query, key, value, source=query, mask=mask, is_causal=causal, fused=fused, factor=factor
        )
        return mixed.transpose(1, 2).contiguous(), attention

    return attend


def _check_bare(formula: Formula, layer: Any) -> None:
    """Raise ModelError where a formula needs more than a call gives it."""
    if formula.elliptical or formula.initial(1, 1) or formula.norms:
        why = "compares the values of neighbouring blocks" if formula.elliptical else "has tensors of its own"
        raise ModelError(f"{formula.name} attention {why}; call robustkit.attention.set_attention(model, ...) instead")


def set_formula(model: Any, formula: Formula, chains: list[list[Any]]) -> None:
    """Give every layer of the `chains` of blocks the formula; the model's config, so a saved checkpoint, says it."""
    if formula.network is not None:
        raise ModelError(
            f"{formula.name} attention computes from a layer's input, which transformers does not hand to an attention "
            "function; expected a formula of queries, keys and values, such as quest"
        )
    standard = formula.name == "standard"
    name, active = ("", None) if standard else (register(formula), formula)
    for chain in chains:
        handover = Handover(len(chain)) if formula.elliptical else None
        for position, layer in enumerate(chain):
            place = layer_place(layer)
            if place.formula is None or place.formula.name != formula.name:
                give_parameters(layer, formula)
            layer.__dict__[_KEPT] = replace(place, formula=active, handover=handover, position=position)
    for layer in (layer for chain in chains for layer in chain):
        layer.config._attn_implementation = name or layer_place(layer).before
    for part in nn.Module.modules(model):
        config = getattr(part, "config", None)
        if config is not None and type(config).__module__.startswith("transformers."):
            config.__dict__.pop(NOTED, None)
            if not standard:
                setattr(config, NOTED, formula.name)


@contextmanager
def watched(layers: list[tuple[str, nn.Module]], watcher: Watcher) -> Iterator[None]:
    """Let `watcher` see every layer while inside."""
    configs: dict[int, tuple[Any, Any]] = {}
    before = [(layer, layer_place(layer)) for _, layer in layers]
    for _, layer in layers:
        config: Any = layer.config
        configs.setdefault(id(config), (config, config._attn_implementation))
    try:
        for index, (layer, place) in enumerate(before):
            layer.__dict__[_KEPT] = replace(
                place, sink=watcher, sink_index=index, formula=place.formula or find_formula(formula_of(layer))
            )
        for config, used in configs.values():
            if not str(used).startswith(PREFIX):
                config._attn_implementation = register(find_formula("standard"))
        yield
    finally:
        for layer, place in before:
            layer.__dict__[_KEPT] = place
        for config, used in configs.values():
            config._attn_implementation = used
