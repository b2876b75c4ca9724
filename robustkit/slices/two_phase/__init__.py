"""Estimate what an attack in stages leaves standing, from its last stages on some of the samples alone.

A condition is `two-phase(autoattack(…),second=200)`. This module loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ...errors import ProtocolError
from ...evaluations.condition import UNDER_ATTACK, Named, Place, Vocabulary, words_of
from ...evaluations.family import LazyFamily
from ...evaluations.metrics import ESTIMATED, Metric
from ...protocol.condition import Condition, ConditionPattern

_START = "two-phase("
_SOME = re.compile(r"0*[1-9]\d*|(?:0*[1-9]\d?|100)%")


class Phases(NamedTuple):
    """The text of the whole attack, the stages that all samples go through, and the most samples for the others: a
    number, or a share of those that stand, such as `10%`."""

    attack: str
    first: str
    m: str

    def count_of(self, standing: int) -> int:
        """Return how many of the samples that stand are drawn, at most; of a share, rounded up."""
        return -(-int(self.m[:-1]) * standing // 100) if self.m.endswith("%") else int(self.m)


def two_phase_condition(first: Condition, rest: Condition, attack: Condition, stages: str, m: str) -> Condition:
    """Return the condition that runs `rest` on m samples of those that `first`, with its stages, leaves standing."""
    text, most = f"{_START}{attack.text},first={stages},m={m})", int(m) if m.isdecimal() else 0
    return Condition("two-phase", text, under=rest, after=first, draws=text, most=most, whole_shard=True)


def phases_of(text: str) -> Phases | None:
    attack, first, rest = text.removeprefix(_START).removesuffix(")").rpartition(",first=")
    stages, _, m = rest.rpartition(",m=")
    if not (text.startswith(f"{_START}autoattack(") and first and _SOME.fullmatch(m)):
        return None
    return Phases(attack, stages, m)


def is_some(m: str) -> bool:
    """Return whether a text says how many samples, such as `200` or `10%`."""
    return bool(_SOME.fullmatch(m))


_MORE = "a larger second phase (second), or more samples for both"
ESTIMATE = Metric(
    *(f"{ESTIMATED}top1", "robust accuracy, estimated %", 100, 1),
    share=True,
    noun="estimated robust accuracy",
    narrowed_by=_MORE,
)
RIGHT = Metric("kept_in_second", "of those drawn, still correct %", 100, 1, binary=True, share=True, narrowed_by=_MORE)


class TwoPhaseWords(Vocabulary):
    name = "two phases"
    claims = UNDER_ATTACK
    metrics = (ESTIMATE, RIGHT)
    telling = ("m", "first")

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        phases = phases_of(text)
        if phases is None:
            return text
        attack = words_of(phases.attack).label(phases.attack, "axis" if place == "axis" else "table", manifest)
        return f"{attack}, two-phase(m={phases.m})"

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        phases = phases_of(text)
        if phases is None:
            return None
        attack = read(phases.attack).text
        whole = f"two-phase({attack},first={phases.first},m={phases.m})"
        parameters = (("under", attack), ("first", phases.first), ("m", phases.m))
        return ConditionPattern(whole, "two-phase", "", parameters)

    def parse(self, text: str) -> Condition:
        raise ProtocolError(f'condition {text!r}: ask for it by --attacks "autoattack(second=200)"')

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if phases_of(pattern.text) is None:
            example = "two-phase(autoattack(eps=1/255,version=standard),first=apgd-ce,m=200)"
            raise ProtocolError(f"condition {text!r}: expected such as {example}")
        other(pattern.given["under"])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        parameters = pattern.given
        inside = parameters["under"].removesuffix(")")
        yield from ("--attacks", f"{inside},first={parameters['first']},second={parameters['m']})")

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "the whole attack, estimated") for text, name in values if name == ESTIMATE.name)


VOCABULARY = TwoPhaseWords()
FAMILY = LazyFamily(VOCABULARY)
