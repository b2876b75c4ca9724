"""Findings: what makes a figure mean less or is worth knowing, each with a code that stays the same.

The words of a code are in a `findings.toml` in the folder of the room, family or task that raises it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..errors import ProtocolError, unknown
from .files import parse_toml

Severity = Literal["doubt", "limit", "note"]
_CODED = re.compile(r"(.*) \[([a-z]+/[a-z0-9-]+)\]", re.DOTALL)


class Entry(msgspec.Struct, frozen=True):
    title: str
    severity: Severity
    """doubt: the figure must not be read without it; limit: the run is incomplete or thin; note: worth knowing."""
    sentence: str
    """What is said, `{values}` standing for what was found."""
    why: str
    """Why it matters."""
    remedy: str
    """What to do."""
    ignore: str
    """When to ignore it."""
    is_listed: bool = True
    """Whether pages and terminals list it; else only tables show what it says."""


@cache
def catalogue() -> dict[str, Entry]:
    """Return the entries of robustkit's own findings by code, in the order of codes."""
    entries: dict[str, Entry] = {}
    for path in sorted(Path(__file__).parents[1].rglob("findings.toml")):
        table = parse_toml(path.read_text("utf-8"), str(path), ProtocolError)
        entries |= msgspec.convert(table, dict[str, Entry])
    return dict(sorted(entries.items()))


def entry_of(code: str) -> Entry:
    """Return what the catalogue says about a code. Raises ProtocolError for one that it has not."""
    try:
        return catalogue()[code]
    except KeyError:
        guess = unknown("finding", code, catalogue()).partition(" known:")[0]
        raise ProtocolError(f"{guess} robustkit explain lists them") from None


@dataclass(frozen=True)
class Finding:
    code: str
    """Such as `evidence/thin`."""
    text: str
    severity: Severity = "doubt"

    @classmethod
    def of(cls, code: str, **values: object) -> Finding:
        """Return a finding in the catalogue's words. values: of its sentence."""
        entry = catalogue()[code]
        return cls(code, entry.sentence.format(**values), entry.severity)

    @classmethod
    def parse(cls, text: str) -> Finding | None:
        """Return the finding that `str` wrote, as in the notes of run.json; None for another text."""
        form = _CODED.fullmatch(text)
        return cls(form[2], form[1], entry.severity) if form and (entry := catalogue().get(form[2])) else None

    @property
    def entry(self) -> Entry | None:
        """What the catalogue says about it; None where a plug-in or another version raised it."""
        return catalogue().get(self.code)

    @property
    def is_listed(self) -> bool:
        return self.entry is None or self.entry.is_listed

    @property
    def counts(self) -> bool:
        """Whether it is a doubt or a limit, which `no findings` in a policy excludes."""
        return self.severity != "note"

    @property
    def room(self) -> str:
        """The first word of its code."""
        return self.code.partition("/")[0]

    def __str__(self) -> str:
        return f"{self.text} [{self.code}]"

    def to_plain(self) -> dict[str, Any]:
        return {"code": self.code, "severity": self.severity, "text": self.text}


class PlainFinding(msgspec.Struct):
    """A finding in summary.json. That of someone else may hold anything."""

    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+/[a-z0-9-]+$")]
    severity: Severity
    text: str

    @property
    def finding(self) -> Finding:
        return Finding(self.code, self.text, self.severity)
