"""Explainers by name. Loads no torch."""

from __future__ import annotations

import difflib
from collections import UserDict
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .explainer import Explainer


class Lazy(UserDict[str, Any]):
    """Classes by name, each imported when it is asked for; made of places, such as `cam.attention:AGCAM`."""

    def __getitem__(self, name: str) -> Any:
        return resolve_name(self.data[name])


_CONTROLS = {
    "random": "cam.agnostic:RandomMap",
    "centre": "cam.agnostic:CentredGaussian",
    "full": "cam.agnostic:FullImage",
}
METHODS: Mapping[str, type[Explainer]] = Lazy(
    {
        "agcam": "cam.attention:AGCAM",
        "agcam-full": "cam.attention:AGCAMFull",
        "legrad": "cam.attention:LeGrad",
        "chefer": "cam.attention:Chefer",
        "rollout": "cam.attention:Rollout",
        "grad-cam": "cam.gradcam:GradCAM",
        "grad-cam-pp": "cam.gradcam:GradCAMPlusPlus",
        "layer-cam": "cam.gradcam:LayerCAM",
        "score-cam": "cam.gradcam:ScoreCAM",
        "rise": "cam.agnostic:RISE",
        "gradient": "cam.agnostic:InputGradient",
        "integrated-gradients": "cam.agnostic:IntegratedGradients",
        "smooth-grad": "cam.agnostic:SmoothGrad",
        **_CONTROLS,
    }
)
"""All explainers, the controls last; each is made from a model alone."""
CONTROLS = tuple(_CONTROLS)
"""Those that do not look at the image."""


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower().replace("+", "p")))


def method(name: str) -> type[Explainer]:
    """Return the explainer of this name, a class.

    Args:
        name: such as `grad-cam`, also `GradCAM`.

    Returns:
        A class of `METHODS`, made from a model.

    Raises:
        ValueError: an unknown name; it says which are near.

    Example:
        >>> method("GradCAM").__name__, method("grad-cam++").__name__
        ('GradCAM', 'GradCAMPlusPlus')
    """
    name = {_plain(known): known for known in METHODS}.get(_plain(name), name)
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=2)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
        raise ValueError(f"unknown method {name!r}{guess} known: {', '.join(METHODS)}")
    return METHODS[name]
