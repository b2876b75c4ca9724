"""Rotations and translations: the worst of a grid of angles and shifts.

A condition is `spatial(degrees=30,shift=0.1)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...evaluations.attacks import attack_parts
from ...evaluations.condition import UNDER_ATTACK, Named, Place, Vocabulary
from ...evaluations.family import LazyFamily
from ...evaluations.metrics import Metric
from ...protocol.condition import ConditionPattern, Value

WITHIN = Metric("within(", "accuracy within an angle, %", 100, 1, binary=True, parametric=True)
"""`within(12)`: right under all moves of at most 12 degrees."""


class SpatialWords(Vocabulary):
    name = "rotations and translations"
    claims = UNDER_ATTACK._replace(under="under a {}")
    parameters: ClassVar[Mapping[str, Value]] = {
        "norm": "linf",
        "degrees": 30.0,
        "shift": 0.1,
        "angles": 31,
        "shifts": 5,
        "draws": 0,
        "border": "black",
        "early_stop": True,
        "engine": "robustkit",
    }
    metrics = (WITHIN,)
    in_results = True

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        parameters = {key: str(value) for key, value in self.parameters.items()} | attack_parts(text)[1]
        drawn = parameters["draws"] != "0"  # else a grid of one has the image as it is
        degrees, shift = (
            float(parameters[name]) * (drawn or parameters[count] != "1")
            for name, count in (("degrees", "angles"), ("shift", "shifts"))
        )
        of, together = (" of", " and ") if place == "sentence" else ("", ", ")
        parts = [f"rotation{of} ±{degrees:g}°"] * bool(degrees or not shift)
        parts += [f"shift{of} ±{100 * shift:g} %"] * bool(shift)
        more = [f"worst of {parameters['draws']} draws"] * drawn
        more += [f"{parameters['border']} border"] * (parameters["border"] != "black")
        return ", ".join([together.join(parts), *more])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = SpatialWords()
FAMILY = LazyFamily(VOCABULARY)
