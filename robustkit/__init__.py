"""RobustKit: how a checkpoint behaves under attack and corruption, and what it looks at.

`load`, `audit`, `Run`, for segmentation `load_segmenter`, `segment`, and a function of each slice in `robustkit.slices`
are loaded on first use: importing the package is instant.
"""

import logging
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import lazy_loader

# Without it products of matrices on CUDA have no fixed order. The first product of a process settles it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants its lines, adds a handler

__version__ = "0.1.0"
_named, _, _every = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
_SLICES = re.findall(r"from \.slices\.(\w+)\S* import (\w+)", Path(__file__).with_suffix(".pyi").read_text("utf-8"))
_GONE = {name: slice for slice, name in _SLICES if not Path(__file__).with_name("slices").joinpath(slice).is_dir()}
__all__ = [name for name in _every if name not in _GONE]


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"robustkit.{name}: this installation is without the slice robustkit/slices/{_GONE[name]}")
    return import_module(f"{__name__}.report") if name == "report" else _named(name)  # a room that can be called


def __dir__() -> list[str]:
    return __all__
