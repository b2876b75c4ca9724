"""Escape untrusted text so that Markdown shows it literally."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Made(str):
    """Markdown that is escaped already."""

    __slots__ = ()


def clean(value: object) -> str:
    """Return a text on one line, without characters that cannot be seen."""
    shown = "".join(c if c.isprintable() else " " if c.isspace() or ord(c) < 160 else "\ufffd" for c in str(value))
    return " ".join(shown.split())


def plain(value: object) -> Made:
    """Escape a text so that Markdown shows it literally: no emphasis, link, heading, formula, HTML or cell begins in
    it.
    """
    text = re.sub(r"[&<>`|\\$]", lambda match: f"&#{ord(match[0])};", clean(value))
    text = re.sub(r"[*~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#\[]|^[-+=](?=[-= ]|$)|\](?=[(\[])", r"\\\g<0>", text)
    text = re.sub(r"^(\d+)(?=[.)]( |$))", r"\1\\", text)
    return Made(re.sub(r":(?=//)|(?<=www)\.", lambda match: f"&#{ord(match[0])};", text, flags=re.IGNORECASE))


def code(value: object) -> Made:
    """Return a text as code, or as plain text where a backtick, bar or backslash could end a span or a cell."""
    text = clean(value)
    return plain(text) if not text or re.search(r"[`|\\]", text) else Made(f"`{text}`")


def fenced(value: object) -> Made:
    """Return a command as a block, fenced by more backticks than it has in a row."""
    text = str(value)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return Made(f"{fence}sh\n{text}\n{fence}")


def table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> Made:
    """Return a Markdown table; its first column holds words."""
    lines = [headings, *rows]
    shown = [" | ".join(cell if isinstance(cell, Made) else plain(cell) for cell in line) for line in lines]
    shown.insert(1, " | ".join(["---", *["---:"] * (len(headings) - 1)]))
    return Made("\n".join(f"| {line} |" for line in shown))
