"""What maps and their scores cost: passes of a sample. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.card import Card
from ...protocol.condition import Condition
from ..cost import Cost
from ..family import family_of
from ..map_costs import map_of_class, map_with_logits
from ..map_methods import FULL
from .condition import explained_of

AGAIN = 5 + 8 + 10
"""Maps made again: with five redrawn heads, eight stages of the cascade, and ten noisy copies."""
ABPC, AREAS, ROAD = Cost(18), Cost(54), Cost(18)
"""What is asked of an image for a map: for ABPC, for insertion with deletion, and for ROAD."""
WHOLE, BLURRED, HIDDEN = Cost(1), Cost(1), Cost(32)
"""What is asked once for all maps of an image: where their curves begin and end, and for infidelity. `full`, which is
there with every map, has it in its account. One image without anything is asked for a whole shard, and counts as
nothing.
"""


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
    alone = map_with_logits(spec.method, spec.options)
    if (under := condition.under) is not None:
        return alone * 2 + family_of(under.name).cost(under, card, classes)
    again = map_of_class(spec.method, spec.options)
    constant, tested = spec.method == FULL, spec.faithfulness == "all"
    total = alone
    if spec.faithfulness != "none" and not constant:
        total = total + ABPC
    if tested:
        road = ROAD * 0.5 if constant else ROAD  # a constant map has one order, from both ends
        total = total + AREAS + road + (Cost(0) if spec.is_control else again * AGAIN)
    if constant:
        total = total + WHOLE + (BLURRED + HIDDEN if tested else Cost(0))
    return total
