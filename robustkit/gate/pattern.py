"""A condition's text in a rule into what it names, and which conditions of a run fit it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ..errors import ProtocolError, unknown
from ..evaluations.attention.condition import under_of
from ..evaluations.corruptions.sets import SETS
from ..evaluations.maps.condition import MODES, parse_explained
from ..protocol.card import card_names, load_card, number

_DEFAULTS = {
    "cam": {"threshold": "0.5", "target": "predicted", "faithfulness": "abpc"},
    "corruption": {"preset": "imagenet", "variant": "hendrycks", "source": "memory"},
    "attack": {"norm": "linf", "engine": "robustkit"},
}
"""What the text of a condition leaves out."""
_SEVERAL = re.compile(r"severity=([1-5])(?:\+[1-5])+(?=[,)])")


@dataclass(frozen=True)
class Wanted:
    """A condition as a rule names it: those of a run fit that have every parameter given here.

    what: the corruption or the map; empty for others.
    """

    text: str
    name: str
    what: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Wanted:
        """The parts of a condition's text, whether it makes sense or not."""
        if (under := under_of(text.strip())) is not None:
            inner = cls.of(under)
            return cls(f"attention({inner.text})", "attention", "", (("under", inner.text),))
        form = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
        if not form:
            return cls(text, text)
        items = [item.strip() for item in re.split(r",(?![^(]*\))", form[2] or "") if item.strip()]
        split = [item.partition("=") for item in items]
        pairs = tuple((key.strip(), value.strip()) for key, equals, value in split if equals)
        what = ",".join(key for key, equals, _ in split if not equals)
        name = form[1].lower()
        plain = f"{name}({','.join(['='.join(pair) for pair in ((what,), *pairs) if any(pair)])})"
        return cls(plain if items else name, name, what, pairs)

    def fits(self, condition: str) -> bool:
        """Whether a run's condition is one that is meant."""
        other = Wanted.of(condition)
        if (self.name, self.what) != (other.name, other.what):
            return False
        theirs = self._defaults | dict(other.parameters)
        of_severities = self.name == "corruption" or self.name in SETS
        if of_severities and "severity" in theirs and "severity" not in dict(self.parameters):
            return False  # without a severity, the mean over all is meant
        return all(key in theirs and _equal(key, value, theirs[key]) for key, value in self.parameters)

    def is_exactly(self, condition: str) -> bool:
        """Whether a run's condition is this one, with nothing more."""
        return self.fits(condition) and Wanted.of(condition).fits(self.text)

    @property
    def _defaults(self) -> dict[str, str]:
        kind = "cam" if self.name == "stability" else "corruption" if self.name in SETS else self.name
        return _DEFAULTS.get(kind, {} if self.name in ("clean", "attention") else _DEFAULTS["attack"])


def check_condition(text: str) -> Wanted:
    """A condition of a rule, with the names that it may have.

    Raises:
        ProtocolError: no such condition, parameter or value.
    """
    from attacks.registry import ATTACKS, DENSE_ATTACKS

    from ..evaluations.corruptions.condition import parse_corrupted

    wanted = Wanted.of(text)
    given, pairs = dict(wanted.parameters), [f"{key}={value}" for key, value in wanted.parameters]
    attacks = {**ATTACKS, **DENSE_ATTACKS}
    if wanted.name in attacks:
        _check_attack(wanted)
    elif wanted.name == "clean":
        if wanted.text != "clean":
            raise ProtocolError(f"condition {text!r}: clean takes no parameters")
    elif wanted.name in SETS:
        if wanted.what:
            raise ProtocolError(f"condition {text!r}: a set has its own corruptions; leave {wanted.what} out")
        parse_corrupted(_SEVERAL.sub(r"severity=\1", f"corruption({','.join(['fog', *pairs])})"))
    elif wanted.name == "corruption":
        # A mean over some severities, severity=1+2+3, is a condition of results only.
        parse_corrupted(_SEVERAL.sub(r"severity=\1", wanted.text))
    elif wanted.name in ("cam", "stability"):
        if given.get("mode", "mask") not in MODES:
            raise ProtocolError(f"{text}: " + unknown("mode", given["mode"], MODES))
        kept = [pair for pair in pairs if not pair.startswith("mode=")]
        parse_explained(f"{wanted.name}({','.join([wanted.what, *kept])})")
        if "under" in given:
            check_condition(given["under"])
    elif wanted.name == "attention":
        inner = Wanted.of(given.get("under") or "attention")
        if inner.name in ("attention", "cam", "stability", *SETS):
            raise ProtocolError(f"condition {text!r}: expected such as attention(clean)")
        check_condition(inner.text)
    else:
        known = ("clean", *attacks, "corruption", *SETS, "cam", "stability", "attention")
        raise ProtocolError(unknown("condition", wanted.name, known))
    return wanted


def _check_attack(wanted: Wanted) -> None:
    """Raises ProtocolError where the attack makes sense under no card that travels with the package."""
    from attacks.registry import ATTACKS

    from ..evaluations.attacks.condition import parse_condition

    faults = []
    for card in dict.fromkeys(("standard" if wanted.name in ATTACKS else "segmentation", *card_names())):
        try:
            parse_condition(wanted.text, load_card(card))
            return
        except ProtocolError as fault:
            faults.append(fault)
    raise faults[0]


def _equal(key: str, wanted: str, found: str) -> bool:
    if key == "under":
        return Wanted.of(wanted).fits(found)
    if wanted == found:
        return True
    try:
        return math.isclose(float(number(wanted)), float(number(found)), rel_tol=1e-9)
    except (ProtocolError, OverflowError):
        return False
