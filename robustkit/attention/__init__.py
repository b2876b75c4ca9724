"""Attention formulas, the layers that compute them, and the optimisers that act on queries and keys (`optim`).

`set_attention(model, "quest")` gives a model another formula; `capture` records scores and attention of a pass."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .apply import FORMULAS as FORMULAS
    from .apply import Captured as Captured
    from .apply import Formula as Formula
    from .apply import MultiheadAttention as MultiheadAttention
    from .apply import attention_kind as attention_kind
    from .apply import attention_layers as attention_layers
    from .apply import capture as capture
    from .apply import elliptical_metric as elliptical_metric
    from .apply import get_attention as get_attention
    from .apply import scores as scores
    from .apply import set_attention as set_attention
    from .apply import unit as unit
    from .registry import find_formula as find_formula

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "apply": [
            "Captured",
            "FORMULAS",
            "Formula",
            "MultiheadAttention",
            "attention_kind",
            "attention_layers",
            "capture",
            "elliptical_metric",
            "get_attention",
            "scores",
            "set_attention",
            "unit",
        ],
        "registry": ["find_formula"],
    },
)
