"""RobustKit: how a checkpoint behaves under attack and corruption, and what it looks at.

`load`, `audit`, `Run`, for segmentation `load_segmenter`, `segment`, and beyond images `series` and `text` are loaded
on first use: importing the package is instant.
"""

import logging
import os
from typing import TYPE_CHECKING

import lazy_loader

# Without it products of matrices on CUDA have no fixed order. The first product of a process settles it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants its lines, adds a handler

if TYPE_CHECKING:
    from . import attention as attention
    from .common.plugins import load_plugin as load_plugin
    from .models.classifier import load as load
    from .models.dense import Segmenter as Segmenter
    from .models.identity import Classifier as Classifier
    from .models.segmenter import load_segmenter as load_segmenter
    from .pipeline.audit import audit as audit
    from .pipeline.audit import segment as segment
    from .pipeline.audit import series as series
    from .pipeline.audit import text as text
    from .report.refresh import merge as merge
    from .results.summary import Run as Run

__version__ = "0.1.0"
__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submodules=["attention"],
    submod_attrs={
        "common.plugins": ["load_plugin"],
        "models.classifier": ["load"],
        "models.dense": ["Segmenter"],
        "models.identity": ["Classifier"],
        "models.segmenter": ["load_segmenter"],
        "pipeline.audit": ["audit"],
        "pipeline.other_inputs": ["series", "text"],
        "pipeline.segment": ["segment"],
        "report.merge": ["merge"],
        "results.run": ["Run"],
    },
)
__all__ = [
    "Classifier",
    "Run",
    "Segmenter",
    "__version__",
    "attention",
    "audit",
    "load",
    "load_plugin",
    "load_segmenter",
    "merge",
    "segment",
    "series",
    "text",
]
