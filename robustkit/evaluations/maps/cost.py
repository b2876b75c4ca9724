"""What maps and their scores cost: passes of a sample. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.card import Card
from ...protocol.condition import Condition
from ..cost import Cost
from ..family import family_of
from ..map_methods import FULL, value_of
from .condition import MapSpec, explained_of

AGAIN = 5 + 8 + 10
"""Maps made again: with five redrawn heads, eight stages of the cascade, and ten noisy copies."""
ABPC, AREAS, ROAD = Cost(18), Cost(54), Cost(18)
"""What is asked of an image for a map: for ABPC, for insertion with deletion, and for ROAD."""
WHOLE, BLURRED, HIDDEN = Cost(1), Cost(1), Cost(32)
"""What is asked once for all maps of an image: where their curves begin and end, and for infidelity. `full`, which is
there with every map, has it in its account. One image without anything is asked for a whole shard, and counts as
nothing.
"""
CHANNELS = 512
"""What Score-CAM is expected to ask, a forward for each channel of a layer: ResNet-18's last one has so many."""


def cost_lines(costs: Mapping[Condition, Cost]) -> list[str]:
    """Return a line on what the controls cost: nothing for themselves, but the model is asked what they are worth."""
    specs = {condition: explained_of(condition) for condition in costs}
    controls = [costs[condition] for condition, spec in specs.items() if spec is not None and spec.is_control]
    if not controls:
        return []
    every = sum(costs.values(), Cost(0))
    tested = any(spec is not None and spec.faithfulness != "none" for spec in specs.values())
    saved = "; --faithfulness none leaves out the test of maps on the model" if tested else ""
    return [f"maps: {sum(controls, Cost(0))} of these {every} are for controls, which do not look at the image{saved}"]


def map_cost(condition: Condition, card: Card, classes: int) -> Cost:
    """Return the passes of a map and its scores, or of its stability under another condition."""
    spec = explained_of(condition)
    if spec is None:
        return Cost()
    alone = _alone(spec)
    if (under := condition.under) is not None:
        return alone * 2 + family_of(under.name).cost(under, card, classes)
    constant, tested = spec.method == FULL, spec.faithfulness == "all"
    total = alone
    if spec.faithfulness != "none" and not constant:
        total = total + ABPC
    if tested:
        road = ROAD * 0.5 if constant else ROAD  # a constant map has one order, from both ends
        total = total + AREAS + road + (Cost(0) if spec.is_control else _again(spec) * AGAIN)
    if constant:
        total = total + WHOLE + (BLURRED + HIDDEN if tested else Cost(0))
    return total


def _alone(spec: MapSpec) -> Cost:
    """Return the passes of a map by itself, with the logits."""
    if spec.is_control:
        return Cost(0)
    return _again(spec) + (Cost(1) if _turns(spec) else Cost(0))


def _again(spec: MapSpec) -> Cost:
    """Return the passes of a map of a class that is known."""
    if turns := _turns(spec):
        return Cost(turns, 0 if spec.method == "rise" else turns)
    if spec.method == "score-cam":
        return Cost(1 + CHANNELS)
    return Cost(1, 0 if spec.method == "rollout" else 1)


def _turns(spec: MapSpec) -> int:
    """Return how often a method asks that has no need of the image's own answer; 0 for others."""
    name = {"rise": "masks", "integrated-gradients": "steps", "smooth-grad": "samples"}.get(spec.method)
    return 0 if name is None else int(value_of(spec.method, name, spec.options))
