"""Attacks on corrupted images: `pgd(eps=1/255,steps=20,under=fog,severity=3)`. Loads no torch.

The ball lies around the corrupted image. Its text ends with the words of `corruption(fog,severity=3)`, whose draws the
image has, so that the corruption alone and the attack on it are a pair.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from ...errors import ProtocolError
from ...protocol.condition import CLEAN, Condition
from ..registry import vocabulary_of

UNDER, _KIND = "under", "corruption"
_OF_IT = ("severity", "preset", "variant", "texture", "source")
"""Parameters of the corruption, which are no attack's."""


def parted(text: str, given: Mapping[str, str], own: Container[str]) -> tuple[dict[str, str], Condition | None]:
    """Return the attack's own parameters, and the corruption that the others name; None where they name none.

    text: of the whole condition. given: its parameters. own: the names of the attack's.

    Raises:
        ProtocolError: there is no such corruption or severity, or its images cannot be attacked.
    """
    of_it = [f"{key}={given[key]}" for key in _OF_IT if key in given and key not in own]
    if UNDER not in given:
        if of_it:
            raise ProtocolError(f"condition {text!r}: {of_it[0]} is of a corruption; name it, such as under=fog")
        return dict(given), None
    called = f"{_KIND}({','.join([given[UNDER], *of_it])})"
    try:
        under = vocabulary_of(_KIND).parse(called)
    except ProtocolError as fault:
        raise ProtocolError(f"condition {text!r}: {fault}") from None
    if under.released:
        raise ProtocolError(f"condition {text!r}: attacked images are corrupted here; leave out source=released")
    return {key: value for key, value in given.items() if key in own or key not in (UNDER, *_OF_IT)}, under


def on_corrupted(attack: Condition, under: Condition) -> Condition:
    """Return the attack on the images of a corruption, in place of those that it attacks so far."""
    own = attack.text.partition(f",{UNDER}=")[0].removesuffix(")")
    return replace(attack, text=f"{own},{UNDER}={under.text.removeprefix(f'{_KIND}(')}", under=under)


def starts_from(text: str) -> str:
    """Return the text of the condition whose images an attack changes, by the attack's text."""
    _, named, inside = text.partition(f",{UNDER}=")
    return f"{_KIND}({inside}" if named else CLEAN.text
