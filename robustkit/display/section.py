"""A part of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .svg import Figure
from .table import TextTable


@dataclass(frozen=True)
class Section:
    """One part of a page, left out where its template shows nothing.

    name: of the template and of the anchor. title: the heading. values: makes what the template shows. figures: of the
    section, in their order. template: its template, if not that of the name.
    """

    name: str
    title: str
    values: Callable[[], Mapping[str, Any]] = dict
    figures: tuple[Figure, ...] = ()
    template: str = ""


class CardPart(NamedTuple):
    """A section of a model card. note: a line under its title. tables: title, headings and rows of each."""

    title: str
    note: str
    tables: Sequence[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]]


def of_tables(name: str, title: str, tables: tuple[TextTable, ...], figures: tuple[Figure, ...] = ()) -> Section:
    """Return a section of text tables under their titles, after its figures."""
    return Section(name, title, lambda: {"tables": tables}, figures, template="tables")
