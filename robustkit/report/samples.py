"""The pictures that a run kept, with what checkpoints predicted: for the browser of samples, and as objects."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.overlay import ALPHA, COLORMAP, blend

from ..common.names import canonical
from ..data.class_names import class_name, class_names
from ..data.images import Refused, open_picture
from ..display.format import number, percent, size_text
from ..display.text import finite_json
from ..errors import RunError
from ..evaluations.condition import View, group_of, kind_named, matches, name_of, pattern_of, shares_of, words_of
from ..evaluations.metrics import is_finite
from ..protocol.condition import CLEAN
from ..runs.folder import TAKEN, RunFolder, only_taken
from ..runs.kept_images import Picture, kept_conditions, read_pictures
from ..tasks.task import task_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


_HELD = 64_000_000  # bytes of pictures in memory; the page, where they are smaller, takes about a fifth of that
_PICTURE = 1 << 22  # pixels of a kept picture
_UNDER_MAP = 160  # pixels of the longest side of a picture under a map


def held_pictures(
    run: RunFolder, checkpoints: Sequence[str], texts: Sequence[str], ids: Sequence[str]
) -> tuple[list[str], dict[tuple[str, str], dict[str, Picture]]]:
    """Return the first samples, as many as fit in memory, and their pictures by checkpoint and condition."""
    sizes = dict.fromkeys(ids, 0)
    by_unit: dict[tuple[str, str], dict[str, Picture]] = {}
    for checkpoint in checkpoints if ids else ():
        for text in texts:
            by_unit[checkpoint, text] = pictures = read_pictures(run, checkpoint, text)
            for name in sizes.keys() & pictures.keys():
                sizes[name] += sum(len(part or b"") for part in (pictures[name].image, pictures[name].difference))
            totals = enumerate(zip(sizes.items(), accumulate(sizes.values()), strict=True))
            sizes = dict(item for place, (item, total) in totals if total <= _HELD or not place)
            for other in by_unit.values():
                for name in other.keys() - sizes.keys():
                    del other[name]
    return list(sizes), by_unit


def uri_of(image: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(image).decode()}"


def opened(image: bytes) -> Image.Image:
    """Return a kept picture; an untrusted run folder may hold a larger one. Raises what `open_picture` raises."""
    picture = open_picture(image)
    if picture.width * picture.height > _PICTURE:
        raise Refused(f"a kept picture of {picture.width} x {picture.height} pixels")
    return picture


def thumbnail(image: bytes, side: int) -> bytes:
    """Return a picture whose longest side is at most `side`, as WebP."""
    with opened(image) as picture:
        small = picture.convert("RGB")
    return _webp(small, side)


def _webp(image: Image.Image, side: int) -> bytes:
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=2)
    return buffer.getvalue()


TILE = 224


def blended(
    image: NDArray[np.uint8],
    heat: NDArray[np.float32],
    width: int = TILE,
    colormap: str = COLORMAP,
    alpha: float = ALPHA,
) -> NDArray[np.uint8]:
    """Return the image as a tile of that width, under its map as `cam.overlay` shows it."""
    return blend(tile_of(image, width), heat, colormap, alpha)


def tile_of(pixels: NDArray[np.uint8], width: int = TILE) -> NDArray[np.uint8]:
    """Enlarge pixel by pixel, or shrink, to a width."""
    size = (width, max(1, round(width * pixels.shape[0] / pixels.shape[1])))
    small = pixels.shape[1] < width
    return np.array(
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)
    )


def under_map(image: bytes, heat: bytes, width: int = TILE) -> Image.Image:
    """Return a kept picture of that width under its map."""
    with opened(image) as picture, opened(heat) as levels:
        pixels, values = np.array(picture.convert("RGB")), np.array(levels.convert("L"), np.float32)
    return Image.fromarray(blended(pixels, values / np.float32(255), width))


@dataclass(frozen=True)
class Answer:
    """A prediction. right: None if unknown. text: class and confidence. place: in `Browser.conditions`, -1 for
    clean."""

    right: bool | None
    text: str
    level: str = ""
    place: int = -1


class SampleTile(NamedTuple):
    """A picture. text: what it shows. place: of its condition, as of an answer. changed: is it what an attack
    changed?"""

    uri: str
    text: str
    place: int = -1
    changed: bool = False


@dataclass(frozen=True)
class SampleCell:
    """A checkpoint under a condition: its own pictures, a line under them, its answers."""

    pictures: tuple[SampleTile, ...] = ()
    line: str = ""
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class SampleLine:
    """Conditions that share a line. picture: where all checkpoints were shown the same. places: as of an answer; of a
    map, of the condition that it is over. role: `shown`, or `map`."""

    heading: str
    cells: tuple[SampleCell, ...]
    picture: SampleTile | None = None
    places: tuple[int, ...] = ()
    role: str = "shown"


@dataclass(frozen=True)
class SampleView:
    """One sample. before: for each checkpoint 1 where it is right when clean, 0 where wrong, - where unknown; after:
    the same, a sign for each of `Browser.conditions`. changed: indices of those where a prediction changes. words: to
    search in."""

    sample_id: str
    label: str
    thumbnail: str
    clean: str
    before: str
    after: tuple[str, ...]
    changed: tuple[int, ...]
    words: str
    lines: tuple[SampleLine, ...]

    @property
    def weight(self) -> int:
        tiles = [tile for line in self.lines for cell in line.cells for tile in cell.pictures]
        tiles += [line.picture for line in self.lines if line.picture]
        return len(self.thumbnail) + sum(len(tile.uri) for tile in tiles)


PICTURES = 6_400_000  # the number of characters of the page that its pictures may take
_SIDES = (224, 192, 160, 128)  # longest side of a picture: the first with which all fit, or else the last
_BLOCK = 16  # samples whose records are read together
_COLUMNS = ("sample_id", "label", "prediction", "correct", "confidence", "linf", "error")

Rows = Mapping[tuple[str, str], Mapping[str, Any]]


class Browser:
    """The samples of a run that have pictures, in its order. conditions: texts of those under which a prediction can
    change. called: what people call each text. room: bytes that a page has for the pictures."""

    def __init__(self, run: RunFolder) -> None:
        self.run, manifest = run, run.manifest
        self.checkpoints = manifest.names
        views = {text: view for text in manifest.conditions if (view := words_of(text).view(text)) is not None}
        units = {unit for unit in run.units() if unit[1] in views}
        texts = [text for text in views if any((name, text) in units for name in self.checkpoints)]
        self._views = {text: views[text] for text in texts}
        self.called = {text: name_of(text, "table", manifest) for text in texts}
        self._lines: dict[str, list[str]] = {}
        for text in texts:
            if views[text].over is None:
                self._lines.setdefault(views[text].line, []).append(text)
        self._maps = [text for text in texts if views[text].over is not None and views[text].drawn]
        tells = [text for text in texts if views[text].over == CLEAN.text]  # what it says about the clean images
        self._clean = first = CLEAN.text if CLEAN.text in texts else next(iter(tells), "")
        self.conditions = [text for text in texts if views[text].over is None and text != first] if first else []
        class_list = manifest.data.class_names or manifest.checkpoints[0].class_names
        self._names = class_names(class_list, manifest.data.classes)
        self.pictured_ids: list[str] = list(manifest.pictures) if task_of(manifest).browsed else []
        ids, self._pictures = held_pictures(run, self.checkpoints, texts, self.pictured_ids)
        self._ids = [name for name in ids if any(name in pictures for pictures in self._pictures.values())]
        self._units = [unit for unit in run.units() if self._ids and unit in units]
        self.room = PICTURES
        self._side = self._fitting()

    def samples(self) -> Iterator[SampleView]:
        """Yield samples one by one, so that a page can stop when it is full."""
        where = _shards(self.run, *self._units[0]) if self._ids else {}
        for start in range(0, len(self._ids), _BLOCK):
            some = self._ids[start : start + _BLOCK]
            files = {where[name] for name in some if name in where}
            by_unit = {unit: self._rows(unit, some, files) for unit in self._units}
            for name in some:
                yield self._sample(name, {unit: rows[name] for unit, rows in by_unit.items() if name in rows})

    def _sample(self, sample: str, rows: Rows) -> SampleView:
        units = ((checkpoint, self._clean) for checkpoint in self.checkpoints)
        clean = {unit[0]: rows[unit] for unit in units if unit in rows}
        label = next((row["label"] for row in rows.values() if row["label"] is not None), -1)
        lines = [self._line(sample, line, texts, rows) for line, texts in self._lines.items()]
        lines[1:1] = [self._map_line(sample, text, rows) for text in self._maps]
        changed = tuple(place for place, text in enumerate(self.conditions) if _changes(clean, rows, text))
        right = [row["correct"] for row in clean.values() if row["correct"] is not None]
        predictions = {self._name(row["prediction"]) for row in rows.values() if row["prediction"] is not None}
        named = self._name(label) if label >= 0 else "no label"
        images = (self._picture(checkpoint, self._clean, sample).image for checkpoint in self.checkpoints)
        image = next(filter(None, images), None) or next((p.image for p in self._of(sample) if p.image), None)
        return SampleView(
            sample,
            named,
            uri_of(thumbnail(image, 56)) if image else "",
            f"clean: {sum(right)} of {len(right)} right" if len(right) > 1 else "",
            "".join(_sign(rows.get((checkpoint, self._clean))) for checkpoint in self.checkpoints),
            tuple("".join(_sign(rows.get((name, text))) for text in self.conditions) for name in self.checkpoints),
            changed,
            " ".join((sample, named, *sorted(predictions))).lower(),
            tuple(line for line in lines if any(cell.answers or cell.pictures for cell in line.cells)),
        )

    def _rows(self, unit: tuple[str, str], ids: Sequence[str], shards: Iterable[int]) -> dict[str, dict[str, Any]]:
        """Return the rows of these samples, which are in these shards, by sample id."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns, names = [*_COLUMNS, *self._views[unit[1]].scores], pa.array(ids, pa.string())
        rows: dict[str, dict[str, Any]] = {}
        for path in (self.run.shard_path(*unit, shard) for shard in shards):
            if path.is_file():
                table = only_taken(_read(path, [*columns, TAKEN]))
                chosen = table.filter(pc.is_in(table["sample_id"], value_set=names)).to_pylist()
                rows.update((row["sample_id"], row) for row in chosen)
        return rows

    def _line(self, sample: str, line: str, texts: Sequence[str], rows: Rows) -> SampleLine:
        alone, group = len(texts) == 1, group_of(texts[0])
        name = line if group == texts[0] else name_of(group, "table", self.run.manifest)
        heading = self.called[texts[0]] if alone else name
        every = [(text, self._picture(checkpoint, text, sample)) for checkpoint in self.checkpoints for text in texts]
        images = {shown.image for _, shown in every if shown.image}
        pictured = dict.fromkeys(text for text, shown in every if shown.image)
        shared = len(images) == 1 and not any(shown.difference for _, shown in every)
        cells = []
        for checkpoint in self.checkpoints:
            tiles, line = list[SampleTile](), ""
            for text in texts:
                result, row = self._picture(checkpoint, text, sample), rows.get((checkpoint, text), {})
                where, place = f"{sample} under {text}, as {checkpoint} sees it", self._place(text)
                if result.image and not shared:
                    tiles.append(SampleTile(self._uri(result.image), where, place))
                if result.difference:
                    what = f"{where}: what was changed, stretched"
                    tiles.append(SampleTile(self._uri(result.difference), what, place, changed=True))
                    line = _size(row.get("linf"))
            every_answer = (self._answer(rows[checkpoint, text], text) for text in texts if (checkpoint, text) in rows)
            answers = tuple(replace(each, level="") if alone else each for each in every_answer)
            cells.append(SampleCell(tuple(tiles), line, answers))
        one = shared or len(pictured) == 1
        if one and not alone and (view := self._views[next(iter(pictured))]).level:
            heading = f"{heading}, picture: {view.unit} {view.level}"
        picture = None
        if shared:
            text = next(iter(pictured))
            picture = SampleTile(self._uri(images.pop()), f"{sample} under {text}", self._place(text))
        return SampleLine(heading, tuple(cells), picture, tuple(map(self._place, texts)))

    def _map_line(self, sample: str, text: str, rows: Rows) -> SampleLine:
        cells, view = [], self._views[text]
        under = self._clean if view.over == CLEAN.text else str(view.over)
        for name in self.checkpoints:
            picture = self._picture(name, text, sample)
            image = picture.image or self._picture(name, under, sample).image
            scores = rows.get((name, text), {})
            finite = {key: scores[key] for key in view.scores if is_finite(scores.get(key))}
            shares = {key: percent(v) if key.endswith("_iou") else number(v, 2) for key, v in finite.items()}
            texts = [f"{view.scores[key]} {text}" for key, text in shares.items()]
            tiles: tuple[SampleTile, ...] = ()
            if image and picture.heat:
                drawn = uri_of(_webp(under_map(image, picture.heat, _UNDER_MAP), _UNDER_MAP))
                tiles = (SampleTile(drawn, f"map of {text} over {sample}, {name}", self._place(under)),)
            cells.append(SampleCell(tiles, ", ".join(texts) if tiles else ""))
        return SampleLine(self.called[text], tuple(cells), places=(self._place(under),), role="map")

    def _answer(self, row: Mapping[str, Any], text: str) -> Answer:
        level = self._views[text].level
        if row["prediction"] is None:
            return Answer(None, "not read", level, self._place(text))
        sure = f" {percent(row['confidence'], 0)}" if is_finite(row["confidence"]) else ""
        return Answer(row["correct"], f"{self._name(row['prediction'])}{sure}", level, self._place(text))

    def _place(self, text: str) -> int:
        return self.conditions.index(text) if text in self.conditions else -1

    def _name(self, place: int) -> str:
        return self._names[place].split(",")[0] if 0 <= place < len(self._names) else str(place)

    def _picture(self, checkpoint: str, text: str, sample: str) -> Picture:
        return self._pictures.get((checkpoint, text), {}).get(sample, Picture())

    def _of(self, sample: str) -> Iterator[Picture]:
        return (pictures[sample] for pictures in self._pictures.values() if sample in pictures)

    def _uri(self, image: bytes) -> str:
        return uri_of(thumbnail(image, self._side) if self._side else image)

    def _fitting(self) -> int:
        """Return the longest side of pictures with which all samples fit; 0 to keep them as they are."""
        pictures = ([part for p in self._of(name) for part in (p.image, p.difference) if part] for name in self._ids)
        total = 4 * sum(len(part) for parts in pictures for part in set(parts)) / 3
        if total <= self.room:
            return 0
        with opened(next(p.image for p in self._of(self._ids[0]) if p.image)) as picture:
            side = max(picture.size)
        return next((one for one in _SIDES if one < side and total * (one / side) ** 2 <= self.room), _SIDES[-1])


