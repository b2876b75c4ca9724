"""The words of maps of two objects: `two-object(map=agcam)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from ...protocol.condition import Condition, Value
from ...protocol.pattern import ConditionPattern
from ..vocabulary import Vocabulary
from .measures import ASKED, METRICS, SHARE, TERMS

KIND = "two-object"


class TwoObjectWords(Vocabulary):
    """A map that is asked for each of two classes."""

    parameters: ClassVar[Mapping[str, Value]] = {"map": "agcam"}
    metrics = METRICS
    terms = TERMS

    def parse(self, text: str) -> Condition:
        return replace(super().parse(text), draws=KIND, needs_truth=True)

    def label(self, text: str) -> str:
        return text.removeprefix(f"{KIND}(map=").removesuffix(")")

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "") for text, name in values if name in (SHARE.name, ASKED.name))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--cams", pattern.given.get("map", "agcam"))


VOCABULARY = TwoObjectWords()


def two_object_condition(method: str) -> Condition:
    """Return the condition of one method's maps."""
    return VOCABULARY.parse(f"{KIND}(map={method})")
