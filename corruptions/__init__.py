"""The 19 common corruptions of ImageNet-C, and those of ImageNet-C-bar, CIFAR-10-C-bar and LAION-C: usable alone.

    from corruptions import corrupt

    foggy = corrupt(images, "fog", severity=3)  # (B, 3, H, W), uint8 or floating in [0, 1]

NumPy arrays (H, W, 3) and images of Pillow work as well, and so do the calls of the package imagecorruptions.
It needs torch, NumPy, SciPy, scikit-image, OpenCV and Pillow. A corruption is a class with two functions: `draw` makes
its random numbers, `apply` is a function of images and draws.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
