"""Write untrusted text so that no program obeys it, Markdown and JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Sequence
from functools import lru_cache
from typing import Any

_FIGURE = re.compile(r"[-+]([\d.,]+(e[-+]?\d+)?( ?%)?( ?\[[\d.,+\-− ]*\])?( (better|worse|higher|lower))?)?", re.ASCII)


def no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute: an apostrophe stands before `=`, `+`, `-`, `@`, tab
    and carriage return, as OWASP's page on CSV injection lists them; not before a figure with its sign."""
    begins = text[:1] in ("\t", "\r") or text.lstrip()[:1] in tuple("=+-@")
    return f"'{text}" if begins and not _FIGURE.fullmatch(text) else text


def no_controls(text: str, allowed: str = "") -> str:
    """Replace control characters but those `allowed`: white space by a space, any other by U+FFFD."""
    return (
        text
        if text.isprintable()
        else _controls(allowed).sub(lambda each: " " if each[0].isspace() else "\ufffd", text)
    )


_OBEYED = re.compile(r"(?m)##(?=\[)|(?:^|(?<=\r))[^\S\r\n]*:(?=:)")
"""What precedes the second half of a workflow command: `##[` anywhere, `::` where a line begins, as GitHub's runner
reads them.
"""


def no_commands(text: str) -> str:
    """Return a text in which GitHub's runner finds no workflow command: a space parts its signs."""
    return _OBEYED.sub(r"\g<0> ", text)


@lru_cache(maxsize=8)
def _controls(allowed: str) -> re.Pattern[str]:
    """Return what finds control characters, Unicode's category Cc, but those kept; `str.translate` takes ten times as
    long for a page."""
    signs = (chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)))
    return re.compile(f"[{re.escape(''.join(sign for sign in signs if sign not in allowed))}]")


def capital(text: str) -> str:
    """Return a text that begins with a capital, unless its second letter is one, as in mIoU."""
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


class Made(str):
    """Markdown that is escaped already."""

    __slots__ = ()


def one_line(value: object) -> str:
    """Return a text on one line, without characters that cannot be seen."""
    printed = "".join(c if c.isprintable() else " " if c.isspace() or ord(c) < 160 else "\ufffd" for c in str(value))
    return " ".join(printed.split())


def escape_markdown(value: object) -> Made:
    """Escape a text so that Markdown shows it literally: no emphasis, link, formula, HTML or cell begins in it."""
    text = re.sub(r"[&<>`|\\$]", lambda match: f"&#{ord(match[0])};", one_line(value))
    text = re.sub(r"[*~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#\[]|^[-+=](?=[-= ]|$)|\](?=[(\[])", r"\\\g<0>", text)
    text = re.sub(r"^(\d+)(?=[.)]( |$))", r"\1\\", text)
    return Made(re.sub(r":(?=//)|(?<=www)\.", lambda match: f"&#{ord(match[0])};", text, flags=re.IGNORECASE))


def code(value: object) -> Made:
    """Return a text as code, or as plain text where a backtick, bar or backslash could end a span or a cell."""
    text = one_line(value)
    return escape_markdown(text) if not text or re.search(r"[`|\\]", text) else Made(f"`{text}`")


def fenced(value: object) -> Made:
    """Return a command as a block, fenced by more backticks than it has in a row."""
    text = str(value)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return Made(f"{fence}sh\n{text}\n{fence}")


def markdown_table(
    rows: Sequence[Sequence[str]], headings: Sequence[str], numeric: Container[int] = range(1, 1000)
) -> Made:
    """Return rows of texts. numeric: the columns that stand on the right, by default all but the first."""
    lines = [headings, *rows]
    texts = [" | ".join(cell if isinstance(cell, Made) else escape_markdown(cell) for cell in line) for line in lines]
    texts.insert(1, " | ".join("---:" if place in numeric else "---" for place in range(len(headings))))
    return Made("\n".join(f"| {line} |" for line in texts))


def finite_json(content: Any) -> str:
    """Return JSON in which None stands for what is not finite."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [finite(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
