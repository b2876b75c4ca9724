"""Maps to look at: a row for a checkpoint on an image, with the image and an overlay for each method and class; as a
contact sheet, a page, or a figure for a paper."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib import metadata, resources
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from cam.overlay import ALPHA, COLORMAP, colours

from ...common.files import write_whole
from ...data.images import FAINT, INK, PAPER, RULE, fit_text, font
from ...display.html import ENLARGE, LOOK, policy, shared
from ...display.text import finite_json
from ...errors import ProtocolError
from ...evaluations.maps import METHOD_NAMES
from ...report.samples import TILE, blended, tile_of
from ...runs.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

Pixels = NDArray[np.uint8]

_ACROSS = 6  # tiles in a row of the contact sheet, where one sample has fewer
OUTLINE = (255, 255, 255)
SCALE = "Each map is scaled to its own minimum and maximum, so colours cannot be compared between tiles."
_NEAREST, _LANCZOS = Image.Resampling.NEAREST, Image.Resampling.LANCZOS


@dataclass(frozen=True)
class Look:
    """How maps are drawn. colormap, alpha: as of `cam.overlay`. size: the width of a figure for a paper in mm, of which
    a PNG then has 300 pixels an inch; None for a contact sheet as PNG, and a figure of `WIDE` mm as PDF or SVG."""

    colormap: str = COLORMAP
    alpha: float = ALPHA
    size: float | None = None


_LOOK = Look()


@dataclass(frozen=True)
class Panel:
    """heading: method, and what comes after a comma. image: (H, W, 3) uint8 as this checkpoint sees it. map: (H, W) in
    [0, 1]. lines: what stands under it. truth: (H, W) bool in the image's frame, where known."""

    heading: str
    image: Pixels
    map: NDArray[np.float32]
    lines: tuple[str, ...] = ()
    truth: NDArray[np.bool_] | None = None

    def drawn(self, look: Look = _LOOK) -> Pixels:
        return outlined(blended(self.image, self.map, TILE, look.colormap, look.alpha), self.truth, width=1)


@dataclass(frozen=True)
class GalleryRow:
    """A checkpoint on an image. name: of its class. under: what was done to the image. lines: what is predicted. of:
    the class that its maps explain, where rows differ in that."""

    sample_id: str
    name: str
    image: Pixels
    tiles: tuple[Panel, ...]
    truth: NDArray[np.bool_] | None = None
    checkpoint: str = ""
    under: str = ""
    lines: tuple[str, ...] = ()
    of: str = ""

    @property
    def named(self) -> tuple[str, ...]:
        return self.name, self.sample_id, self.checkpoint, self.under

    def drawn(self) -> Pixels:
        return outlined(self.image, self.truth)


