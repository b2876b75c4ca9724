"""Draw scenes of a run: image, truth, and each checkpoint's segmentation."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ...common.files import bytes_of
from ...data.dataset import Sample
from ...data.images import FAINT, INK, PAPER, RULE, fit_text, font
from ...data.scenes import LabelledScenes
from ...display.format import percent
from ...errors import BadImageError
from ...evaluations.condition import shows, words_of
from ...evaluations.family import family_of
from ...evaluations.subject import Batch, Settings
from ...models.dense import Segmenter
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition
from ...runs.folder import RunFolder, refuse_link
from .counts import class_counts
from .subject import SegmenterSubject

Pixels = NDArray[np.uint8]
LabelMap = NDArray[np.int16]

FILE = "scenes/examples.png"  # the path of the sheet in a run folder
TILE = 240
STRENGTH = 0.6  # of a class's colour over the image
# Okabe and Ito's colours, which colour-blind people tell apart, then lighter and darker ones between them.
_COLOURS = (
    *((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (213, 94, 0), (86, 180, 233), (240, 228, 66)),
    *((140, 70, 20), (90, 40, 110), (150, 205, 120), (250, 190, 180), (30, 60, 60), (170, 140, 90)),
)


@dataclass(frozen=True)
class Pane:
    """image: (H, W, 3) uint8 as it was shown. labels: its label map, None for the image alone. lines: under it."""

    image: Pixels
    labels: LabelMap | None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Panes:
    """headings: of the columns, in two lines each. rows: tiles in their order. class_names: for the legend."""

    title: str
    line: str
    headings: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Pane, ...], ...]
    class_names: tuple[str, ...]


def colour_of(place: int) -> tuple[int, int, int]:
    """Return the colour of a class; beyond the list, classes get a hue spread by their number."""
    if place < len(_COLOURS):
        return _COLOURS[place]
    hue = (place * 0.618034) % 1 * 180
    level = (110, 175, 235)[place % 3]
    pixel = np.array([[[hue, 150, level]]], dtype=np.uint8)
    red, green, blue = np.asarray(cv2.cvtColor(pixel, cv2.COLOR_HSV2RGB))[0, 0].tolist()
    return red, green, blue


def coloured(tile: Pane, plain: Sequence[int] = ()) -> Pixels:
    """Return the tile at its width; labels in colour over grey, ignored pixels and `plain` classes left grey."""
    height, width = tile.image.shape[:2]
    size = (TILE, min(2 * TILE, max(1, round(TILE * height / width))))
    way = cv2.INTER_NEAREST if width < TILE else cv2.INTER_AREA
    image = np.asarray(cv2.resize(tile.image, size, interpolation=way), dtype=np.uint8)
    if tile.labels is None:
        return image
    labels = np.asarray(cv2.resize(tile.labels, size, interpolation=cv2.INTER_NEAREST))
    colours = np.array([colour_of(place) for place in range(int(labels.max(initial=0)) + 1)], dtype=np.float32)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32)
    mixed = (1 - STRENGTH) * grey + STRENGTH * colours[labels.clip(min=0)]
    grey = np.repeat(grey, 3, axis=2)
    return np.where((labels < 0)[..., None] | np.isin(labels, plain)[..., None], grey, mixed).round().astype(np.uint8)


def collage(sheet: Panes) -> Image.Image:
    margin, gap, line = 36, 12, 24
    columns = len(sheet.headings)
    width = 2 * margin + columns * TILE + (columns - 1) * gap
    legend = _legend(sheet, width - 2 * margin)
    head = 100 + line * len(legend) + 62
    plain = _plain(sheet)
    rows = [[coloured(tile, plain) for tile in row] for row in sheet.rows]
    tall = [max(pixels.shape[0] for pixels in row) for row in rows]
    canvas = Image.new("RGB", (width, head + sum(tall) + len(tall) * (line + 28) + margin), PAPER)
    pen = ImageDraw.Draw(canvas)
    pen.text((margin, 26), fit_text(sheet.title, 30, width - 2 * margin), INK, font(30))
    subtitle = f"{sheet.line}; grey: background or not counted"
    pen.text((margin, 68), fit_text(subtitle, 17, width - 2 * margin), FAINT, font(17))
    for place, entries in enumerate(legend):
        x = margin
        for colour, name, wide in entries:
            y = 102 + line * place
            pen.rectangle((x, y, x + 16, y + 16), colour)
            pen.text((x + 24, y + 8), name, INK, font(16), anchor="lm")
            x += wide
    for column, (first, second) in enumerate(sheet.headings):
        x = margin + column * (TILE + gap)
        pen.text((x, head - 48), fit_text(first, 16, TILE), INK, font(16))
        pen.text((x, head - 26), fit_text(second, 16, TILE), FAINT, font(16))
    top = head
    for index, (row, pixels, height) in enumerate(zip(sheet.rows, rows, tall, strict=True)):
        if index:
            pen.line((margin, top - 12, width - margin, top - 12), RULE, 1)
        for column, (tile, picture) in enumerate(zip(row, pixels, strict=True)):
            x = margin + column * (TILE + gap)
            canvas.paste(Image.fromarray(picture), (x, top))
            for place, text in enumerate(tile.lines):
                pen.text((x, top + height + 4 + line * place), fit_text(text, 16, TILE), INK, font(16))
        top += height + line + 28
    return canvas


def _plain(sheet: Panes) -> tuple[int, ...]:
    return tuple(place for place, name in enumerate(sheet.class_names) if name.lower() == "background")


def _legend(sheet: Panes, width: int) -> list[list[tuple[tuple[int, int, int], str, int]]]:
    places: set[int] = set()
    for row in sheet.rows:
        for tile in row:
            places |= set() if tile.labels is None else set(np.unique(tile.labels).tolist())
    lines: list[list[tuple[tuple[int, int, int], str, int]]] = [[]]
    for place in sorted(places - {-1, *_plain(sheet)}):
        name = fit_text(sheet.class_names[place], 16, 240)
        wide = 24 + round(font(16).getlength(name)) + 24
        if lines[-1] and sum(entry[2] for entry in lines[-1]) + wide > width:
            lines.append([])
        lines[-1].append((colour_of(place), name, wide))
    return lines


def sheet_uri(run: RunFolder) -> str | None:
    """Return the sheet of a run as a data URI; None where there is none."""
    path = run.path / FILE
    refuse_link(path, run.path)
    return "data:image/png;base64," + base64.b64encode(bytes_of(path)).decode() if path.is_file() else None


def draw_examples(
    run: RunFolder,
    models: Sequence[Segmenter],
    scenes: LabelledScenes,
    conditions: Sequence[Condition],
    card: Card,
    settings: Settings,
    count: int = 4,
) -> Path | None:
    """Write the sheet of the images with the lowest pixel accuracy, the worst first: clean, the first attack, the
    corruption of lowest mIoU. Return its path; None without scenes."""
    drawn = shown_conditions(run, conditions)
    subjects = [SegmenterSubject(model, card, settings, scenes.unjudged) for model in models]
    rows = []
    for sample in worst_scenes(run, scenes)[:count]:
        try:
            rows.append(tuple(_tiles(subjects, scenes, sample, drawn)))
        except BadImageError:
            continue
    if not rows:
        return None
    names = [model.identity.name for model in models]
    words = [words_of(each.text).label(each.text) for each in drawn]
    words = [text.replace("_", " ") if each.group else text for each, text in zip(drawn, words, strict=True)]
    headings = (("image", ""), ("truth", ""), *((text, name) for name in names for text in words))
    line = f"{scenes.dataset.name}; protocol {card.tag}"
    sheet = Panes(", ".join(names), line, headings, tuple(rows), scenes.class_names)
    buffer = io.BytesIO()
    collage(sheet).save(buffer, "PNG")
    run.write(run.path / FILE, buffer.getvalue())
    return run.path / FILE


def shown_conditions(run: RunFolder, conditions: Sequence[Condition]) -> list[Condition]:
    scores: dict[str, list[float]] = {}
    for row in run.summary():
        if row.metric == "miou" and row.is_finite:
            scores.setdefault(row.condition, []).append(row.value)
    grouped = [condition for condition in conditions if condition.group and condition.text in scores]
    worst = sorted(grouped, key=lambda condition: sum(scores[condition.text]))[:1]
    alone = [each for each in conditions if not each.group and each != CLEAN and shows(each.text)][:1]
    return [CLEAN, *worst, *alone]


def worst_scenes(run: RunFolder, scenes: LabelledScenes) -> list[Sample]:
    """Return the samples of the run that could be read under every condition and have a pixel that counts; those first
    of which the fewest pixels are right, over all checkpoints, on clean images if there are any."""
    samples = {sample.id: sample for sample in scenes.dataset.samples}
    right, units = dict.fromkeys(samples, 0.0), [unit for unit in run.units() if shows(unit[1])]
    ranked = CLEAN.text if any(condition == CLEAN.text for _, condition in units) else units[0][1] if units else ""
    for checkpoint, condition in units:
        table = run.table(checkpoint, condition, ["sample_id", "pixels", "intersections"]).to_pydict()
        for name, pixels, hits in zip(table["sample_id"], table["pixels"], table["intersections"], strict=True):
            if not pixels:
                samples.pop(name, None)
            elif condition == ranked and name in right:
                right[name] += sum(hits) / pixels
    return sorted(samples.values(), key=lambda sample: (right[sample.id], sample.id))


def _tiles(
    subjects: Sequence[SegmenterSubject], scenes: LabelledScenes, sample: Sample, conditions: Sequence[Condition]
) -> Iterator[Pane]:
    image: Pixels = np.array(scenes.dataset.image(sample))
    truth = scenes.labels(sample, (image.shape[0], image.shape[1]))
    yield Pane(image, None, (sample.id,))
    yield Pane(image, truth)
    pixels, labels = torch.from_numpy(image).permute(2, 0, 1)[None], torch.from_numpy(truth).long()[None]
    for subject in subjects:
        target = labels.to(subject.settings.device)
        for condition in conditions:
            rng, batch = subject.rng([sample], condition), Batch(pixels, [sample], [truth])
            show = partial(family_of(condition.name).evaluator.show, subject, batch, condition, rng)
            inputs = subject.steadily(condition.text, rng, show).inputs
            predictions = subject.steadily(condition.text, rng, partial(subject.predicted, inputs))
            right, predicted, labelled = (
                part[0] for part in class_counts(predictions, target, len(scenes.class_names))
            )
            union = predicted + labelled - right
            ious = (right[union > 0] / union[union > 0]).tolist()
            score = f"mIoU {percent(sum(ious) / len(ious))}" if ious else "no pixel counts"
            made = (inputs[0] * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            yield Pane(made, predictions[0].short().cpu().numpy(), (score,))
