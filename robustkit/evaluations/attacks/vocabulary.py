"""The words of attacks: `pgd(eps=1/255,steps=20)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.card import card_names, load_card
from ...protocol.pattern import ConditionPattern
from ..vocabulary import Vocabulary, kinds


class AttackWords(Vocabulary):
    """Attacks, by their names in the registry."""

    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    in_results = True

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raises ProtocolError where the attack makes sense under no card that travels with the package, too."""
        from .condition import parse_condition
        from .registry import EVERY_ATTACK, EVERY_DENSE_ATTACK

        names = dict.fromkeys((*EVERY_ATTACK, *EVERY_DENSE_ATTACK))
        if pattern.name not in names:
            raise ProtocolError(unknown("condition", pattern.name, {*names, *kinds()}))
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
