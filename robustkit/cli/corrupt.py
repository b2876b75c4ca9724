"""Run `robustkit corrupt`: draw a contact sheet, write a tree, or compare one."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from torch import Tensor

from ..common.files import bytes_of, reason_of, write_whole
from ..data.dataset import Dataset, open_dataset
from ..data.images import open_picture, read_image, to_pixels
from ..data.sources import MAX_FILE_BYTES
from ..display.console import print_as_it_is, print_tables
from ..display.progress import Bars
from ..display.sheet import FAINT, INK, PAPER, RULE, fit_text, font
from ..errors import BadImageError, DataError, NothingEvaluated, ProtocolError, RunError
from ..evaluations.corruptions.condition import FROST, asked_texture, categories, expand
from ..evaluations.corruptions.plan import choose_texture, native_size, texture_digest
from ..evaluations.corruptions.tree import CorruptedTree
from .corrupt_tree import DRIFT_RULE, Recipe, Wanted, drift_table, measure, prepare, settle, write_tree

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


def targets(images: Sequence[str], out: Path | None) -> list[Path]:
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


def carry_out_corrupt(
    images: Sequence[str],
    write: Path | None,
    drift_from: Path | None,
    *,
    data_dir: str | None,
    console: Console,
    side: Console,
    **options: Any,
) -> None:
    """Carry out the request: exactly one of images, write and drift_from. console: for results. side: for progress."""
    asked = [bool(images), write is not None, drift_from is not None]
    if sum(asked) != 1:
        problem = "none of them" if not any(asked) else "several of them"
        raise ProtocolError(f"give IMAGE..., --write DIR or --drift TREE, exactly one of them; got {problem}")
    mode = "a contact sheet" if images else "--write" if write is not None else "--drift"
    for name in _UNUSED[mode]:
        if (options | {"data_dir": data_dir}).get(name) is not None:
            option = _SPELLED.get(name, "--" + name.replace("_", "-"))
            raise ProtocolError(f"{option} does not apply to {mode}; leave it out")
    options["image_format"] = options["image_format"] or "jpeg"
    if images:
        _sheets(images, console, side, options)
        return
    if not data_dir:
        mode, what = ("--write", "to corrupt") if write is not None else ("--drift", "that the tree was made of")
        raise DataError(f"{mode} needs --data-dir, the clean images {what}")
    if write is not None:
        _write(write, data_dir, console, side, options)
    elif drift_from is not None:
        _drift(drift_from, data_dir, console, side, options)


_UNUSED = {
    "a contact sheet": ("data_dir", "json_file", "image_format", "limit", "ids", "labels_csv", "real_labels", "layout"),
    "--write": ("json_file", "out"),
    "--drift": ("image_format", "out"),
}
_SPELLED = {"json_file": "--json", "image_format": "--format", "labels_csv": "--labels"}


def _count(corruptions: Wanted) -> str:
    return "1 corruption" if len(corruptions) == 1 else f"{len(corruptions)} corruptions"


def _without_frost(corruptions: Wanted, recipe: Recipe) -> tuple[Wanted, str]:
    """Return what can be done without frost's photographs if they are missing, and the line that says so."""
    if FROST not in corruptions:
        return corruptions, ""
    try:
        texture_digest(recipe.texture, recipe.frost_dir)
    except DataError as fault:
        rest = {name: severities for name, severities in corruptions.items() if name != FROST}
        if not rest:
            raise
        return rest, f"left out frost: {fault}"
    return corruptions, ""


def _sheets(images: Sequence[str], console: Console, side: Console, options: Mapping[str, Any]) -> None:
    corruptions = expand(options["corruptions"] or "in-c,in-c-extra")
    files = targets(images, options["out"])
    pictures = [(Path(path).name, _picture(Path(path)), target) for path, target in zip(images, files, strict=True)]
    for name, picture, target in pictures:
        texture, line = _shown_texture(corruptions, options)
        recipe, lines = settle((picture.height, picture.width), options, texture)
        save(_sheet(name, picture, corruptions, recipe, [*lines, *filter(None, [line])]), target)
        print_as_it_is(side, *lines, line)
        print_as_it_is(console, f"{target}: {name} under {_count(corruptions)}")


