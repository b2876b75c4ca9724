"""Write numbers as people read them, and untrusted text so that no program obeys it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

ROUNDING = 3e-5
"""How far a difference of pixels in float32 may be from the number that it stands for, in units of 1/255."""


def amount(value: float, norm: str, space: str) -> str:
    """Return the size of a perturbation with its unit: as `pixels`, or `0.1 σ` (of a channel) in the space `sigma`."""
    return f"{value:.4g} σ" if space == "sigma" else size_text(value, norm)


def size_text(value: float, norm: str) -> str:
    """Return a size as people say it: `1/255` for linf, `0.5` for l2. Within half a thousandth of a whole number it is
    that one, so that a measured 7.9999/255 reads as the 8/255 asked for; else it has up to three decimals."""
    if norm != "linf":
        return f"{value:.4g}"
    units = 255 * value
    if not 0.001 <= abs(units) < 1e6:
        return f"{units:.3g}/255"
    near = abs(units - round(units, 2)) <= ROUNDING or abs(units - round(units)) < 0.0005
    text = f"{units:.3f}"
    return f"{text.rstrip('0').rstrip('.') if near else text}/255"


_FIGURE = re.compile(r"[-+]([\d.,]+(e[-+]?\d+)?( ?%)?( ?\[[\d.,+\-− ]*\])?( (better|worse|higher|lower))?)?", re.ASCII)


def no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute: an apostrophe stands before `=`, `+`, `-`, `@`, tab
    and carriage return, as OWASP's page on CSV injection lists them; not before a figure with its sign."""
    begins = text[:1] in ("\t", "\r") or text.lstrip()[:1] in tuple("=+-@")
    return f"'{text}" if begins and not _FIGURE.fullmatch(text) else text


def no_controls(text: str, allowed: str = "") -> str:
    """Replace control characters but those `allowed`: white space by a space, any other by U+FFFD."""
    return text if text.isprintable() else _controls(allowed).sub(_instead, text)


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


def _instead(match: re.Match[str]) -> str:
    return " " if match[0].isspace() else "\ufffd"


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


def markdown_table(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> Made:
    lines = [headings, *rows]
    texts = [" | ".join(cell if isinstance(cell, Made) else escape_markdown(cell) for cell in line) for line in lines]
    texts.insert(1, " | ".join(["---", *["---:"] * (len(headings) - 1)]))
    return Made("\n".join(f"| {line} |" for line in texts))


def clock_time(seconds: float) -> str:
    """Return `1:02` or `1:02:03`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def about(seconds: float) -> str:
    """Return `40 s`, `36 min` or `3.5 h`."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
