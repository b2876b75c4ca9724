"""Attacks in two phases as conditions: `two-phase(autoattack(eps=1/255,version=standard),first=apgd-ce,m=200)`."""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.condition import Condition

_START = "two-phase("


class Phases(NamedTuple):
    """The parts of a condition's text.

    attack: the text of the whole attack. first: the stages that all samples go through. m: the most samples that go
    through the others.
    """

    attack: str
    first: str
    m: int

    @property
    def all_go_through(self) -> str:
        """The text of the condition that is the first phase."""
        return f"{self.attack.removesuffix(')')},only={self.first})"


def two_phase_condition(first: Condition, rest: Condition, attack: Condition, stages: str, m: int) -> Condition:
    """Return the condition that runs `rest` on m samples of those that `first` leaves standing.

    attack: what both are the parts of. stages: the names of the first's.
    """
    text = f"{_START}{attack.text},first={stages},m={m})"
    return Condition("two-phase", text, under=rest, after=first, draws=text)


def phases_of(text: str) -> Phases | None:
    """Return the parts of a condition's text; None for other conditions."""
    attack, first, rest = text.removeprefix(_START).removesuffix(")").rpartition(",first=")
    stages, named, m = rest.rpartition(",m=")
    if not (text.startswith(f"{_START}autoattack(") and first and named and m.isdecimal()):
        return None
    return Phases(attack, stages, int(m))
