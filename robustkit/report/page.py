"""Write a run's results as one self-contained page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from ..common.preprocessing import spelled
from ..display.grid import together
from ..display.section import Section
from ..display.web import ENLARGE
from ..evaluations.cells import Row
from ..evaluations.results import Results
from ..results.grids import comparison_grids
from ..results.tables import report_tables
from ..runs.folder import RunFolder
from ..runs.repeating import repeat_of
from ..tasks.task import task_of
from .figures import in_order, looks_of, sections_of
from .front import front_of
from .headline import verdicts
from .pages import environment, figure, rendered
from .sample_browser import Browser
from .terms import Terms

LARGEST = 7_900_000
"""The limit in bytes of the page; it decides how many samples are shown."""
_STYLES, _SCRIPTS = ("style.css", "front.css"), (ENLARGE, "tables.js", "figures.js", "page.js", "browser.js")


def write_report(run: RunFolder, rows: Sequence[Row]) -> None:
    """Write report.html: one self-contained page that fetches nothing, all text escaped. rows: of the summary."""
    results, manifest = Results.of(run, rows), run.manifest
    inputs = {c.name: spelled(c.preprocessing.to_plain(), c.said, c.arch) for c in manifest.checkpoints}
    reproduce = {"parameters": manifest.protocol.parameters, "inputs": inputs}
    sections = [
        *sections_of(run, results),
        Section(
            "comparison",
            "Checkpoints compared",
            lambda: {"grids": comparison_grids(report_tables(run, results), manifest.names[0])},
        ),
        Section("unread", f"{manifest.protocol.samples.many.capitalize()} that could not be read"),
        Section("reproduce", "How to reproduce", lambda: reproduce),
    ]
    common = {
        "manifest": manifest.to_plain(),
        "folder": run.path.name,
        "repeat": repeat_of(manifest.command),
        "verdicts": verdicts(run, results),
        "front": front_of(results, looks_of(run)),
    }
    text = _page(common, sections, Browser(run), Terms(task_of(manifest)))
    run.write(run.path / "report.html", text.encode("utf-8", "replace"))


def _page(common: dict[str, Any], sections: Sequence[Section], browser: Browser, terms: Terms) -> str:
    templates = environment(figure=figure, slug=slug, terms=terms.linked, together=together)

    def part(name: str, **values: Any) -> Markup:
        return Markup(templates.get_template(f"parts/{name}.j2").render(common | values).strip())

    bodies = {
        section.name: part(section.template or section.name, figures=section.figures, **section.values())
        for section in sections
    }
    front = part("front")
    ordered = in_order([*sections, Section("samples", "Sample browser")])

    def whole(shown: Sequence[Markup], labels: Iterable[str] = ()) -> str:
        every = bodies | {"samples": part("samples", shown=shown, labels=sorted(set(labels)), browser=browser)}
        there = [(section.name, section.title, every[section.name]) for section in ordered if every[section.name]]
        values = common | {"front": front, "sections": there, "terms": terms}
        return rendered(templates, "report.html.j2", _STYLES, _SCRIPTS, **values)

    room, weight, shown, labels = LARGEST - len(whole([]).encode()), browser.room, list[Markup](), list[str]()
    for sample in browser.samples():
        drawn = part("sample", sample=sample, browser=browser)
        room, weight = room - len(drawn.encode()), weight - sample.weight
        if min(room, weight) < 0:
            break
        shown.append(drawn)
        labels.append(sample.label)
    return whole(shown, labels)


def slug(title: str) -> str:
    """Return a title as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "table"
