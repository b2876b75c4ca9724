"""Adversarial attacks on classifiers and segmentation models: torch only, usable alone.

An attack is a frozen dataclass of its parameters, and is called with a model, a batch of images and their labels:

    from attacks import PGD, ThreatModel

    adversarials = PGD(ThreatModel(norm="linf", eps=1 / 255), steps=20)(model, images, labels)

`PGD(norm="linf", eps=1 / 255, steps=20)` is the same attack.
`run(...)` in place of the call also counts steps and passes of each sample. The model takes pixels in [0, 1]: the
normalisation belongs inside it, or eps means something else.

`DenseFGSM` and `DensePGD` attack models that predict a class for each pixel, and take masks in place of labels.
`FeaturePGD` attacks models that return features, and takes no labels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # what __init__.pyi lists, on first use
