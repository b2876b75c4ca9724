"""The command line: turn words into calls."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .app import main as main

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"app": ["main"]})
