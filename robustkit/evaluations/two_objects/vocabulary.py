"""The words of maps of two objects: `two-object(map=agcam)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, cast

from ...protocol.condition import Condition, ConditionPattern, Value
from ..map_methods import Chosen, check_method, shown, split_options, with_options
from ..vocabulary import Vocabulary
from .measures import ASKED, METRICS, SHARE, TERMS

KIND = "two-object"


class TwoObjectWords(Vocabulary):
    """A map that is asked for each of two classes."""

    parameters: ClassVar[Mapping[str, Value]] = {"map": "agcam"}
    metrics = METRICS
    terms = TERMS

    def parse(self, text: str) -> Condition:
        plain, options = split_options(text, "agcam")
        condition = super().parse(plain)
        named = with_options(condition.text, options)
        return replace(condition, text=named, payload=options, draws=KIND, needs_truth=True)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        super().check(pattern, text, other)
        check_method(pattern.given.get("map", "agcam"), text)

    def label(self, text: str) -> str:
        return text.removeprefix(f"{KIND}(map=").removesuffix(")")

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name in (SHARE.name, ASKED.name))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        own = ",".join(f"{key}={value}" for key, value in pattern.given.items() if key != "map")
        method = pattern.given.get("map", "agcam")
        yield from ("--attacks", "none", "--cams", f"{method}({own})" if own else method)


VOCABULARY = TwoObjectWords()


def two_object_condition(method: str, options: Chosen = ()) -> Condition:
    """Return the condition of one method's maps."""
    return VOCABULARY.parse(f"{KIND}({','.join([f'map={method}', *shown(options)])})")


def chosen_of(condition: Condition) -> Chosen:
    """Return the method's own options."""
    return cast("Chosen", condition.payload)
