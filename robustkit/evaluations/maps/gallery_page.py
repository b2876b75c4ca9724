"""The gallery of maps as a page: a table for each sample, with checkpoints as rows and methods as columns."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from PIL import Image

from ...common.files import write_whole
from ...display.web import ENLARGE, LOOK, policy, shared
from .gallery import SCALE, Gallery, GalleryRow, Pixels

_QUALITY = 90
"""Of pictures in WebP, which take a seventh of a PNG there."""


@dataclass(frozen=True)
class _Switch:
    """A set of boxes that hide what is not asked for. key: the letter before each number in what they hide."""

    key: str
    legend: str
    names: tuple[str, ...]


def write_page(gallery: Gallery, path: Path) -> None:
    """Write the gallery as one self-contained HTML page, all text escaped. RunError where it cannot be written."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["uri"] = _uri
    switches = (
        _Switch("m", "Maps", tuple(tile.heading for row in gallery.rows[:1] for tile in row.tiles)),
        _Switch("c", "Checkpoints", tuple(dict.fromkeys(row.checkpoint for row in gallery.rows))),
        _Switch("u", "Images", tuple(dict.fromkeys(_shown(row) for row in gallery.rows))),
    )
    script = shared(ENLARGE) + _template("gallery.js")
    page = environment.from_string(_template("gallery.html.j2")).render(
        gallery=gallery,
        switches=switches,
        shown=_shown,
        scale=SCALE,
        look=shared(LOOK) + _template("gallery.css"),
        script=script,
        policy=policy(script),
    )
    write_whole(path, page.encode())


def _shown(row: GalleryRow) -> str:
    return row.under or "clean"


def _template(name: str) -> str:
    return (resources.files("robustkit.evaluations.maps") / "templates" / name).read_text(encoding="utf-8")


def _uri(pixels: Pixels) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=_QUALITY, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
