"""Turn records into results: the summary, paired comparison, published figures."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .summary import Run as Run

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"summary": ["Run"]})
