"""A run's results as one self-contained page."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ..data.picture_files import open_picture
from ..display.neutral import no_controls, no_formula
from ..display.table import TextTable
from ..errors import RunError
from ..evaluations.attacks.gradient_masking import Finding
from ..evaluations.attacks.order import findings_of
from ..evaluations.attacks.stages import dossier
from ..evaluations.attacks.tables import STAGE_HEADINGS, stage_tables
from ..evaluations.attention.figures import attention_figures, watched
from ..evaluations.attention.tables import attention_tables, layer_table
from ..evaluations.corruptions.tables import corruption_tables, left_out_lines
from ..evaluations.maps.tables import map_tables
from ..results.comparison import report_tables
from ..runs.folder import RunFolder, is_of_scenes
from ..runs.links import refuse_link
from ..tasks.classification.tables import HEADINGS, table_rows
from ..tasks.classification.weak_classes import weak_spots
from ..tasks.segmentation.sheet import sheet_uri
from ..tasks.segmentation.tables import scene_tables
from .figures import figures
from .headline import verdicts
from .sample_browser import Browser

SECTIONS = (
    ("results", "Results"),
    ("attacks", "Robust accuracy against ε"),
    ("corruptions", "Corruptions"),
    ("calibration", "Calibration"),
    ("classes", "Weak spots by class"),
    ("stages", "Attacks in stages"),
    ("doubts", "Can these numbers be trusted?"),
    ("segmentation", "Segmentation"),
    ("maps", "What it looks at"),
    ("attention", "Attention stability"),
    ("comparison", "Checkpoints compared"),
    ("samples", "Sample browser"),
    ("unread", "Images that could not be read"),
    ("reproduce", "How to reproduce"),
)
"""The parts of the page in their order: the name of the template, and the heading. What is empty is left out."""

LARGEST = 14_500_000
"""Bytes of the page, but for its script, which the samples that are shown keep to."""


def write_report(run: RunFolder, results: Sequence[dict[str, Any]]) -> None:
    """Write report.html: one self-contained page that fetches nothing, all text escaped."""
    manifest, segments = run.manifest, is_of_scenes(run)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in table_rows(run, results):
        groups.setdefault(row[0], []).append(row)
    drawn = defaultdict[str, list[Any]](list)
    heads = watched(run)
    for figure in (*figures(run, results), *attention_figures(heads)):
        drawn[figure.section].append(figure)
    values = {
        "manifest": manifest,
        "headings": HEADINGS,
        "groups": groups,
        "folder": run.path.name,
        "figures": drawn,
        "verdicts": verdicts(run, results),
        "weak_spots": weak_spots(run),
        "comparisons": report_tables(run, results),
        "stage_headings": STAGE_HEADINGS,
        "stages": [] if segments else stage_tables(run),
        "corruptions": [] if segments else corruption_tables(results),
        "maps": map_tables(results),
        "attention": attention_tables(results),
        "attention_layers": [
            layer_table(one.heads[under], f"{one.checkpoint}: {under}, layer by layer")
            for one in heads
            for under in list(one.heads)[:1]
        ],
        "gallery": gallery_uri(run),
        "segments": segments,
        "scenes": scene_tables(results, manifest),
        "examples": sheet_uri(run) if segments else None,
        "left_out": left_out_lines(run),
        "dossiers": [] if segments else _dossiers(run, results),
        "parameters": manifest["protocol"].get("parameters", {}),
    }
    text = no_controls(_page(values, Browser(run)), kept="\n\t")
    run.write(run.path / "report.html", text.encode("utf-8", "replace"))


def _dossiers(run: RunFolder, results: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[Finding]]]:
    """What raises doubt about attacks, or does not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    found = ((*unit, [*dossier(run, *unit), *findings_of(flags.get(unit, []))]) for unit in run.units())
    return [one for one in found if one[2]]


def _page(values: dict[str, Any], browser: Browser) -> str:

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

    def part(name: str, **more: Any) -> Markup:
        return Markup(environment.get_template(f"parts/{name}.j2").render(values | more).strip())

    folder = resources.files("robustkit.report") / "templates" / "parts"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("style.css", "browser.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    bodies = {name: part(name) for name, _ in SECTIONS if name != "samples"}

    def page(shown: Sequence[Markup]) -> str:
        every = bodies | {"samples": part("samples", shown=shown, browser=browser)}
        return environment.get_template("report.html.j2").render(
            values,
            style=Markup(style),
            script=Markup(script) if shown else "",
            script_source=f"'sha256-{digest}'" if shown else "'none'",
            sections=[(name, title, every[name]) for name, title in SECTIONS if every[name]],
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
    """The places of columns that hold figures alone."""
    figure = re.compile(r"[-+−<]?\s?\d.*|nan|–|")
    return {
        place
        for place in range(1, len(table.headings))
        if all(figure.fullmatch(row[place]) and len(row[place]) < 32 for row in table.rows)
    }


def gallery_uri(run: RunFolder) -> str | None:
    """The contact sheet of maps, made small enough for a page, as a data URI; None where there is none."""
    from PIL import Image

    path = run.path / "cams" / "gallery.png"
    refuse_link(path, run.path)
    if not path.is_file():
        return None
    buffer = io.BytesIO()
    try:
        with open_picture(path) as sheet:
            small = sheet.convert("RGB")
    except Exception as fault:  # whatever stands there in place of a gallery
        raise RunError(f"{path}: not a gallery that can be read ({fault}); make it anew with robustkit cam") from None
    small.thumbnail((1600, 16000), Image.Resampling.LANCZOS)
    small.save(buffer, "WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