def _changes(clean: Mapping[str, Mapping[str, Any]], rows: Rows, text: str) -> bool:
    pairs = ((row, rows.get((checkpoint, text))) for checkpoint, row in clean.items())
    return any(under and under["prediction"] not in (None, row["prediction"]) for row, under in pairs)


def _sign(row: Mapping[str, Any] | None) -> str:
    """Return whether a prediction is right: 1, 0, or - where that is unknown."""
    return "-" if row is None or row["correct"] is None else str(int(row["correct"]))


def _shards(run: RunFolder, checkpoint: str, text: str) -> dict[str, int]:
    """Return the shard of each sample, which is the same for all checkpoints and conditions."""
    folder = run.shard_path(checkpoint, text, 0).parent
    return {
        name: int(path.stem)
        for path in sorted(folder.glob("*.parquet"))
        for name in _read(path, ["sample_id"])["sample_id"].to_pylist()
    }


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as fault:
        raise RunError(f"{path}: a record cannot be read ({fault}); delete it and run again") from None


def _size(largest: float | None) -> str:
    """Return in words how much a difference is stretched, so that its largest change is half the range."""
    if largest is None or not is_finite(largest):
        return ""
    return f"amplified {0.5 / largest:.0f}× (max {size_text(largest, 'linf')})" if largest else "nothing changed"


