"""Write a run's results as one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..common.preprocessing import spelled
from ..display.neutral import no_controls, no_formula
from ..display.section import Section
from ..display.table import TextTable
from ..evaluations.cells import Row
from ..evaluations.results import Results
from ..results.tables import report_tables
from ..runs.folder import RunFolder
from .figures import in_order, sections_of
from .headline import verdicts
from .sample_browser import Browser

LARGEST = 14_500_000
"""The limit in bytes of the page without its script; it decides how many samples are shown."""


def write_report(run: RunFolder, rows: Sequence[Row]) -> None:
    """Write report.html: one self-contained page that fetches nothing, all text escaped. rows: of the summary."""
    results, manifest = Results.of(run, rows), run.manifest
    inputs = {c.name: spelled(c.preprocessing.to_plain(), c.said, c.arch) for c in manifest.checkpoints}
    reproduce = {"parameters": manifest.protocol.parameters, "inputs": inputs}
    sections = [
        *sections_of(run, results),
        Section("comparison", "Checkpoints compared", lambda: {"comparisons": report_tables(run, results)}),
        Section("unread", "Images that could not be read"),
        Section("reproduce", "How to reproduce", lambda: reproduce),
    ]
    common = {"manifest": manifest.to_plain(), "folder": run.path.name, "verdicts": verdicts(run, results)}
    text = no_controls(_page(common, sections, Browser(run)), kept="\n\t")
    run.write(run.path / "report.html", text.encode("utf-8", "replace"))


def _page(common: dict[str, Any], sections: Sequence[Section], browser: Browser) -> str:
    environment = Environment(
        loader=PackageLoader("robustkit.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: no_formula(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "breakable": _breakable,
        "numeric": numeric_columns,
        "trusted": Markup,
    }

    def part(name: str, **values: Any) -> Markup:
        return Markup(environment.get_template(f"parts/{name}.j2").render(common | values).strip())

    folder = resources.files("robustkit.report") / "templates" / "parts"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "browser.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    bodies = {
        section.name: part(section.template or section.name, figures=section.figures, **section.values())
        for section in sections
    }
    ordered = in_order([*sections, Section("samples", "Sample browser")])

    def page(shown: Sequence[Markup]) -> str:
        every = bodies | {"samples": part("samples", shown=shown, browser=browser)}
        return environment.get_template("report.html.j2").render(
            common,
            style=Markup(style),
            script=Markup(script) if shown else "",
            script_source=f"'sha256-{digest}'" if shown else "'none'",
            sections=[(section.name, section.title, every[section.name]) for section in ordered if every[section.name]],
        )

    room, weight, shown = LARGEST - len(page([]).encode()), browser.room, list[Markup]()
    for sample in browser.samples():
        drawn = part("sample", sample=sample, browser=browser)
        room, weight = room - len(drawn.encode()), weight - sample.weight
        if min(room, weight) < 0:
            break
        shown.append(drawn)
    return page(shown)


def _breakable(text: str) -> Markup:
    return escape(no_formula(text)).replace(",", Markup(",<wbr>"))


def numeric_columns(table: TextTable) -> set[int]:
    """Return the indices of the columns that hold only figures."""
    figure = re.compile(r"[-+−<]?\s?\d.*|nan|–|")
    return {
        place
        for place in range(1, len(table.headings))
        if all(figure.fullmatch(row[place]) and len(row[place]) < 32 for row in table.rows)
    }
