"""Attention formulas, and the layers that compute them.

`set_attention(model, "quest")` gives a model another formula; `capture` records scores and attention of a pass.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
