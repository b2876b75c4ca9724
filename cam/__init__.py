"""Class activation maps for vision models, and scores of maps: torch and OpenCV, usable alone.

    from cam import AGCAM

    with AGCAM(model) as explain:
        maps = explain(images)  # (B, H, W) in [0, 1], for the predicted classes

`explain.explain(...)` in place of the call also returns the logits, the targets and which maps are degenerate.
`RandomMap`, `CentredGaussian` and `FullImage` do not look at the image: scores mean little without theirs.

`cam.localisation` scores maps against masks and boxes and compares two maps, `cam.boxes` reads boxes and carries them
through a resize, `cam.faithfulness` removes what a map marks and fills it, `cam.sensitivity` changes image and model.
"""

from __future__ import annotations

import difflib

from .agcam import AGCAM, AGCAMFull
from .controls import CentredGaussian, Control, FullImage, RandomMap
from .explainer import Explainer, Explanation, Rng, TorchRng
from .gradcam import GradCAM, GradCAMPlusPlus, LayerCAM
from .gradients import InputGradient, IntegratedGradients, SmoothGrad
from .perturbation import RISE, ScoreCAM
from .rollout import Chefer, LeGrad, Rollout

__all__ = [
    "AGCAM",
    "METHODS",
    "RISE",
    "AGCAMFull",
    "CentredGaussian",
    "Chefer",
    "Control",
    "Explainer",
    "Explanation",
    "FullImage",
    "GradCAM",
    "GradCAMPlusPlus",
    "InputGradient",
    "IntegratedGradients",
    "LayerCAM",
    "LeGrad",
    "RandomMap",
    "Rng",
    "Rollout",
    "ScoreCAM",
    "SmoothGrad",
    "TorchRng",
    "method",
]

METHODS: dict[str, type[Explainer]] = {
    kind.name: kind
    for kind in (
        *(AGCAM, AGCAMFull, LeGrad, Chefer, Rollout),
        *(GradCAM, GradCAMPlusPlus, LayerCAM, ScoreCAM, RISE),
        *(InputGradient, IntegratedGradients, SmoothGrad),
        *(RandomMap, CentredGaussian, FullImage),
    )
}
"""All explainers by name, the controls last; each is made from a model alone."""


def method(name: str) -> type[Explainer]:
    """Return the explainer of this name. ValueError for an unknown one, with near names."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=2)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
        raise ValueError(f"unknown method {name!r}{guess} known: {', '.join(METHODS)}")
    return METHODS[name]
