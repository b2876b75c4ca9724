"""Contact sheets: an image under each corruption, at each severity."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from ...common.files import bytes_of, reason_of, write_whole
from ...data.images import FAINT, INK, PAPER, RULE, fit_text, font, open_picture, read_image, to_pixels
from ...data.sources import MAX_FILE_BYTES
from ...errors import BadImageError, ProtocolError, RunError
from ...evaluations.corruptions import categories, expand
from ...evaluations.corruptions.plan import check_constants, choose_textures
from .tree import CorruptOptions, Recipe, Severities, settle

SMALLEST_TILE = 128
SUFFIX = "-corruptions.png"
_MARK = "robustkit corrupt"  # text in the PNG, so that only our own file is ever overwritten


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
        return self.margin + self.label + index * (self.tile + self.gap) + (self.apart if index else 0)


@dataclass(frozen=True)
class Sheet:
    """The contents of a sheet. clean: (3, H, W) uint8. rows: by corruption the corrupted images by severity, alike."""

    title: str
    subtitle: str
    clean: Tensor
    rows: Mapping[str, Mapping[int, Tensor]]
    footnotes: Sequence[str] = field(default_factory=tuple)


def draw_sheet(sheet: Sheet) -> Image.Image:
    """Return the sheet as an RGB image: a row for each corruption, clean on the left, then the severities."""
    severities = sorted({severity for tiles in sheet.rows.values() for severity in tiles})
    names = [_words(name) for name in sheet.rows]
    layout = Layout(_shown(sheet.clean).width, 28 + math.ceil(max(font(24).getlength(name) for name in names)))
    places, bottom = _places(sheet, layout)
    width = layout.column(1 + len(severities)) - layout.gap + layout.margin
    canvas = Image.new("RGB", (width, bottom + layout.margin + 30 * len(sheet.footnotes)), PAPER)
    pen = ImageDraw.Draw(canvas)
    room = width - 2 * layout.margin
    pen.text((layout.margin, 36), fit_text(sheet.title, 40, room), INK, font(40))
    pen.text((layout.margin, 90), fit_text(sheet.subtitle, 19, room), FAINT, font(19))
    for column, head in enumerate(["clean", *(f"severity {severity}" for severity in severities)]):
        pen.text((layout.column(column) + layout.tile / 2, layout.title - 14), head, INK, font(20), anchor="ms")
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
        pen.text((layout.margin, bottom + 28 + 30 * line), fit_text(text, 19, room), FAINT, font(19))
    return canvas


def targets(images: Sequence[str | Path], out: Path | None) -> list[Path]:
    """Return where the sheets go. Raises ProtocolError where two would be one file, or one would replace an image;
    RunError where a file is there that is no contact sheet."""
    as_file = out is not None and out.suffix.lower() == ".png" and not out.is_dir()
    if as_file and len(images) > 1:
        raise ProtocolError(f"--out {out} is one file for {len(images)} images; give a folder")
    if out is not None and not as_file and out.suffix and not out.is_dir():
        raise ProtocolError(f"--out {out}: a contact sheet is a PNG; give a name ending in .png, or a folder")
    folder = Path() if out is None else out
    sheets = [out] if as_file and out is not None else [folder / (Path(path).stem + SUFFIX) for path in images]
    for place, target in enumerate(sheets):
        if target in sheets[:place]:
            raise ProtocolError(f"{images[place]}: another image has the same name, and so would its sheet {target}")
        if target.resolve() in {Path(path).resolve() for path in images}:
            raise ProtocolError(f"--out {target} is the input image; give another name")
        if target.exists() and not _is_sheet(target):
            raise RunError(f"{target} exists and is not a contact sheet; give another name with --out")
    return sheets


def _is_sheet(path: Path) -> bool:
    try:
        with open_picture(path) as image:
            return image.format == "PNG" and image.info.get("Software") == _MARK
    except Exception:  # Pillow raises many kinds for a broken file
        return False


def save(sheet: Sheet, path: Path) -> None:
    mark = PngInfo()
    mark.add_text("Software", _MARK)
    buffer = io.BytesIO()
    draw_sheet(sheet).save(buffer, "PNG", pnginfo=mark)
    write_whole(path, buffer.getvalue())


def _places(sheet: Sheet, layout: Layout) -> tuple[dict[str, tuple[int, str]], int]:
    """Return the top edge of every row, with the category where a new one begins, and where the last row ends."""
    places: dict[str, tuple[int, str]] = {}
    top = layout.title
    for category, names in categories().items():
        members = [name for name in names if name in sheet.rows]
        if members and places:
            top += layout.group - layout.gap
        for name in members:
            places[name] = (top, category if name == members[0] else "")
            top += layout.tile + layout.gap
    return places, top - layout.gap


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


def write_sheets(
    images: Sequence[str | Path], out: str | Path | None = None, **options: Any
) -> Iterator[tuple[Path, str, list[str]]]:
    """Draw a contact sheet of each image: every corruption at its severities.

    Args:
        images: files of pictures.
        out: the sheet of a single image, as a PNG, or a folder for several; None for the current folder.
        options: fields of `CorruptOptions` about corruptions. Without corruptions: in-c,in-c-extra.

    Yields:
        For each sheet, once it is written: its path, its image and corruptions in words, and notes on it.

    Raises:
        BadImageError: a file that is no image.
        ProtocolError: an unknown corruption, two sheets that would be one file, or one that would replace an image.
        RunError: a file is there that is no contact sheet.
    """
    recipe_options = CorruptOptions(**options)
    corruptions = expand(recipe_options.corruptions or "in-c,in-c-extra")
    files = targets(images, None if out is None else Path(out))
    pictures = [(Path(path).name, _picture(Path(path)), target) for path, target in zip(images, files, strict=True)]
    for name, picture, target in pictures:
        # A contact sheet may show our own textures unasked; a tree may not.
        folders = recipe_options.pictures
        textures, more = choose_textures(corruptions, recipe_options.corruptions or "", folders)
        recipe, lines = settle((picture.height, picture.width), recipe_options, textures)
        check_constants(corruptions, recipe.preset)
        for corruption in textures:
            recipe.digest(corruption)
        notes = [*lines, *filter(None, more)]
        save(_sheet(name, picture, corruptions, recipe, notes), target)
        yield target, f"{name} under {count_of(corruptions)}", notes


def count_of(corruptions: Severities) -> str:
    """Return how many corruptions, in words."""
    return "1 corruption" if len(corruptions) == 1 else f"{len(corruptions)} corruptions"


def _picture(path: Path) -> Image.Image:
    try:
        data = bytes_of(path, MAX_FILE_BYTES)
    except OSError as fault:
        raise BadImageError(f"{path}: {reason_of(fault)}; give image files") from None
    return read_image(data, str(path))


def _sheet(name: str, picture: Image.Image, corruptions: Severities, recipe: Recipe, footnotes: Sequence[str]) -> Sheet:
    clean = to_pixels(picture, recipe.preprocessing, name)
    rows = {
        corruption: {severity: recipe.corrupt(clean[None], [name], corruption, severity)[0] for severity in severities}
        for corruption, severities in corruptions.items()
    }
    size = recipe.preprocessing.input_size[0]
    as_it_is = picture.size == (size, size) and recipe.preprocessing.crop_pct == 1
    changed = "unchanged" if as_it_is else f"resized and cropped to {size}x{size}"
    subtitle = f"{picture.width}x{picture.height} pixels, {changed}; "
    subtitle += f"preset {recipe.preset}, variant {recipe.variant}, seed {recipe.seed}"
    return Sheet(name, subtitle, clean, rows, footnotes)
