"""The words of attacks: `pgd(eps=1/255,steps=20)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.card import Card, card_names, load_card
from ...protocol.condition import CLEAN, ON, ConditionPattern, part_of
from ..kinds import EVERY_FAMILY, words_of
from ..metric import Metric
from ..pattern import pattern_of
from ..supported import WEIGHT, plain_name, supported
from ..vocabulary import Vocabulary
from .on_corrupted import UNDER, starts_from
from .terms import FOUND, TERMS, TOP1


class AttackWords(Vocabulary):
    """Attacks, by their names in the registry."""

    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    telling = (UNDER, ON, "only")
    in_results = True
    metrics: ClassVar[tuple[Metric, ...]] = (FOUND, supported(TOP1), WEIGHT)
    terms = TERMS
    expected = True

    def starts_from(self, text: str) -> str:
        return starts_from(text)

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the strongest attack with results at each radius, on clean images and on those of each corruption; of
        equally strong ones the last.
        """
        radii: dict[str, list[str]] = {}
        for text in (text for text, name in values if name == metric):
            given = {**self.defaults, **pattern_of(text).given}
            start = starts_from(text)
            beneath = "" if start == CLEAN.text else f" on {words_of(start).label(start)}"
            beneath += f", {given[ON]} samples" if ON in given else ""
            radii.setdefault(f"{given['norm']} {given.get('eps', '')}".strip() + beneath, []).append(text)
        for radius, texts in radii.items():
            strongest = min(reversed(texts), key=lambda text: values[text, metric])
            which = f"lowest under {len(texts)} attacks" if len(texts) > 1 else "the attack"
            yield strongest, metric, f"{which} at {radius}"

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([supporting(text, conditions)] if plain_name(metric) else [])]

    def published_names(self) -> Sequence[str]:
        from attacks.registry import ATTACKS, DENSE_ATTACKS

        return (*ATTACKS, *DENSE_ATTACKS)

    def is_of_card(self, name: str) -> bool:
        return name in self.published_names()

    def text_under(self, name: str, card: Card) -> str:
        from .condition import parse_condition

        return parse_condition(name, card).text

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError also where the attack makes sense under none of the cards that come with the package."""
        from .condition import parse_condition
        from .registry import EVERY_ATTACK, EVERY_DENSE_ATTACK

        names = (*EVERY_ATTACK, *EVERY_DENSE_ATTACK)
        if pattern.name not in names:
            raise ProtocolError(unknown("condition", pattern.name, {*names, *EVERY_FAMILY}))
        faults = []
        for card in dict.fromkeys(("standard" if pattern.name in EVERY_ATTACK else "segmentation", *card_names())):
            try:
                parse_condition(pattern.text, load_card(card))
                return
            except ProtocolError as fault:
                faults.append(fault)
        raise faults[0]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = AttackWords()


def supporting(text: str, conditions: Iterable[str]) -> str:
    """Return which condition supports the figure of an attack on a part of the samples: the last of the run that is an
    attack on all of them in the same norm, of the same radius and on the same images; else those images without one.

    The rule looks at no figure: the shortest of several intervals would hold the truth less often than it says.
    """

    def kind(condition: str) -> tuple[str, str, str]:
        given = {**VOCABULARY.defaults, **pattern_of(condition).given}
        return given["norm"], given.get("eps", ""), starts_from(condition)

    whole = [other for other in conditions if words_of(other) is VOCABULARY and not part_of(other)]
    return next((other for other in reversed(whole) if kind(other) == kind(text)), starts_from(text))
