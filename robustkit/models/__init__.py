"""Turn a spec into a `Classifier` or a `Segmenter` that takes pixels in [0, 1]: safe checkpoint reading,
architecture, preprocessing, batch size."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .classifier import load as load
    from .dense import Segmenter as Segmenter
    from .identity import Classifier as Classifier
    from .segmenter import load_segmenter as load_segmenter

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "classifier": ["load"],
        "dense": ["Segmenter"],
        "identity": ["Classifier"],
        "segmenter": ["load_segmenter"],
    },
)
