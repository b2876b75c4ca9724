"""Turn a spec into a `Classifier` or a `Segmenter` that takes pixels in [0, 1]: safe checkpoint reading,
architecture, preprocessing, batch size."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