@dataclass(frozen=True)
class Gallery:
    """Rows with the same headings of tiles; those of a sample follow each other. title and lines stand at the top.
    maps: each map, (H, W) in [0, 1], by `checkpoint/method/sample`, with classes and attacks between, where there are
    several. run: where they were scored, if they were. setup: checkpoints, formulas, normalisation and methods in
    words, for the metadata of pictures."""

    title: str
    rows: tuple[GalleryRow, ...] = field(repr=False)
    lines: tuple[str, ...] = ()
    maps: Mapping[str, NDArray[np.float32]] = field(default_factory=dict, repr=False)
    run: RunFolder | None = None
    setup: tuple[str, ...] = ()
    look: Look = _LOOK

    @property
    def samples(self) -> list[tuple[GalleryRow, ...]]:
        return [tuple(rows) for _, rows in groupby(self.rows, key=lambda row: row.sample_id)]

    def save(
        self,
        path: str | Path,
        colormap: str | None = None,
        alpha: float | None = None,
        size: float | None = None,
    ) -> Path:
        """Write a contact sheet (.png), a figure for a paper (.pdf, .svg, or .png with a size), a page (.html) or the
        maps (.npz).

        Args:
            path: of the file.
            colormap: one of `cam.overlay.COLORMAPS`; inferno if left out.
            alpha: the weight of the colour where a map is 1, from 0 to 1.
            size: the width of a figure, in mm.

        Returns:
            The path.

        Raises:
            ProtocolError: another kind of file.
            ValueError: an unknown colormap, or an alpha outside [0, 1].
        """
        options: dict[str, Any] = {"colormap": colormap, "alpha": alpha, "size": size}
        if changes := {name: value for name, value in options.items() if value is not None}:
            return replace(self, look=replace(self.look, **changes)).save(path)
        target = Path(path)
        figure = {".pdf": write_figure, ".svg": write_figure}
        png = write_sheet if self.look.size is None else write_figure
        kinds = {".png": png, **figure, ".html": write_html, ".npz": write_maps}
        if target.suffix.lower() not in kinds:
            raise ProtocolError(f"{path}: expected a file that ends in {', '.join(kinds)}")
        kinds[target.suffix.lower()](self, target)
        return target

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each map: sample, checkpoint, what was done to the image, method, lines under it."""
        import pandas as pd

        return pd.DataFrame(self._plain(), columns=["sample_id", "checkpoint", "under", "map", "lines"])

    def to_json(self) -> str:
        """Return the same as JSON."""
        return finite_json(self._plain())

    def _plain(self) -> list[dict[str, Any]]:
        named = ("sample_id", "checkpoint", "under")
        return [
            {name: getattr(row, name) for name in named} | {"map": tile.heading, "lines": list(tile.lines)}
            for row in self.rows
            for tile in row.tiles
        ]

    def _repr_html_(self) -> str:
        return f'<img src="{_uri(encoded(depict(self), "WEBP", quality=90))}" alt="{escape(self.title)}">'


def outlined(image: Pixels, truth: NDArray[np.bool_] | None, width: int = 2) -> Pixels:
    """Return the image as a tile, with the outline of its object in white on black, so that it shows on any ground."""
    tile = tile_of(image)
    if truth is None:
        return tile
    mask = cv2.resize(truth.astype(np.uint8), tile.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    contours, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    for colour, wide in ((0, 0, 0), width + 2), (OUTLINE, width):
        cv2.drawContours(tile, contours, -1, colour, wide)
    return tile


def depict(gallery: Gallery) -> Image.Image:
    """Draw the contact sheet as an RGB image. Where there is a single map, checkpoints stand side by side."""
    margin, gap, line = 36, 12, 24
    if all(len(row.tiles) == 1 for row in gallery.rows):
        gallery = replace(gallery, rows=tuple(map(_side_by_side, gallery.samples)))
    each = 1 + max(len(row.tiles) for row in gallery.rows)
    beside = min(len(gallery.rows), max(1, _ACROSS // each))  # rows of the gallery in a row of the sheet
    columns = each * beside
    width = 2 * margin + columns * TILE + (columns - 1) * gap
    notes = [part for text in (*gallery.lines, SCALE) for part in _wrapped(text, 17, width - 2 * margin)]
    head = 70 + line * len(notes) + 92
    rows = [  # heading, pixels and lines of each tile, the image first
        [
            ("", row.drawn(), (*dict.fromkeys(filter(None, row.named)), *row.lines)),
            *((tile.heading, tile.drawn(gallery.look), tile.lines) for tile in row.tiles),
        ]
        for row in gallery.rows
    ]
    rows = [list(chain.from_iterable(rows[at : at + beside])) for at in range(0, len(rows), beside)]
    under = line * max(len(lines) for tiles in rows for _, _, lines in tiles) + 24
    tall = [max(pixels.shape[0] for _, pixels, _ in tiles) for tiles in rows]
    canvas = Image.new("RGB", (width, head + sum(tall) + len(tall) * under + margin), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((margin, 28), fit_text(gallery.title, 30, width - 2 * margin), INK, font(30))
    for index, text in enumerate(notes):
        pen.text((margin, 70 + line * index), text, FAINT, font(17))
    levels = np.tile(np.linspace(0, 255, 160).round().astype(np.uint8), (12, 1))
    bar = Image.fromarray(colours(levels, gallery.look.colormap))
    left, low = margin + math.ceil(font(15).getlength("low")) + 8, 78 + line * len(notes)
    canvas.paste(bar, (left, low))
    for x, word in ((margin, "low"), (left + bar.width + 8, "high")):
        pen.text((x, low + 6), word, FAINT, font(15), anchor="lm")
    top = head
    for index, (tiles, height) in enumerate(zip(rows, tall, strict=True)):
        if index:
            pen.line((margin, top - 10, width - margin, top - 10), RULE, 1)
        for column, (heading, pixels, lines) in enumerate(tiles):
            x = margin + column * (TILE + gap)
            if index == 0:
                for place, part in enumerate(with_names(heading).split(", ", 1)):
                    pen.text((x, head - 46 + 20 * place), fit_text(part, 16, TILE), (INK, FAINT)[place], font(16))
            canvas.paste(Image.fromarray(pixels), (x, top))
            for place, text in enumerate(lines):
                colour = INK if place == 0 else FAINT
                pen.text((x, top + height + 4 + line * place), fit_text(text, 16, TILE), colour, font(16))
        top += height + under
    return canvas


def _side_by_side(rows: Sequence[GalleryRow]) -> GalleryRow:
    several = len({row.checkpoint for row in rows}) > 1
    tiles = (
        replace(tile, heading=", ".join(filter(None, (row.checkpoint * several, tile.heading, row.under))), lines=lines)
        for row in rows
        for tile in row.tiles
        for lines in ((*row.lines, *tile.lines),)
    )
    return replace(rows[0], tiles=tuple(tiles), checkpoint="", lines=())


def _wrapped(text: str, size: int, width: int) -> list[str]:
    """Return the text in lines no wider than that; the middle of a wider word is left out."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font(size).getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(fit_text(word, size, width))
    return lines


