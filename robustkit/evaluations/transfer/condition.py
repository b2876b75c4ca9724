"""Adversarial images passed on, as conditions: `transfer(pgd(eps=1/255,steps=20),from=NAME)` into parts and back."""

from __future__ import annotations

from typing import NamedTuple

from ...protocol.condition import Condition

_START, _FROM = "transfer(", ",from="  # no attack's text has the second; a checkpoint's name may


class Passed(NamedTuple):
    """What is passed on.

    attack: the text of its condition. source: the checkpoint that it was found for; empty where a group is meant.
    """

    attack: str
    source: str


def transfer_condition(attack: Condition, source: str) -> Condition:
    """Return the condition of the adversarial images that an attack finds for a checkpoint."""
    text = f"{_START}{attack.text}{_FROM}{source})"
    return Condition("transfer", text, under=attack, source=source, group=group_text(attack.text))


def group_text(attack: str) -> str:
    """Return the text of all conditions that pass on what an attack finds."""
    return f"{_START}{attack})"


def passed_of(text: str) -> Passed | None:
    """Return the parts of a condition's text; None for other conditions."""
    if not (text.startswith(_START) and text.endswith(")")):
        return None
    attack, _, source = text[len(_START) : -1].partition(_FROM)
    return Passed(attack, source)
