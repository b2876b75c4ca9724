"""Explainers by name. Loads no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .explainer import Explainer


class Lazy(Mapping[str, type["Explainer"]]):
    """Classes by name, each imported when it is asked for. places: by name, such as `cam.agcam:AGCAM`."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> type[Explainer]:
        kind: type[Explainer] = resolve_name(self._places[name])
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


_CONTROLS = {
    "random": "cam.controls:RandomMap",
    "centre": "cam.controls:CentredGaussian",
    "full": "cam.controls:FullImage",
}
METHODS: Mapping[str, type[Explainer]] = Lazy(
    {
        "agcam": "cam.agcam:AGCAM",
        "agcam-full": "cam.agcam:AGCAMFull",
        "legrad": "cam.rollout:LeGrad",
        "chefer": "cam.rollout:Chefer",
        "rollout": "cam.rollout:Rollout",
        "grad-cam": "cam.gradcam:GradCAM",
        "grad-cam-pp": "cam.gradcam:GradCAMPlusPlus",
        "layer-cam": "cam.gradcam:LayerCAM",
        "score-cam": "cam.perturbation:ScoreCAM",
        "rise": "cam.perturbation:RISE",
        "gradient": "cam.gradients:InputGradient",
        "integrated-gradients": "cam.gradients:IntegratedGradients",
        "smooth-grad": "cam.gradients:SmoothGrad",
        **_CONTROLS,
    }
)
"""All explainers, the controls last; each is made from a model alone."""
CONTROLS = tuple(_CONTROLS)
"""Those that do not look at the image."""


def method(name: str) -> type[Explainer]:
    """Return the explainer of this name. ValueError for an unknown one, with near names."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=2)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
        raise ValueError(f"unknown method {name!r}{guess} known: {', '.join(METHODS)}")
    return METHODS[name]
