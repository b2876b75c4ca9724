"""The run folder: run.json, records, kept pictures; folders from other people are read safely."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .folder import RunFolder as RunFolder

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"folder": ["RunFolder"]})
