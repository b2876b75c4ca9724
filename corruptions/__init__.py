"""The 19 common corruptions of Hendrycks and Dietterich 2019 for batches of images: usable alone.

    from corruptions import corrupt

    foggy = corrupt(images, "fog", severity=3)  # (B, 3, H, W), uint8 or floating in [0, 1]

It needs torch, NumPy, OpenCV and Pillow. A corruption is a class with two functions: `draw` makes its random numbers,
`apply` is a function of images and draws.
"""

from .constants import PRESETS, SEVERITIES
from .corruption import VARIANTS, Corruption, Draws, Rng, TorchRng
from .registry import CORRUPTIONS, corrupt, corruption
from .weather import TEXTURES, find_photographs, own_textures

__all__ = [
    "CORRUPTIONS",
    "PRESETS",
    "SEVERITIES",
    "TEXTURES",
    "VARIANTS",
    "Corruption",
    "Draws",
    "Rng",
    "TorchRng",
    "corrupt",
    "corruption",
    "find_photographs",
    "own_textures",
]