def write_sheet(gallery: Gallery, path: Path) -> None:
    info = PngInfo()
    for key, text in _about(gallery).items():
        info.add_itxt(key, text)
    buffer = io.BytesIO()
    depict(gallery).save(buffer, "PNG", pnginfo=info)
    write_whole(path, buffer.getvalue())


def _about(gallery: Gallery) -> dict[str, str]:
    """Return the metadata of a picture: title, set-up, and what wrote it."""
    software = f"robustkit {metadata.version('robustkit-audit')}"
    return {"Title": gallery.title, "Description": "; ".join((*gallery.setup, *gallery.lines)), "Software": software}


WIDE = 170.0
"""The width of a figure in mm: the text of a page."""
_POINTS, _GAP, _NAMES = 7, 0.04, 0.2  # of text; between tiles, and of the names of checkpoints, in widths of a tile


_SETTINGS: Any = {"font.size": _POINTS, "svg.hashsalt": "robustkit", "svg.fonttype": "none"}
_SETTINGS |= {"pdf.fonttype": 42, "text.parse_math": False}
_KEYS = {  # what each kind of file calls the metadata
    "pdf": {"Title": "Title", "Subject": "Description", "Creator": "Software"},
    "svg": {"Title": "Title", "Description": "Description", "Creator": "Software"},
    "png": {"Title": "Title", "Description": "Description", "Software": "Software"},
}
_NO_DATE = {"pdf": "CreationDate", "svg": "Date"}


def write_figure(gallery: Gallery, path: Path) -> None:
    """Write `figure_of` as PDF, SVG or PNG, with the set-up in the file's metadata and without a date."""
    import matplotlib

    kind, about, buffer = path.suffix[1:].lower(), _about(gallery), io.BytesIO()
    info: dict[str, str | None] = {key: about[source] for key, source in _KEYS[kind].items()}
    if kind in _NO_DATE:
        info[_NO_DATE[kind]] = None
    with matplotlib.rc_context(_SETTINGS):
        figure_of(gallery).savefig(buffer, format=kind, dpi=300, metadata=info)
    write_whole(path, buffer.getvalue())


def figure_of(gallery: Gallery) -> Canvas:
    """Return a figure for a paper: a row for each checkpoint on an image, a column for each map, its name once on top;
    vectors around the pictures."""
    from matplotlib.figure import Figure

    several = len({row.checkpoint for row in gallery.rows}) > 1
    columns, width = 1 + max(len(row.tiles) for row in gallery.rows), (gallery.look.size or WIDE) / 25.4
    tile = width / (columns + (columns - 1) * _GAP + _NAMES * several)
    tall = [tile * row.image.shape[0] / row.image.shape[1] for row in gallery.rows]
    head, under, left = (2.9 if _targets(gallery) else 1.6) * _POINTS / 72, 2.2 * _POINTS / 72, _NAMES * tile * several
    height = sum(tall) + len(tall) * under + head
    canvas, top = Figure(figsize=(width, height)), height - head
    for index, (row, high) in enumerate(zip(gallery.rows, tall, strict=True)):
        pictures = [("", row.drawn()), *((panel.heading, panel.drawn(gallery.look)) for panel in row.tiles)]
        for place, (heading, pixels) in enumerate(pictures):
            x = left + place * tile * (1 + _GAP)
            axes = canvas.add_axes((x / width, (top - high) / height, tile / width, high / height))
            axes.imshow(pixels)
            axes.set_axis_off()
            parts = with_names(heading).split(", ", 1)[: 1 + _targets(gallery)]
            words = "\n".join(fit_label(part, tile * (1 + _GAP)) for part in parts)
            if index == 0:
                canvas.text((x + tile / 2) / width, (top + 2 / 72) / height, words, ha="center", va="bottom")
        predicted = " · ".join(line.removeprefix("predicts ") for line in row.lines)
        label = fit_label(", ".join(filter(None, (row.name, predicted, row.under))), width - left)
        canvas.text(left / width, (top - high - 2 / 72) / height, label, va="top")
        if several:
            place_of_name = left / 2 / width, (top - high / 2) / height
            canvas.text(*place_of_name, row.checkpoint, rotation=90, ha="center", va="center")
        top -= high + under
    return canvas


