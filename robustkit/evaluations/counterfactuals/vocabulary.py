"""The words of changed images: `counterfactual(change=colour)`, `counterfactual(change=shape,map=agcam)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.condition import Condition, Value
from ...protocol.parameters import parse_parameters
from ...protocol.pattern import ConditionPattern
from ..map_methods import check_method
from ..vocabulary import View, Vocabulary
from .measures import FLIPPED, METRICS, TERMS

KIND, CHANGES = "counterfactual", ("colour", "shape", "background")


class CounterfactualWords(Vocabulary):
    """One thing of an image is changed. map: whose mass on the object is compared; empty for none."""

    parameters: ClassVar[Mapping[str, Value]] = {"change": "", "map": ""}
    metrics = METRICS
    terms = TERMS

    def parse(self, text: str) -> Condition:
        kind, given = parse_parameters(text, self.parameters)
        if given["change"] not in CHANGES:
            raise ProtocolError(f"{text}: " + unknown("change", str(given["change"]), CHANGES))
        kept = tuple((key, value) for key, value in given.items() if value)
        inside = ",".join(f"{key}={value}" for key, value in kept)
        return Condition(kind, f"{kind}({inside})", kept, draws=KIND, needs_truth=True)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        super().check(pattern, text, other)
        if "map" in pattern.given:
            check_method(pattern.given["map"], text)

    def label(self, text: str) -> str:
        given = dict(self.parse(text).parameters)
        return f"{given['change']} changed" + (f", maps by {given['map']}" if "map" in given else "")

    def view(self, text: str) -> View:
        return View(self.label(text))

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name == FLIPPED.name)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--data-dir", "embedded:shapes-counterfactual")
        yield from (word for method in [pattern.given.get("map", "")] if method for word in ("--cams", method))


VOCABULARY = CounterfactualWords()


def counterfactual_conditions(method: str = "") -> tuple[Condition, ...]:
    """Return a condition for each change. method: of the maps whose mass is compared; empty for none."""
    with_map = f",map={method}" if method else ""
    return tuple(VOCABULARY.parse(f"{KIND}(change={change}{with_map})") for change in CHANGES)
