"""The words of attacks in two phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ...errors import ProtocolError
from ...protocol.condition import Condition, ConditionPattern
from ..kinds import kind_of, vocabulary_of
from ..vocabulary import View, Vocabulary
from .condition import phases_of
from .measures import ESTIMATE, METRICS, TERMS


class TwoPhaseWords(Vocabulary):
    """An attack in stages, whose last stages some samples alone go through."""

    metrics = METRICS
    terms = TERMS
    telling = ("m", "first")

    def label(self, text: str) -> str:
        phases = phases_of(text)
        if phases is None:
            return text
        return f"{vocabulary_of(kind_of(phases.attack)).label(phases.attack)}, two-phase(m={phases.m})"

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        phases = phases_of(text)
        if phases is None:
            return None
        attack = read(phases.attack).text
        whole = f"two-phase({attack},first={phases.first},m={phases.m})"
        parameters = (("under", attack), ("first", phases.first), ("m", str(phases.m)))
        return ConditionPattern(whole, "two-phase", "", parameters)

    def parse(self, text: str) -> Condition:
        raise ProtocolError(f'condition {text!r}: ask for it by --attacks "autoattack(second=200)"')

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if phases_of(pattern.text) is None:
            example = "two-phase(autoattack(eps=1/255,version=standard),first=apgd-ce,m=200)"
            raise ProtocolError(f"condition {text!r}: expected such as {example}")
        other(pattern.given["under"])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        given = pattern.given
        inside = given["under"].removesuffix(")")
        yield from ("--attacks", f"{inside},first={given['first']},second={given['m']})")

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "the whole attack, estimated") for text, name in values if name == ESTIMATE.name)

    def estimated(self, text: str, metric: str) -> str:
        phases = phases_of(text)
        return phases.attack if phases is not None and metric == ESTIMATE.name else ""

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text]

    def view(self, text: str) -> View | None:
        return None


VOCABULARY = TwoPhaseWords()
