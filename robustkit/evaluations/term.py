"""A word of reports, and what it means."""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """A word that pages explain. definition: sentences. also: other words for it that pages show."""

    name: str
    definition: str
    also: tuple[str, ...] = ()
