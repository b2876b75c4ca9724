"""The words of the logit ledger: `ledger(pgd(eps=1/255,steps=20))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...errors import ProtocolError
from ...protocol.condition import ConditionPattern
from ..kinds import vocabulary_of
from ..vocabulary import Vocabulary
from .condition import under_of
from .measures import METRICS, TERMS


class LedgerWords(Vocabulary):
    """Why logits change from the clean images to those of another condition."""

    metrics = METRICS
    terms = TERMS

    def computed_with(self, checkpoint: str, text: str) -> tuple[str, str]:
        return checkpoint, under_of(text) or text

    def label(self, text: str) -> str:
        under = under_of(text) or text
        return vocabulary_of(under.partition("(")[0]).label(under)

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        under = under_of(text)
        if under is None:
            return None
        inner = read(under)
        return ConditionPattern(f"ledger({inner.text})", "ledger", "", (("under", inner.text),))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        under = pattern.given.get("under") or "ledger"
        inner = under.partition("(")[0]
        if inner == "clean" or not vocabulary_of(inner).shows(inner):
            raise ProtocolError(f"condition {text!r}: expected such as ledger(pgd(eps=1/255,steps=20))")
        other(under)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "pgd"))
        yield from vocabulary_of(under.name).command(under, other)
        yield "--watch-attention"


VOCABULARY = LedgerWords()
