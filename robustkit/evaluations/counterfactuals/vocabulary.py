"""The words of changed images: `counterfactual(change=colour)`, `counterfactual(change=shape,map=agcam)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, cast

from ...errors import ProtocolError, unknown
from ...protocol.condition import Condition, ConditionPattern, Value, parse_parameters
from ..map_methods import Chosen, check_method, method_text, shown, split_options, with_options
from ..vocabulary import View, Vocabulary
from .measures import FLIPPED, METRICS, TERMS

KIND, CHANGES = "counterfactual", ("colour", "shape", "background")


class CounterfactualWords(Vocabulary):
    """One thing of an image is changed. map: whose mass on the object is compared; empty for none."""

    parameters: ClassVar[Mapping[str, Value]] = {"change": "", "map": ""}
    metrics = METRICS
    terms = TERMS

    def parse(self, text: str) -> Condition:
        plain, options = split_options(text, "")
        kind, given = parse_parameters(plain, self.parameters)
        if given["change"] not in CHANGES:
            raise ProtocolError(f"{text}: " + unknown("change", str(given["change"]), CHANGES))
        kept = tuple((key, value) for key, value in given.items() if value)
        inside = ",".join(f"{key}={value}" for key, value in kept)
        named = with_options(f"{kind}({inside})", options)
        return Condition(kind, named, kept, payload=options, draws=KIND, needs_truth=True)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        super().check(pattern, text, other)
        if "map" in pattern.given:
            check_method(pattern.given["map"], text)

    def label(self, text: str) -> str:
        condition = self.parse(text)
        given = dict(condition.parameters)
        method = method_text(str(given.get("map", "")), chosen_of(condition))
        return f"{given['change']} changed" + (f", maps by {method}" if method else "")

    def view(self, text: str) -> View:
        return View(self.label(text))

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name == FLIPPED.name)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--data-dir", "embedded:shapes-counterfactual")
        if method := pattern.given.get("map", ""):
            own = ",".join(f"{key}={value}" for key, value in pattern.given.items() if key not in ("map", "change"))
            yield from ("--cams", f"{method}({own})" if own else method)


VOCABULARY = CounterfactualWords()


def counterfactual_conditions(method: str = "", options: Chosen = ()) -> tuple[Condition, ...]:
    """Return a condition for each change. method: of the maps whose mass is compared, with options; empty for none."""
    with_map = "".join([f",map={method}", *(f",{each}" for each in shown(options))]) if method else ""
    return tuple(VOCABULARY.parse(f"{KIND}(change={change}{with_map})") for change in CHANGES)


def chosen_of(condition: Condition) -> Chosen:
    """Return the method's own options."""
    return cast("Chosen", condition.payload)
