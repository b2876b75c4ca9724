"""Neutralise untrusted text that a program might obey: cells that a spreadsheet computes, characters that steer."""

from __future__ import annotations

import re
from functools import lru_cache

_FIGURE = re.compile(r"[-+]([\d.,]+(e[-+]?\d+)?( ?%)?( ?\[[\d.,+\-− ]*\])?( (better|worse|higher|lower))?)?", re.ASCII)


def no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute: an apostrophe stands before what would begin a
    formula.

    That is `=`, `+`, `-`, `@`, also after white space, tab and carriage return, as OWASP's page on CSV injection lists
    them; a figure with its sign, interval and verdict stays.
    """
    begins = text[:1] in ("\t", "\r") or text.lstrip()[:1] in tuple("=+-@")
    return f"'{text}" if begins and not _FIGURE.fullmatch(text) else text


def no_controls(text: str, kept: str = "") -> str:
    """Replace control characters but those `kept`: white space by a space, any other by U+FFFD."""
    if text.isprintable():
        return text
    return text.translate(_instead(kept))


_OBEYED = re.compile(r"(?m)##(?=\[)|(?:^|(?<=\r))[^\S\r\n]*:(?=:)")
"""What precedes the second half of a workflow command: `##[` anywhere, `::` where a line begins, as GitHub's runner
reads them.
"""


def no_commands(text: str) -> str:
    """Return a text in which GitHub's runner finds no workflow command: a space parts its signs."""
    return _OBEYED.sub(r"\g<0> ", text)


@lru_cache(maxsize=8)
def _instead(kept: str) -> dict[int, str]:
    """Return what stands for each control character, Unicode's category Cc, but those kept."""
    controls = (chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)))
    return {ord(sign): " " if sign.isspace() else "\ufffd" for sign in controls if sign not in kept}
