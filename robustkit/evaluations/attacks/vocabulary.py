"""The words of attacks: `pgd(eps=1/255,steps=20)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from ...display.numbers import pixels
from ...errors import ProtocolError, unknown
from ...protocol.card import Card, card_names, load_card
from ...protocol.pattern import ConditionPattern
from ...runs.manifest import Manifest
from ..kinds import EVERY_FAMILY
from ..vocabulary import Vocabulary

_NAMES = {"autoattack": "AutoAttack", "square": "Square", "segpgd": "SegPGD"}


class AttackWords(Vocabulary):
    """Attacks, by their names in the registry."""

    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    in_results = True
    expected = True

    def published_names(self) -> Sequence[str]:
        from attacks.registry import ATTACKS, DENSE_ATTACKS

        return (*ATTACKS, *DENSE_ATTACKS)

    def is_of_card(self, name: str) -> bool:
        return name in self.published_names()

    def text_under(self, name: str, card: Card) -> str:
        from .condition import parse_condition

        return parse_condition(name, card).text

    def title(self, text: str, manifest: Manifest) -> str:
        """Return `PGD-20 1/255`, as people say it; with the norm unless linf, and the units unless pixels."""
        claim, (name, _, inside) = manifest.claims[text], text.partition("(")
        given = dict(item.split("=", 1) for item in inside.rstrip(")").split(",") if "=" in item)
        budget = next((given[key] for key in ("steps", "queries") if key in given and name != "autoattack"), None)
        version = given.get("version", "standard")
        # A text names what differs from the card's attack beside its radius and budget.
        modified = given.keys() - {"eps", "norm", "version", *(["steps", "queries"] if budget else [])}
        words = [_NAMES.get(name, name.upper()) + (f"-{budget}" if budget else "")]
        words = ["modified", *words] if modified else words
        words += [version] if version != "standard" else []
        words += [] if claim.norm == "linf" else [claim.norm]
        words += [pixels(claim.eps, claim.norm)]
        words += [] if manifest.protocol.space == "pixels" else ["normalised"]
        return " ".join(words)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raises ProtocolError where the attack makes sense under no card that travels with the package, too."""
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
