"""Change one thing of an image, its colour, its outline or its background, and see whether the prediction flips.

A condition is `counterfactual(change=colour)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...errors import ProtocolError, unknown
from ...evaluations.condition import Named, Place, View
from ...evaluations.family import LazyFamily
from ...evaluations.maps import (
    Chosen,
    MapWords,
    chosen_of,
    method_text,
    methods_of,
    option_texts,
    split_options,
    with_options,
)
from ...evaluations.metrics import Metric, of_samples
from ...protocol.condition import Condition, ConditionPattern, Value, parse_parameters

FLIPPED = Metric("flipped", "flips %", 100, paired=True, binary=True, noun="predictions that flip")
FOLLOWED = Metric("followed", "flips to what was put in %", 100, paired=True, binary=True)
CHANGE = Metric(
    "mass_change", "change of mass on the object, points", 100, paired=True, least=-1, most=1, short="change, points"
)
BEFORE = Metric("mass_before", "mass on the object before %", 100, least=0, most=1)
RIGHT = replace(of_samples("changed_top1", "top-1 % of changed images"), short="top-1 %")


KIND, CHANGES = "counterfactual", ("colour", "shape", "background")


class CounterfactualWords(MapWords):
    """map: whose mass on the object is compared; empty for none."""

    name = "counterfactuals"
    claims = MapWords.claims._replace(under="with the {}")
    parameters: ClassVar[Mapping[str, Value]] = {"change": "", "map": ""}
    usual = ""
    metrics = (RIGHT, FLIPPED, FOLLOWED, BEFORE, CHANGE)

    def parse(self, text: str) -> Condition:
        plain, options = split_options(text, "")
        kind, parameters = parse_parameters(plain, self.parameters)
        if parameters["change"] not in CHANGES:
            raise ProtocolError(f"{text}: " + unknown("change", str(parameters["change"]), CHANGES))
        pairs = tuple((key, value) for key, value in parameters.items() if value)
        inside = ",".join(f"{key}={value}" for key, value in pairs)
        named = with_options(f"{kind}({inside})", options)
        return Condition(kind, named, pairs, payload=options, draws=KIND, needs_truth=True)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        condition = self.parse(text)
        parameters = dict(condition.parameters)
        method = method_text(str(parameters.get("map", "")), chosen_of(condition))
        return f"{parameters['change']} changed" + (f", maps by {method}" if method else "")

    def view(self, text: str) -> View:
        return View(self.label(text))

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name == FLIPPED.name)

    def extend(self, conditions: Sequence[Condition], data: Any) -> Sequence[Condition]:
        """Add each change of the images of such data, with the maps of each method that is asked for."""
        if data.changed(data.samples[0], CHANGES[0]) is None:
            return conditions
        methods = methods_of(conditions) or [("", ())]
        return (*conditions, *(each for method in methods for each in counterfactual_conditions(*method)))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--data-dir", "embedded:shapes-counterfactual")
        if named := self.map_of(pattern):
            yield from ("--cams", named)


VOCABULARY = CounterfactualWords()
FAMILY = LazyFamily(VOCABULARY)


def counterfactual_conditions(method: str = "", options: Chosen = ()) -> tuple[Condition, ...]:
    with_map = ",".join(["", f"map={method}", *option_texts(options)]) if method else ""
    return tuple(VOCABULARY.parse(f"{KIND}(change={change}{with_map})") for change in CHANGES)
