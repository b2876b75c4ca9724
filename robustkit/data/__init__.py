"""Turn a folder, a zip or the generated set into labelled samples:
images, layouts, label tables, segmentation masks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
