"""Class activation maps for vision models, and scores of maps: torch and OpenCV, usable alone.

    from cam import AGCAM

    with AGCAM(model) as explain:
        maps = explain(images)  # (B, H, W) in [0, 1], for the predicted classes

Of a model that predicts a class for each pixel, `explain(images, SegmentTarget(...))` explains one class in a region.
`explain.explain(...)` in place of the call also returns the logits, the targets and which maps are degenerate.
`RandomMap`, `CentredGaussian` and `FullImage` do not look at the image: scores mean little without theirs.

`cam.localisation` scores maps against masks and boxes and compares two maps, `cam.boxes` reads boxes and carries them
through a resize, `cam.faithfulness` removes what a map marks and fills it, `cam.sensitivity` changes image and model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
