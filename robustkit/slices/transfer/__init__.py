"""Transfer: adversarial images that were found for one checkpoint, shown to the others.

A condition is `transfer(pgd(…),from=…)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ...errors import ProtocolError
from ...evaluations.condition import UNDER_ATTACK, Named, Place, Vocabulary, is_attack, kind_of, vocabulary_of, words_of
from ...evaluations.family import LazyFamily
from ...evaluations.metrics import Metric
from ...protocol.condition import Condition, ConditionPattern

_START, _FROM = "transfer(", ",from="  # no attack's text has the second; a checkpoint's name may


class Passed(NamedTuple):
    """An attack's condition and the checkpoint that it was found for; empty where a group is meant."""

    attack: str
    source: str


def transfer_condition(attack: Condition, source: str) -> Condition:
    """Return the condition of the adversarial images that an attack finds for a checkpoint."""
    text = f"{_START}{attack.text}{_FROM}{source})"
    return Condition("transfer", text, under=attack, source=source, group=group_text(attack.text))


def group_text(attack: str) -> str:
    return f"{_START}{attack})"


def passed_of(text: str) -> Passed | None:
    """Return the parts of a condition's text; None for other conditions."""
    if not (text.startswith(_START) and text.endswith(")")):
        return None
    attack, _, source = text[len(_START) : -1].partition(_FROM)
    return Passed(attack, source)


ACCURACY = Metric("transfer_accuracy", "transfer accuracy %", 100, 1, binary=True, share=True)
SAME_VERDICT = Metric("verdicts_kept", "verdicts kept %", 100, 1, binary=True, share=True)


class TransferWords(Vocabulary):
    name = "transfer"
    claims = UNDER_ATTACK
    metrics = (ACCURACY, SAME_VERDICT)
    telling = ("from",)
    levels = r",from=.*(?=\)$)"

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        passed = passed_of(text)
        if passed is None:
            return text
        words, source = words_of(passed.attack), f" from {passed.source}" if passed.source else ""
        if place == "badge":
            return f"{words.label(passed.attack, place, manifest)}, found for {passed.source}"
        if place == "axis":
            return words.label(passed.attack) + source
        return f"transfer of {words.label(passed.attack, 'table', manifest)}" + ("," + source if source else "")

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

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        passed = passed_of(text)
        return [text, *([passed.attack] if passed is not None and metric == SAME_VERDICT.name else [])]


VOCABULARY = TransferWords()
FAMILY = LazyFamily(VOCABULARY)
