"""Attention formulas, the layers that compute them, and the optimisers that act on queries and keys (`optim`).

`set_attention(model, "quest")` gives a model another formula; `capture` records scores and attention of a pass.
"""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .apply import attention_kind as attention_kind
    from .apply import attention_layers as attention_layers
    from .apply import capture as capture
    from .apply import get_attention as get_attention
    from .apply import set_attention as set_attention
    from .apply import watching as watching
    from .formulas import Formula as Formula
    from .formulas import elliptical_metric as elliptical_metric
    from .formulas import unit as unit
    from .hooks import Captured as Captured
    from .hooks import Watcher as Watcher
    from .multihead import MultiheadAttention as MultiheadAttention
    from .registry import FORMULAS as FORMULAS
    from .registry import find_formula as find_formula
    from .registry import scores as scores

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "apply": ["attention_kind", "attention_layers", "capture", "get_attention", "set_attention", "watching"],
        "formula": ["Formula", "elliptical_metric", "unit"],
        "multihead": ["MultiheadAttention"],
        "registry": ["FORMULAS", "find_formula", "scores"],
        "watcher": ["Captured", "Watcher"],
    },
)
