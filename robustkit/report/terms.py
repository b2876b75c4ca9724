"""Words of a page that lead to what they mean."""

from __future__ import annotations

import re

from markupsafe import Markup

from ..display.neutral import no_formula
from ..evaluations.term import Term
from ..tasks.glossary import glossary
from ..tasks.task import Task
from .pages import broken


class Terms:
    """The glossary of a page: links words to it, and keeps those that were linked."""

    def __init__(self, task: Task) -> None:
        self._of = {word: term for term in glossary(task) for word in (*term.also, term.name)}
        words = "|".join(map(re.escape, sorted(self._of, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![\w%-])(?:{words})(?![\w-])")
        self._linked: dict[str, tuple[Markup, tuple[Term, ...]]] = {}
        self._used = dict[str, Term]()

    @property
    def used(self) -> list[tuple[str, Term]]:
        """The anchors and terms that were linked so far, by name."""
        return sorted(((anchor(term), term) for term in self._used.values()), key=lambda pair: pair[1].name.lower())

    def linked(self, text: str) -> Markup:
        """Return a text as markup in which each term leads, where it first stands, to its meaning."""
        if text not in self._linked:
            self._linked[text] = self._link(text)
        markup, found = self._linked[text]
        self._used.update((term.name, term) for term in found)
        return markup

    def _link(self, text: str) -> tuple[Markup, tuple[Term, ...]]:
        said = no_formula(text)
        parts, found, end = list[Markup](), dict[str, Term](), 0
        for match in self._pattern.finditer(said):
            term = self._of[match[0]]
            if term.name in found:
                continue
            found[term.name] = term
            link = Markup('<a class="term" href="#{}">{}</a>').format(anchor(term), match[0])
            parts += [broken(said[end : match.start()]), link]
            end = match.end()
        return Markup("").join([*parts, broken(said[end:])]), tuple(found.values())


def anchor(term: Term) -> str:
    """Return the id of a term on a page."""
    return "term-" + "".join(sign if sign.isalnum() else "-" for sign in term.name.lower())
