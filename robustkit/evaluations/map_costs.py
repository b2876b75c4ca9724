"""What a map costs by itself: passes of a sample. Loads no torch."""

from __future__ import annotations

from .cost import Cost
from .map_methods import CONTROLS, Chosen, value_of

CHANNELS = 512
"""What Score-CAM is expected to ask, a forward for each channel of a layer: ResNet-18's last one has so many."""


def map_with_logits(method: str, options: Chosen = (), targets: int = 1) -> Cost:
    """Return the passes of the maps of one or more classes, and of the logits that tell which class is predicted."""
    if method in CONTROLS:
        return Cost(0)
    alone = map_of_class(method, options)
    return Cost(alone.forwards + (1 if _turns(method, options) else 0), alone.backwards * targets)


def map_of_class(method: str, options: Chosen = ()) -> Cost:
    """Return the passes of a map of a class that is known."""
    if turns := _turns(method, options):
        return Cost(turns, 0 if method == "rise" else turns)
    if method == "score-cam":
        return Cost(1 + CHANNELS)
    return Cost(1, 0 if method == "rollout" else 1)


def _turns(method: str, options: Chosen) -> int:
    """Return how often a method asks that has no need of the image's own answer; 0 for others."""
    name = {"rise": "masks", "integrated-gradients": "steps", "smooth-grad": "samples"}.get(method)
    return 0 if name is None else int(value_of(method, name, options))
