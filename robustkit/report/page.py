"""Write a run's results as one self-contained page, and name the papers behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

from markupsafe import Markup

from ..common.figure import Figure
from ..common.preprocessing import describe_preprocessing
from ..display.html import ENLARGE, html_table
from ..display.table import Section, join_tables
from ..display.text import no_formula
from ..evaluations.aggregate import Results
from ..evaluations.metrics import Term
from ..results.methods import MethodResults, by_method, name_methods
from ..results.survey import looks_of
from ..results.tables import compared_grids, slice_sections
from ..runs.description import shown_as, why_not_repeated
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..tasks.task import Task, glossary, task_of
from .front import front_of
from .pages import allow_breaks, break_part, environment, figure, render_page
from .samples import Browser

_ENTRY = re.compile(r"^@\w+\{.*?^\}", re.MULTILINE | re.DOTALL)
_USES = re.compile(r"^ *for = \{(.*)\},\n", re.MULTILINE)
_FROM = re.compile(r"from=[^,)]*")  # the name of a checkpoint
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


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
        return sorted(((term_id(term), term) for term in self._used.values()), key=lambda pair: pair[1].name.lower())

    def linked(self, text: str) -> Markup:
        """Return a text as markup in which each term leads, where it first stands, to its meaning."""
        if text not in self._linked:
            self._linked[text] = self._link(text)
        markup, terms = self._linked[text]
        self._used.update((term.name, term) for term in terms)
        return markup

    def _link(self, text: str) -> tuple[Markup, tuple[Term, ...]]:
        plain = no_formula(text)
        parts, terms, end = list[Markup](), dict[str, Term](), 0
        for match in self._pattern.finditer(plain):
            term = self._of[match[0]]
            if term.name in terms:
                continue
            terms[term.name] = term
            link = Markup('<a class="term" href="#{}">{}</a>').format(term_id(term), match[0])
            parts += [break_part(plain[end : match.start()]), link]
            end = match.end()
        return Markup("").join([*parts, break_part(plain[end:])]), tuple(terms.values())


def term_id(term: Term) -> str:
    return "term-" + "".join(sign if sign.isalnum() else "-" for sign in term.name.lower())


SECTIONS = (
    *("methods", "samples", "results", "parity", "attacks", "distances", "transfers", "corruptions"),
    *("calibration", "classes", "slices", "stages", "doubts"),
    *("segmentation", "maps", "attention"),
    *("comparison", "unread", "reproduce"),
)
"""The sections of the page in order. One with another name follows `attention`."""


def sections_of(run: RunFolder, rows: Sequence[Figure]) -> list[Section]:
    """Return the sections of the page that show the results, in the order of a page. rows: of the summary."""
    results = Results.of(run, rows)
    return in_order(task_of(results.manifest).sections(results, looks_of(run)))


def in_order(sections: Iterable[Section]) -> list[Section]:
    places = {name: float(place) for place, name in enumerate(SECTIONS)}
    return sorted(sections, key=lambda section: places.get(section.name, places["attention"] + 0.5))


LARGEST = 2_900_000  # the limit in bytes of the page; it decides how many samples are shown
_STYLES, _SCRIPTS = ("style.css", "front.css"), (ENLARGE, "tables.js", "figures.js", "page.js", "browser.js")


def write_report(run: RunFolder, rows: Sequence[Figure], by: Sequence[str] = ()) -> None:
    """Write report.html: one self-contained page that fetches nothing, all text escaped. rows: of the summary. by:
    columns whose slices have a table, see `results.tables`."""
    results, manifest = Results.of(run, rows), run.manifest
    texts = {c.name: describe_preprocessing(c.preprocessing.to_plain(), c.origin, c.arch) for c in manifest.checkpoints}
    preprocessing = {c.name: ", ".join(shown_as(c).values()) for c in manifest.checkpoints}
    papers = bibtex(manifest, rows)
    reproduce = {"parameters": manifest.protocol.parameters, "inputs": texts, "shown": preprocessing, "papers": papers}

    def compared() -> dict[str, Any]:
        return {"grids": compared_grids(run, results)}

    def methods() -> dict[str, Any]:
        view = by_method(results)
        return {"grids": view.compared.tables if isinstance(view, MethodResults) else []}

    sections = [
        Section("methods", "Methods compared", methods, template="comparison"),
        *sections_of(run, results),
        Section("slices", "Slices", lambda: slice_sections(results, by)),
        Section("comparison", "Checkpoints compared", compared),
        Section("unread", f"{manifest.protocol.samples.many.capitalize()} that could not be read"),
        Section("reproduce", "How to reproduce", lambda: reproduce),
    ]
    common = {
        "manifest": manifest.to_plain(),
        "folder": run.path.name,
        "methods": [*name_methods([run])],
        "many": manifest.protocol.samples.many,
        "why_not": why_not_repeated(manifest.command),
        "front": front_of(results, looks_of(run)),
    }
    text = _page(common, sections, Browser(run), Terms(task_of(manifest)))
    run.write(run.path / "report.html", text.encode("utf-8", "replace"))


def _page(common: dict[str, Any], sections: Sequence[Section], browser: Browser, terms: Terms) -> str:
    write = partial(html_table, words=terms.linked, names=allow_breaks, numbers=figure)
    templates = environment(as_table=write, slug=slug, terms=terms.linked, together=join_tables)

    def part(name: str, **values: Any) -> Markup:
        return Markup(templates.get_template(f"parts/{name}.j2").render(common | values).strip())

    bodies = {
        section.name: part(section.template or section.name, figures=section.figures, **section.values())
        for section in sections
    }
    front = part("front", there=[name for name, body in bodies.items() if body])
    ordered = in_order([*sections, Section("samples", "Sample browser")])

    def whole(parts: Sequence[Markup], labels: Iterable[str] = ()) -> str:
        every = bodies | {"samples": part("samples", shown=parts, labels=sorted(set(labels)), browser=browser)}
        sections = [(section.name, section.title, every[section.name]) for section in ordered if every[section.name]]
        values = common | {"front": front, "sections": sections, "terms": terms}
        return render_page(templates, "report.html.j2", _STYLES, _SCRIPTS, **values)

    room, weight, parts, labels = LARGEST - len(whole([]).encode()), browser.room, list[Markup](), list[str]()
    for sample in browser.samples():
        drawn = part("sample", sample=sample, browser=browser)
        room, weight = room - len(drawn.encode()), weight - sample.weight
        if min(room, weight) < 0:
            break
        parts.append(drawn)
        labels.append(sample.label)
    return whole(parts, labels)


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "table"


@cache
def references() -> Mapping[str, tuple[str, ...]]:
    """Return each entry of references.bib, with the words that ask for it."""
    text = (resources.files(__package__) / "references.bib").read_text("utf-8")
    return {_USES.sub("", entry): tuple(_USES.findall(entry)[0].split(", ")) for entry in _ENTRY.findall(text)}


def bibtex(manifest: Manifest, rows: Iterable[Figure]) -> str:
    """Return the entries of a run, each once: its formulas, attacks, corruptions, explainers and metrics, and this
    package. rows: of the summary. What plug-ins add has none."""
    used = {"robustkit", *(row.metric for row in rows)}
    for checkpoint in manifest.checkpoints:
        used |= set(_WORD.findall(str(getattr(checkpoint, "attention", "")))[:1])
    for text in manifest.conditions:
        used |= set(_WORD.findall(_FROM.sub("", text)))
    entries = (entry for entry, words in references().items() if not used.isdisjoint(words))
    return "\n\n".join(["% the papers of what this run used", *entries]) + "\n"
