"""Neutralise untrusted text that a program might obey: cells that a spreadsheet computes, characters that steer."""

from __future__ import annotations

import re
import unicodedata

_FIGURE = re.compile(r"[-+]([\d.,]+(e[-+]?\d+)?( ?%)?( ?\[[\d.,+\-− ]*\])?)?", re.ASCII)


def no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute: an apostrophe stands before what would begin a
    formula.

    That is `=`, `+`, `-`, `@`, tab and carriage return, as OWASP's page on CSV injection lists them; a figure with its
    sign and interval stays.
    """
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not _FIGURE.fullmatch(text) else text


def no_controls(text: str, kept: str = "") -> str:
    """Replace control characters but those `kept`: white space by a space, any other by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(
        character if character in kept or unicodedata.category(character) != "Cc" else _instead(character)
        for character in text
    )


def _instead(character: str) -> str:
    return " " if character.isspace() else "\ufffd"
