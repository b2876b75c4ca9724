"""Turn a folder, a zip or the generated set into labelled samples:
images, layouts, label tables, segmentation masks."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .dataset import EMBEDDED as EMBEDDED
    from .dataset import Dataset as Dataset
    from .dataset import Sample as Sample
    from .dataset import open_dataset as open_dataset
    from .images import to_pixels as to_pixels
    from .scenes import LabelledScenes as LabelledScenes
    from .scenes import open_scenes as open_scenes

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "dataset": ["Dataset", "EMBEDDED", "Sample", "open_dataset"],
        "images": ["to_pixels"],
        "scenes": ["LabelledScenes", "open_scenes"],
    },
)