def _shown_texture(corruptions: Wanted, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the texture of frost for a contact sheet, which may show our own unasked; a tree may not."""
    if FROST not in corruptions:
        return "photographs", ""
    chosen = choose_texture(asked_texture(options["corruptions"] or ""), options["frost_dir"])
    texture_digest(chosen[0], options["frost_dir"])
    return chosen


def _picture(path: Path) -> Image.Image:
    try:
        data = bytes_of(path, MAX_FILE_BYTES)
    except OSError as fault:
        raise BadImageError(f"{path}: {reason_of(fault)}; give image files") from None
    return read_image(data, str(path))


def _sheet(name: str, picture: Image.Image, corruptions: Wanted, recipe: Recipe, footnotes: Sequence[str]) -> Sheet:
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


def _open(data_dir: str, options: Mapping[str, Any]) -> Dataset:
    layout = {key: options[key] for key in ("layout", "labels_csv", "real_labels")}
    try:
        return open_dataset(data_dir, **layout)
    except DataError:
        if any(layout.values()):
            raise
        return open_dataset(data_dir, layout="unlabelled")  # no label is needed here


def _chosen(whole: Dataset, options: Mapping[str, Any]) -> Dataset:
    chosen = whole.select(limit=options["limit"], ids=options["ids"], seed=options["seed"])
    if not chosen.samples:
        raise NothingEvaluated(f"{whole.root}: no sample is left; relax --limit or --ids")
    return chosen


def _write(out: Path, data_dir: str, console: Console, side: Console, options: Mapping[str, Any]) -> None:
    corruptions = expand(options["corruptions"] or "in-c")
    whole = _open(data_dir, options)
    dataset = _chosen(whole, options)
    recipe, lines = settle(native_size(dataset), options)
    photographs = texture_digest(recipe.texture, recipe.frost_dir) if FROST in corruptions else None
    image_format = options["image_format"]
    prepare(out, dataset, whole, corruptions, recipe, image_format, photographs)
    total = sum(map(len, corruptions.values())) * len(dataset)
    print_as_it_is(side, *dataset.notes, *lines)
    speed = options["batch_size"], options["workers"]
    with _bar(side, f"writing {out}", total) as tell:
        made, existing, bad = write_tree(out, dataset, corruptions, recipe, image_format, *speed, tell)
    note = f", {existing} already existed" if existing else ""
    print_as_it_is(console, f"{out}: {made} files written{note}; {_count(corruptions)} of {len(dataset)} images")
    if bad:
        raise BadImageError(
            f"{len(bad)} of {len(dataset)} images could not be read and were skipped, the first: {bad[0]}; fix them, "
            "or exclude them with --ids"
        )


def _drift(root: Path, data_dir: str, console: Console, side: Console, options: Mapping[str, Any]) -> None:
    tree = CorruptedTree.open(root)
    asked = options["corruptions"]
    corruptions: Wanted = tree.present if asked is None else expand(asked)
    whole = _open(data_dir, options)
    cells = [(name, severity) for name, severities in corruptions.items() for severity in severities]
    samples = [sample for sample in whole.samples if any(tree.path(sample.id, *cell) for cell in cells)]
    if not samples:
        such = f"an id is {whole.samples[0].id!r}"
        raise DataError(f"{root} holds no image of {data_dir} under {', '.join(corruptions)}; {such}")
    held = f"{root} holds {len(samples)} of {len(whole)} images" if len(samples) < len(whole) else ""
    dataset = _chosen(replace(whole, samples=tuple(samples)), options)
    like = _size_of(tree, dataset) if options["img_size"] is None else None
    recipe, lines = settle(native_size(dataset), options, img_size=like)
    corruptions, left_out = _without_frost(corruptions, recipe)
    with _bar(side, f"comparing {root}", sum(map(len, corruptions.values())) * len(dataset)) as tell:
        result = measure(tree, dataset, corruptions, recipe, options["batch_size"], options["workers"], tell)
    rows = result.rows()
    if not any(row["images"] for row in rows):
        raise DataError(f"{root}: no image could be compared; {(*result.lines, 'none was chosen')[0]}")
    notes = [*tree.notes, *lines, *filter(None, (held, left_out)), *result.lines]
    if (path := options["json_file"]) is not None:
        settings = {
            "tree": str(root),
            "data": data_dir,
            **{key: getattr(recipe, key) for key in ("seed", "preset", "variant")},
            "preprocessing": asdict(recipe.preprocessing),
            "rule": DRIFT_RULE,
        }
        report = json.dumps({**settings, "notes": notes, "rows": rows}, indent=2, ensure_ascii=False) + "\n"
        write_whole(path, report.encode(), remedy="choose another file with --json")
    print_as_it_is(side, *notes)
    print_tables(console, [drift_table(rows)], "the --json file")
    print_as_it_is(
        console, "mean absolute difference in grey levels (0-255), averaged over images and severities.", DRIFT_RULE
    )


def _size_of(tree: CorruptedTree, dataset: Dataset) -> int | None:
    """Return the side of the tree's images; None where they are not square, or none can be read."""
    for name, severity in tree.folders:
        for sample in dataset.samples[:20]:
            try:
                width, height = read_image(tree.read(sample.id, name, severity), sample.id).size
            except BadImageError:
                continue
            return width if width == height else None
    return None


@contextmanager
def _bar(console: Console, text: str, total: int) -> Iterator[Callable[[int], None]]:
    bars = Bars(console, "files")
    bars.overall = bars.time_left
    with bars:
        task = bars.begin([text], total)
        yield lambda files: bars.advance(task, files)
