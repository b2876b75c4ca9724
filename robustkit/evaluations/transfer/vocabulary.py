"""The words of transfer: `transfer(pgd(eps=1/255,steps=20),from=NAME)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...errors import ProtocolError
from ...protocol.condition import Condition, ConditionPattern
from ..kinds import is_attack, kind_of, vocabulary_of
from ..vocabulary import View, Vocabulary
from .condition import group_text, passed_of
from .measures import KEPT, METRICS, TERMS


class TransferWords(Vocabulary):
    """Adversarial images of one checkpoint, shown to another."""

    metrics = METRICS
    terms = TERMS
    telling = ("from",)

    def computed_with(self, checkpoint: str, text: str) -> tuple[str, str]:
        passed = passed_of(text)
        return (checkpoint, text) if passed is None else (passed.source, passed.attack)

    def label(self, text: str) -> str:
        passed = passed_of(text)
        if passed is None:
            return text
        of = f" from {passed.source}" if passed.source else ""
        return f"{vocabulary_of(kind_of(passed.attack)).label(passed.attack)}{of}"

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        passed = passed_of(text)
        if passed is None:
            return None
        inner = read(passed.attack)
        named = (("from", passed.source),) if passed.source else ()
        whole = f"{group_text(inner.text)[:-1]}{f',from={passed.source}' if passed.source else ''})"
        return ConditionPattern(whole, "transfer", "", (("under", inner.text), *named))

    def parse(self, text: str) -> Condition:
        raise ProtocolError(f"condition {text!r}: it takes the checkpoints of a run; ask for it by --transfer")

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        under = pattern.given.get("under", "")
        if not is_attack(kind_of(under)) or not pattern.given.get("from"):
            raise ProtocolError(f"condition {text!r}: expected such as transfer(pgd(eps=1/255,steps=20),from=NAME)")
        other(under)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        attack = other(pattern.given.get("under", "pgd"))
        yield from vocabulary_of(attack.name).command(attack, other)
        yield "--transfer"

    def group(self, text: str) -> str:
        passed = passed_of(text)
        return text if passed is None else group_text(passed.attack)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        passed = passed_of(text)
        return [text, *([passed.attack] if passed is not None and metric == KEPT.name else [])]

    def view(self, text: str) -> View | None:
        return None


VOCABULARY = TransferWords()
