"""Corrupt images on disk: contact sheets of some, a corrupted copy of a data set, and how far a released copy is off.

from robustkit.slices.corrupt import corrupt_tree

corrupt_tree("imagenet-c", "imagenet/val", corruptions="in-c", limit=1000)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