_SIDE = 112
_FIELDS = ("sample_id", "label", "prediction", "correct", "confidence", "error")


@dataclass(frozen=True)
class Example:
    """A sample as a checkpoint saw it under a condition. label, prediction: names of classes, empty where unknown.
    image: WebP; under its map, where the condition is one."""

    sample_id: str
    label: str
    checkpoint: str
    condition: str
    prediction: str
    confidence: float | None
    correct: bool | None
    image: bytes = field(repr=False)

    def open(self) -> Image.Image:
        """Return the picture, RGB."""
        with opened(self.image) as picture:
            return picture.convert("RGB")


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Examples of a run, sample by sample. called: what tables call each condition."""

    every: tuple[Example, ...]
    called: dict[str, str]

    def __len__(self) -> int:
        return len(self.every)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Examples: ...
    def __getitem__(self, place: int | slice) -> Example | Examples:
        return self.every[place] if isinstance(place, int) else Examples(self.every[place], self.called)

    def to_frame(self) -> pd.DataFrame:
        """Return all but the pictures."""
        import pandas as pd

        return pd.DataFrame(self._plain())

    def to_json(self) -> str:
        """Return all but the pictures as JSON."""
        return finite_json(self._plain())

    def _plain(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in asdict(each).items() if key != "image"} for each in self.every]

    def __repr__(self) -> str:
        return f"{len(self)} examples; to_frame() has a row for each, and a notebook shows the pictures"

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(each.condition for each in self.every))
        several = len({each.checkpoint for each in self.every}) > 1
        rows = ["".join(f"<th>{escape(text)}</th>" for text in ("", *map(self.called.__getitem__, columns)))]
        for (sample, checkpoint), some in groupby(self.every, key=lambda each: (each.sample_id, each.checkpoint)):
            by_condition = {each.condition: each for each in some}
            label = next(iter(by_condition.values())).label
            headings = map(escape, (label, sample, *[checkpoint] * several))
            cells = (_cell(by_condition[text]) if text in by_condition else "" for text in columns)
            rows.append(f"<th>{'<br>'.join(headings)}</th>" + "".join(f"<td>{cell}</td>" for cell in cells))
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        return f'<div style="overflow-x: auto"><table>\n{body}\n</table></div>'


def _cell(example: Example) -> str:
    sure = "" if example.confidence is None else f" {percent(example.confidence, 0)}"
    sign = {True: "✓ ", False: "✗ ", None: ""}[example.correct]
    picture = f'<img src="{uri_of(thumbnail(example.image, _SIDE))}" width="{_SIDE}" alt="">'
    return f"{picture}<br>{sign}{escape(example.prediction)}{sure}"


def examples_of(run: RunFolder, condition: str, wrong: bool | None, limit: int) -> Examples:
    """Return the examples of `Run.examples`. Raises RunError where the run kept no such pictures."""
    manifest = run.manifest
    texts = {text for name in manifest.names for text in kept_conditions(run, name)}
    views = {text: view for text in manifest.conditions if text in texts and (view := words_of(text).view(text))}
    beneath = {text: str(view.over) for text, view in views.items() if view.over is not None}
    chosen = [text for text in views if _means(condition, text)] if condition else _one_of_each(views)
    if not chosen:
        names = ", ".join(dict.fromkeys(_brief(text) for text in views))
        some = f"it kept some under {names}" if names else "an audit keeps some with browse=, segment with examples="
        raise RunError(f"{run.path} kept no pictures under {condition or 'any condition'}; {some}")
    needed = list(dict.fromkeys([*chosen, *(beneath[text] for text in chosen if text in beneath)]))
    units = [unit for unit in run.units() if unit[1] in chosen]
    ids, pictures = held_pictures(run, manifest.names, needed, manifest.pictures)
    rows = {unit: _rows(run, unit, set(ids)) for unit in units}
    every, samples = list[Example](), 0
    named = class_names(manifest.data.class_names or manifest.checkpoints[0].class_names, manifest.data.classes)
    for sample in ids:
        group = list[Example]()
        for unit in units:
            image = _image(pictures, unit, sample, beneath.get(unit[1], ""))
            row = rows[unit].get(sample) or {}
            if image is None:
                continue
            label, prediction = (_named(named, row.get(key)) for key in ("label", "prediction"))
            sure = row["confidence"] if is_finite(row.get("confidence")) else None
            group.append(Example(sample, label, *unit, prediction, sure, row.get("correct"), image))
        if group and (wrong is None or any(each.correct is not wrong and each.correct is not None for each in group)):
            every, samples = every + group, samples + 1
        if samples == limit:
            break
    if not every:
        how = {True: " misclassified", False: " classified correctly", None: ""}[wrong]
        raise RunError(
            f"{run.path}: of the {len(ids)} samples with pictures none is{how or ' there'} under {condition or 'these'}"
        )
    return Examples(tuple(every), {text: name_of(text, "table", manifest) for text in chosen})


def _one_of_each(views: Mapping[str, View]) -> list[str]:
    """Return a condition of each family: its last, as people list the strongest attack last; of maps the first."""
    chosen: dict[str, str] = {}
    for text, view in views.items():
        name = words_of(text).name
        chosen[name] = chosen.get(name, text) if view.over is not None else text
    return list(chosen.values())


def _brief(text: str) -> str:
    """Return `pgd`, `fog` or `agcam`: a short name that `_means` understands."""
    pattern = pattern_of(text)
    return pattern.what or pattern.name


def _means(asked: str, text: str) -> bool:
    """Whether a text means a condition: as it is written, as a pattern, or by the name of its kind, corruption or
    set."""
    pattern = pattern_of(text)
    alone = {canonical(asked, [pattern.name]), canonical(asked, [pattern.what])}
    of_set = text in shares_of(kind_named(asked)) or group_of(text) == asked
    return asked == text or of_set or bool(alone & {pattern.name, pattern.what}) or matches(pattern_of(asked), text)


def _rows(run: RunFolder, unit: tuple[str, str], ids: set[str]) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in run.table(*unit, _FIELDS).to_pylist() if row["sample_id"] in ids}


def _named(names: Sequence[str], place: int | None) -> str:
    return "" if place is None or place < 0 else class_name(names, place, len(names)).split(",")[0]


def _image(
    pictures: dict[tuple[str, str], dict[str, Picture]], unit: tuple[str, str], sample: str, under: str
) -> bytes | None:
    """Return a kept picture of a unit; with its map over it, where it has one. under: the condition that it is over."""
    picture = pictures.get(unit, {}).get(sample, Picture())
    image = picture.image or pictures.get((unit[0], under), {}).get(sample, Picture()).image
    if image is None or not picture.heat:
        return image if not under else None
    buffer = io.BytesIO()
    under_map(image, picture.heat).save(buffer, "WEBP", quality=90)
    return buffer.getvalue()