def _targets(gallery: Gallery) -> bool:
    """Whether maps are of named classes, so that headings say which."""
    parts = {tile.heading.partition(", ")[2] for row in gallery.rows for tile in row.tiles}
    return bool(parts - {"", "predicted class"})


def with_names(heading: str) -> str:
    """Return a heading with names of methods as papers write them: `AG-CAM, predicted class`."""
    return ", ".join(METHOD_NAMES.get(part, part).removeprefix("the ") for part in heading.split(", "))


def fit_label(text: str, inches: float) -> str:
    """Return the start of a line that fits a width, in the letters of a figure."""
    most = int(inches * 72 / (0.52 * _POINTS))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write_maps(gallery: Gallery, path: Path) -> None:
    buffer, arrays = io.BytesIO(), dict[str, Any](gallery.maps)
    np.savez_compressed(buffer, **arrays)
    write_whole(path, buffer.getvalue())


def encoded(image: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _uri(webp: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(webp).decode()


def choose(scores: Mapping[str, Sequence[float]], how: str, count: int, order: Sequence[str]) -> list[str]:
    """Pick ids by `best` or `worst` mean score over checkpoints, `disagreement` (the widest spread), or `random`; nan
    is left out. order: the ids in a random order, which also decides between equals."""
    if how == "random":
        return list(order[:count])
    keys: dict[str, Callable[[Sequence[float]], float]] = {
        "best": lambda values: -sum(values) / len(values),
        "worst": lambda values: sum(values) / len(values),
        "disagreement": lambda values: min(values) - max(values),
    }
    scored = [sample for sample in order if all(map(math.isfinite, scores.get(sample, (math.nan,))))]
    return sorted(scored, key=lambda sample: keys[how](scores[sample]))[:count]


def write_html(gallery: Gallery, path: Path) -> None:
    """Write one self-contained HTML page, all text escaped. Raises RunError where it cannot be written."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    # Of WebP, which takes a seventh of a PNG there
    environment.filters["uri"] = lambda each: _uri(encoded(Image.fromarray(each), "WEBP", quality=90, method=4))
    named = {  # boxes that hide what is not asked for, by the letter before each number in what they hide
        "m": ("Maps", [with_names(tile.heading) for row in gallery.rows[:1] for tile in row.tiles]),
        "c": ("Checkpoints", list(dict.fromkeys(row.checkpoint for row in gallery.rows))),
        "u": ("Images", list(dict.fromkeys(_condition_name(row) for row in gallery.rows))),
        "k": ("Classes", list(dict.fromkeys(row.of for row in gallery.rows))),
    }
    switches = [{"key": key, "legend": legend, "names": names} for key, (legend, names) in named.items()]
    levels = colours(np.linspace(0, 255, 9).round().astype(np.uint8)[None], gallery.look.colormap)[0]
    stops = ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in levels)
    script = shared(ENLARGE) + _template("gallery.js")
    page = environment.from_string(_template("gallery.html.j2")).render(
        gallery=gallery,
        switches=switches,
        shown=_condition_name,
        scale=SCALE,
        look=f"{shared(LOOK)}{_template('gallery.css')}.scale i {{ background: linear-gradient(90deg, {stops}); }}\n",
        with_names=with_names,
        script=script,
        policy=policy(script),
    )
    write_whole(path, page.encode())


def _condition_name(row: GalleryRow) -> str:
    return row.under or "clean"


def _template(name: str) -> str:
    return (resources.files("robustkit.slices.gallery") / "templates" / name).read_text(encoding="utf-8")
