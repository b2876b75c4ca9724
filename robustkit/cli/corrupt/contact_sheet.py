"""Draw a user's own picture under every corruption as one PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from ...common.files import write_whole
from ...data.picture_files import open_picture
from ...display.sheet import FAINT, INK, PAPER, RULE, fitted, font
from ...errors import ProtocolError, RunError
from ...evaluations.corruptions.sets import categories

SMALLEST_TILE = 128
SUFFIX = "-corruptions.png"
_MARK = {"Software": "robustkit corrupt"}  # text in the PNG, so that only our own file is ever overwritten


@dataclass(frozen=True)
class Layout:
    """Measures in pixels. tile: side of a shown image. label: width of the names on the left."""

    tile: int = 224
    label: int = 220
    gap: int = 8
    margin: int = 44
    apart: int = 20  # between the clean column and the others
    group: int = 48  # between categories
    title: int = 168

    def column(self, index: int) -> int:
        """Return the left edge of a column of tiles."""
        return self.margin + self.label + index * (self.tile + self.gap) + (self.apart if index else 0)


@dataclass(frozen=True)
class Sheet:
    """The contents of a sheet.

    title, subtitle: the two lines at the top. clean: (3, H, W) uint8. rows: by corruption the corrupted images by
    severity, alike. footnotes: lines at the bottom.
    """

    title: str
    subtitle: str
    clean: Tensor
    rows: Mapping[str, Mapping[int, Tensor]]
    footnotes: Sequence[str] = field(default_factory=tuple)


def draw(sheet: Sheet) -> Image.Image:
    """Return the sheet as an RGB image: a row for each corruption, clean on the left, then the severities."""
    severities = sorted({severity for tiles in sheet.rows.values() for severity in tiles})
    names = [_words(name) for name in sheet.rows]
    layout = Layout(_shown(sheet.clean).width, 28 + math.ceil(max(font(24).getlength(name) for name in names)))
    places, bottom = _places(sheet, layout)
    width = layout.column(1 + len(severities)) - layout.gap + layout.margin
    canvas = Image.new("RGB", (width, bottom + layout.margin + 30 * len(sheet.footnotes)), PAPER)
    pen = ImageDraw.Draw(canvas)
    _head(pen, sheet, layout, severities, width)
    clean = _shown(sheet.clean)
    for name, (top, category) in places.items():
        if category:
            above = top - layout.group // 2
            if top > layout.title:
                pen.line((layout.margin, above, width - layout.margin, above), RULE, 2)
            pen.text((layout.margin, top + 2), category.upper(), FAINT, font(17))
        pen.text((layout.margin, top + layout.tile / 2), _words(name), INK, font(24), anchor="lm")
        canvas.paste(clean, (layout.column(0), top))
        for place, severity in enumerate(severities, 1):
            if severity in sheet.rows[name]:
                canvas.paste(_shown(sheet.rows[name][severity]), (layout.column(place), top))
    for line, text in enumerate(sheet.footnotes):
        text = fitted(text, 19, width - 2 * layout.margin)
        pen.text((layout.margin, bottom + 28 + 30 * line), text, FAINT, font(19))
    return canvas


def targets(images: Sequence[str], out: Path | None) -> list[Path]:
    """Return where the sheets go: a file, or `<stem>-corruptions.png` in a folder, here if none is named.

    Raises:
        ProtocolError: two sheets would be one file, or a sheet would replace an image.
        RunError: the file exists and is not a contact sheet.
    """
    as_file = out is not None and out.suffix.lower() == ".png" and not out.is_dir()
    if as_file and len(images) > 1:
        raise ProtocolError(f"--out {out} is one file for {len(images)} images; give a folder")
    if out is not None and not as_file and out.suffix and not out.is_dir():
        raise ProtocolError(f"--out {out}: a contact sheet is a PNG; give a name that ends in .png, or a folder")
    folder = Path() if out is None else out
    sheets = [out] if as_file and out is not None else [folder / (Path(path).stem + SUFFIX) for path in images]
    for place, target in enumerate(sheets):
        if target in sheets[:place]:
            raise ProtocolError(f"{images[place]}: another image has the same name, and so would its sheet {target}")
        if target.resolve() in {Path(path).resolve() for path in images}:
            raise ProtocolError(f"--out {target} is the image itself; give another name")
        if target.exists() and not _is_sheet(target):
            raise RunError(f"{target} exists and is not a contact sheet; give another name with --out")
    return sheets


def _is_sheet(path: Path) -> bool:
    try:
        with open_picture(path) as image:
            return image.format == "PNG" and image.info.get("Software") == _MARK["Software"]
    except Exception:  # Pillow raises many kinds for a broken file
        return False


def save(sheet: Sheet, path: Path) -> None:
    """Draw the sheet into a PNG.

    Raises:
        RunError: the file cannot be written.
    """
    mark = PngInfo()
    for key, text in _MARK.items():
        mark.add_text(key, text)
    buffer = io.BytesIO()
    draw(sheet).save(buffer, "PNG", pnginfo=mark)
    write_whole(path, buffer.getvalue())


def _places(sheet: Sheet, layout: Layout) -> tuple[dict[str, tuple[int, str]], int]:
    """Return the top edge of every row, with the category where a new one begins, and where the last row ends."""
    places: dict[str, tuple[int, str]] = {}
    top = layout.title
    for category, names in categories().items():
        shown = [name for name in names if name in sheet.rows]
        if shown and places:
            top += layout.group - layout.gap
        for name in shown:
            places[name] = (top, category if name == shown[0] else "")
            top += layout.tile + layout.gap
    return places, top - layout.gap


def _head(pen: ImageDraw.ImageDraw, sheet: Sheet, layout: Layout, severities: Sequence[int], width: int) -> None:
    room = width - 2 * layout.margin
    pen.text((layout.margin, 36), fitted(sheet.title, 40, room), INK, font(40))
    pen.text((layout.margin, 90), fitted(sheet.subtitle, 19, room), FAINT, font(19))
    for column, head in enumerate(["clean", *(f"severity {severity}" for severity in severities)]):
        x = layout.column(column) + layout.tile / 2
        pen.text((x, layout.title - 14), head, INK, font(20), anchor="ms")


def _shown(pixels: Tensor) -> Image.Image:
    """Return a tile: the pixels as they are; small images enlarged pixel by pixel, large ones shrunk."""
    image = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
    side = image.width
    if side < SMALLEST_TILE:
        side *= math.ceil(SMALLEST_TILE / side)
        return image.resize((side, side), Image.Resampling.NEAREST)
    return image.resize((Layout.tile, Layout.tile), Image.Resampling.LANCZOS) if side > Layout.tile else image


def _words(name: str) -> str:
    return name.replace("_", " ").replace("jpeg", "JPEG")
