"""RobustKit: how a vision checkpoint behaves under attack and corruption, and what it looks at.

`load`, `audit`, `Run`, and for segmentation `load_segmenter`, `segment`, are loaded on first use: importing the package
is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import attention as attention
    from .models import Classifier as Classifier
    from .models import load as load
    from .pipeline import audit as audit
    from .records import Run as Run
    from .scene_pipeline import segment as segment
    from .segmenters import Segmenter as Segmenter
    from .segmenters import load_segmenter as load_segmenter

__version__ = "0.1.0"
_HOMES = {
    "Classifier": "models",
    "load": "models",
    "audit": "pipeline",
    "Run": "records",
    "Segmenter": "segmenters",
    "load_segmenter": "segmenters",
    "segment": "scene_pipeline",
}
__all__ = ["Classifier", "Run", "Segmenter", "__version__", "attention", "audit", "load", "load_segmenter", "segment"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name == "attention":
        return import_module(".attention", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
