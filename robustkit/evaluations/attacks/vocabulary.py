"""The words of attacks: `pgd(eps=1/255,steps=20)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.card import card_names, load_card
from ...protocol.pattern import ConditionPattern
from ..vocabulary import FOLDERS, Vocabulary


class AttackWords(Vocabulary):
    """Attacks, by their names in the registry."""

    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    in_results = True

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raises ProtocolError where the attack makes sense under no card that travels with the package, too."""
        from attacks.registry import ATTACKS, DENSE_ATTACKS

        from .condition import parse_condition

        if pattern.name not in {**ATTACKS, **DENSE_ATTACKS}:
            every = dict.fromkeys(("clean", *ATTACKS, *DENSE_ATTACKS, *FOLDERS))
            raise ProtocolError(unknown("condition", pattern.name, tuple(every)))
        faults = []
        for card in dict.fromkeys(("standard" if pattern.name in ATTACKS else "segmentation", *card_names())):
            try:
                parse_condition(pattern.text, load_card(card))
                return
            except ProtocolError as fault:
                faults.append(fault)
        raise faults[0]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = AttackWords()
