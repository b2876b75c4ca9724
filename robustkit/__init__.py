"""RobustKit: how a checkpoint behaves under attack and corruption, and what it looks at.

`load`, `audit`, `features`, `Run`, for segmentation `load_segmenter`, `segment`, and beyond images `series` and `text`
are loaded on first use: importing the package is instant.
"""

import logging
import os

import lazy_loader

from . import moved

# Without it products of matrices on CUDA have no fixed order. The first product of a process settles it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants its lines, adds a handler

moved.install()

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
