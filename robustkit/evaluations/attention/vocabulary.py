"""The words of watched attention: `attention(clean)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...errors import ProtocolError
from ...protocol.condition import ConditionPattern
from ..kinds import vocabulary_of
from ..vocabulary import Vocabulary
from .condition import attention_text, under_of
from .measures import METRICS, TERMS


class AttentionWords(Vocabulary):
    """What heads do on the images of another condition."""

    metrics = METRICS
    terms = TERMS

    def computed_with(self, checkpoint: str, text: str) -> tuple[str, str]:
        return checkpoint, under_of(text) or text

    def label(self, text: str) -> str:
        under = under_of(text) or text
        return vocabulary_of(under.partition("(")[0]).label(under)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([attention_text("clean")] if metric.endswith("_change") else [])]

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        under = under_of(text)
        if under is None:
            return None
        inner = read(under)
        return ConditionPattern(f"attention({inner.text})", "attention", "", (("under", inner.text),))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        under = pattern.given.get("under") or "attention"
        inner = under.partition("(")[0]
        words = vocabulary_of(inner)
        if not words.shows(inner):
            raise ProtocolError(f"condition {text!r}: expected such as attention(clean)")
        other(under)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "clean"))
        yield from vocabulary_of(under.name).command(under, other)
        yield "--watch-attention"


VOCABULARY = AttentionWords()
