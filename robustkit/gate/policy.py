"""Parse a policy file (TOML) into rules, or report where it is not understood. docs/how-to/gate.md has the grammar."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.files import TEXT, bytes_of, reason
from ..common.toml import parse_toml
from ..errors import ProtocolError, unknown
from .grammar import parse_statement
from .statements import Statement


@dataclass(frozen=True)
class Rule:
    """A rule. checkpoint: a name or a pattern such as `vit-*`. severity: `error`, or `warning`, which fails no gate."""

    require: str
    statement: Statement
    name: str = ""
    checkpoint: str = "*"
    severity: str = "error"
    place: str = ""
    line: int = 0


@dataclass(frozen=True)
class Policy:
    """The rules of a file. undecided: `fail` or `pass`, for rules that have too few samples to tell. digest: the file's
    SHA-256 (hex).
    """

    path: str
    rules: tuple[Rule, ...]
    undecided: str = "fail"
    digest: str = ""


def read_policy(path: Path) -> Policy:
    """Return the rules of a TOML file.

    Raises:
        ProtocolError: there is no such file, or something in it is not understood; with line and column.
    """
    try:
        content = bytes_of(path, TEXT)
    except OSError as fault:
        raise ProtocolError(
            f"policy {path}: {reason(fault)}; write one from a run with robustkit check RUN --init --policy {path}"
        ) from None
    policy = parse_policy(content.decode("utf-8-sig", errors="replace"), str(path))
    return replace(policy, digest=hashlib.sha256(content).hexdigest())


def parse_policy(text: str, where: str) -> Policy:
    """Return the rules of a text; `where` names the file in messages. Raises ProtocolError as `read_policy` does."""
    text = text.replace("\r\n", "\n")
    try:
        table = parse_toml(text, where, ProtocolError)
    except ProtocolError as fault:
        line, column = _position(text, len(text))
        ended = f"(at line {line}, column {column}, the end of the document)"
        raise ProtocolError(str(fault).replace("(at end of document)", ended)) from None
    except RecursionError:
        raise ProtocolError(f"{where}: tables nested too deeply; expected [[rule]] tables with require") from None
    for key in table:
        if key not in ("rule", "undecided"):
            raise ProtocolError(f"{where}{_line_of(text, key)}: " + unknown("field", key, ("rule", "undecided")))
    undecided = table.get("undecided", "fail")
    if undecided not in ("fail", "pass"):
        place = _line_of(text, "undecided")
        raise ProtocolError(f"{where}{place}: undecided {undecided!r}; expected fail or pass")
    rules = table.get("rule", [])
    if not isinstance(rules, list) or not rules or not all(isinstance(rule, dict) for rule in rules):
        raise ProtocolError(f"{where}: no rule, so nothing would be checked; expected [[rule]] with require = '…'")
    spots = _spots(text)
    for count, rule in enumerate(rules, start=1):
        if "require" not in rule:
            raise ProtocolError(f"{where}: rule {count} has no require; expected one such as 'top1 under clean >= 0.7'")
    return Policy(where, tuple(_rule(rule, *spot, where) for rule, spot in zip(rules, spots, strict=True)), undecided)


def _rule(table: Mapping[str, Any], line: int, place: Callable[[int, int], str], where: str) -> Rule:
    choices = {"severity": ("error", "warning")}
    for key, value in table.items():
        if key not in ("require", "name", "checkpoint", "severity"):
            fields = ("require", "name", "checkpoint", "severity")
            raise ProtocolError(f"{where}: rule at line {line}: " + unknown("field", key, fields))
        if not isinstance(value, str) or not value.strip():
            raise ProtocolError(f"{where}: rule at line {line}: {key} is {value!r}; expected a text in quotes")
        if value not in choices.get(key, (value,)):
            raise ProtocolError(f"{where}: rule at line {line}: " + unknown(key, value, choices[key]))
    text = table["require"]

    def at(offset: int) -> str:
        return f"{where}: {place(offset, len(text))}"

    options = {key: value for key, value in table.items() if key != "require"}
    name = " ".join(options.pop("name", text).split())
    start = place(0, len(text))
    return Rule(" ".join(text.split()), parse_statement(text, at), name, place=start, line=line, **options)


def _position(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


_TOML = re.compile(
    r"#[^\n]*|\"\"\"(?:\\.|[^\\])*?\"{3,5}|'''.*?'{3,5}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'|[\w-]+|[^\s]", re.DOTALL
)


def _spots(text: str) -> Iterator[tuple[int, Callable[[int, int], str]]]:
    """Yield for each `require` of a TOML text its line, and a function that locates a character of its value."""
    before = ["", ""]
    for match in _TOML.finditer(text):
        token = match[0]
        if token.startswith("#"):
            continue
        if before[1] == "=" and before[0].strip("\"'") == "require":
            yield _position(text, match.start())[0], _telling(text, match.start(), token)
        before = [before[1], token]


def _telling(text: str, start: int, token: str) -> Callable[[int, int], str]:
    offsets = _offsets(token)

    def place(offset: int, length: int) -> str:
        exact = len(offsets) == length + 1  # else an escape that is not counted here
        line, column = _position(text, start + (offsets[min(offset, length)] if exact else 0))
        return f"line {line}, column {column}"

    return place


def _offsets(token: str) -> list[int]:
    """Return the offset at which each character of a TOML string begins, and that of its end."""
    quotes = 3 if token[:3] in ('"""', "'''") else 1
    place, end, offsets = quotes, len(token) - quotes, []
    if quotes == 3 and token[place : place + 1] == "\n":
        place += 1
    while place < end:
        step = 1
        if token[0] == '"' and token[place] == "\\":
            folded = re.match(r"\\[ \t]*\n\s*", token[place:end])
            if folded:
                place += folded.end()
                continue
            step = {"u": 6, "U": 10, "x": 4}.get(token[place + 1], 2)
        offsets.append(place)
        place += step
    return [*offsets, end]


def _line_of(text: str, key: str) -> str:
    """Return `: line 3, column 1` of a key at the top of a TOML text; empty where it is not found."""
    match = re.search(rf"^[ \t\[\"']*{re.escape(key)}(?=[\s=.\]\"'])", text, re.MULTILINE)
    if not match:
        return ""
    line, column = _position(text, match.start() + len(match[0]) - len(key))
    return f": line {line}, column {column}"
