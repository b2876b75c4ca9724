"""The sample browser of a report: what each checkpoint was shown and what it said, of the samples with pictures."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..data.class_names import class_names
from ..data.picture_files import Refused, open_picture
from ..display.numbers import pixels
from ..errors import RunError
from ..evaluations.attention.condition import under_of
from ..evaluations.corruptions.condition import Corrupted, parse_corrupted
from ..evaluations.maps.condition import MapSpec, parse_explained
from ..evaluations.maps.gallery import overlay
from ..runs.folder import RunFolder
from ..runs.pictures import Picture, read_pictures

if TYPE_CHECKING:
    import pyarrow as pa

PICTURES = 12_000_000
"""Characters of the page that its pictures may take."""
_HELD = 64_000_000  # bytes of pictures in memory; made smaller for the page, about a fifth is left of them
_SMALL = 128  # longest side of a picture where as they are not all would fit
_PICTURE = 1 << 22  # pixels of a kept picture
_BLOCK = 16  # samples whose records are read at once
_COLUMNS = ("sample_id", "label", "prediction", "correct", "confidence", "linf", "error")
_SCORES = {"mask_iou": "IoU", "box_iou": "box IoU", "abpc": "ABPC"}

Rows = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True)
class Answer:
    """A prediction. right: None where there is no telling. said: the class, with its confidence. severity: or empty."""

    right: bool | None
    said: str
    severity: str = ""


@dataclass(frozen=True)
class Cell:
    """A checkpoint under a condition: pictures of its own as (URI, what it is), a line under them, its answers."""

    pictures: tuple[tuple[str, str], ...] = ()
    line: str = ""
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True)
class Line:
    """A condition, or a corruption at all its severities. picture: (URI, what it is) where all were shown the same."""

    heading: str
    cells: tuple[Cell, ...]
    picture: tuple[str, str] | None = None


@dataclass(frozen=True)
class SampleView:
    """One sample. label: its class. wrong: a checkpoint errs on the clean image. changed: places among
    `Browser.conditions` under which a checkpoint predicts otherwise than clean. words: lower case, to search in.
    """

    sample_id: str
    label: str
    thumbnail: str
    clean: str
    wrong: bool
    changed: tuple[int, ...]
    words: str
    lines: tuple[Line, ...]

    @property
    def weight(self) -> int:
        """Characters of its pictures."""
        tiles = [tile for line in self.lines for cell in line.cells for tile in cell.pictures]
        tiles += [line.picture for line in self.lines if line.picture]
        return len(self.thumbnail) + sum(len(uri) for uri, _ in tiles)


class Browser:
    """The samples of a run that have pictures, in the order of the manifest; none for segmenters.

    checkpoints: names. conditions: texts of those under which a prediction can change. room: bytes that a page has for
    the pictures.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run, manifest = run, run.manifest
        self.checkpoints = manifest.names
        units = {unit for unit in run.units() if under_of(unit[1]) is None}
        texts = [text for text in manifest.conditions if any((name, text) in units for name in self.checkpoints)]
        maps = {text: found for text in texts if (found := parse_explained(text)) is not None}
        self._groups = _grouped(text for text in texts if text not in maps)
        self._maps = {text: found for text, found in maps.items() if not found.is_control}
        first = "clean" if "clean" in texts else next(iter(maps), "")
        self._clean = first
        self.conditions = [text for text in texts if text not in maps and text != first] if first else []
        known = manifest.data.class_names or manifest.checkpoints[0].class_names
        self._names = class_names(known, manifest.data.classes)
        segments = manifest.protocol.task == "segmentation"
        self.kept: list[str] = [] if segments else list(manifest.pictures)
        ids, self._pictures = _held(run, self.checkpoints, texts, self.kept)
        self._ids = [name for name in ids if any(name in found for found in self._pictures.values())]
        self._units = [unit for unit in run.units() if self._ids and unit in units]
        self.room = PICTURES
        self._small = 4 * sum(map(self._bytes, self._ids)) / 3 > self.room

    def samples(self) -> Iterator[SampleView]:
        """One after the other, so that a page can stop when it is full."""
        where = _shards(self.run, *self._units[0]) if self._ids else {}
        for start in range(0, len(self._ids), _BLOCK):
            some = self._ids[start : start + _BLOCK]
            files = {where[name] for name in some if name in where}
            found = {unit: _rows(self.run, *unit, some, files) for unit in self._units}
            for name in some:
                yield self._sample(name, {unit: rows[name] for unit, rows in found.items() if name in rows})

    def _sample(self, sample: str, rows: Rows) -> SampleView:
        clean = {one: rows[one, self._clean] for one in self.checkpoints if (one, self._clean) in rows}
        label = next((row["label"] for row in rows.values() if row["label"] is not None), -1)
        lines = [self._line(sample, heading, texts, rows) for heading, texts in self._groups.items()]
        lines[1:1] = [self._map_line(sample, text, one, rows) for text, one in self._maps.items()]
        changed = tuple(
            place
            for place, text in enumerate(self.conditions)
            if any(
                rows[one, text]["prediction"] not in (None, row["prediction"])
                for one, row in clean.items()
                if (one, text) in rows
            )
        )
        known = [row["correct"] for row in clean.values() if row["correct"] is not None]
        said = {self._name(row["prediction"]) for row in rows.values() if row["prediction"] is not None}
        named = self._name(label) if label >= 0 else "no label"
        images = (self._picture(one, self._clean, sample).image for one in self.checkpoints)
        image = next(filter(None, images), None) or next((p.image for p in self._of(sample) if p.image), None)
        return SampleView(
            sample,
            named,
            _uri(_shrunk(image, 56)) if image else "",
            f"clean: {sum(known)} of {len(known)} right" if len(known) > 1 else "",
            not all(known),
            changed,
            " ".join((sample, named, *sorted(said))).lower(),
            tuple(line for line in lines if any(cell.answers or cell.pictures for cell in line.cells)),
        )

    def _line(self, sample: str, heading: str, texts: Sequence[str], rows: Rows) -> Line:
        kept = [(text, self._picture(one, text, sample)) for one in self.checkpoints for text in texts]
        images = {found.image for _, found in kept if found.image}
        shared = len(images) == 1 and not any(found.difference for _, found in kept)
        cells = []
        for one in self.checkpoints:
            tiles, line = [], ""
            for text in texts:
                found, row = self._picture(one, text, sample), rows.get((one, text), {})
                where = f"{sample} under {text}, as {one} sees it"
                if found.image and not shared:
                    tiles.append((self._uri(found.image), where))
                if found.difference:
                    tiles.append((self._uri(found.difference), f"{where}: what was changed, stretched"))
                    line = _size(row.get("linf"))
            answers = tuple(self._answer(rows[one, text], text) for text in texts if (one, text) in rows)
            cells.append(Cell(tuple(tiles), line, answers))
        picture = None
        if shared:
            text = next(text for text, found in kept if found.image)
            picture = (self._uri(images.pop()), f"{sample} under {text}")
            severity = _severity(text)
            heading = f"{heading}, picture: severity {severity}" if severity and len(texts) > 1 else heading
        return Line(heading, tuple(cells), picture)

    def _map_line(self, sample: str, text: str, one: MapSpec, rows: Rows) -> Line:
        cells = []
        for name in self.checkpoints:
            found = self._picture(name, text, sample)
            image = found.image or self._picture(name, one.under or self._clean, sample).image
            scores = rows.get((name, text), {})
            said = [f"{word} {scores[key]:.2f}" for key, word in _SCORES.items() if _finite(scores.get(key))]
            tiles = (
                ((_over(image, found.heat), f"map of {text} over {sample}, {name}"),) if image and found.heat else ()
            )
            cells.append(Cell(tiles, ", ".join(said) if tiles else ""))
        return Line(text, tuple(cells))

    def _answer(self, row: Mapping[str, Any], text: str) -> Answer:
        severity = str(_severity(text) or "")
        if row["prediction"] is None:
            return Answer(None, "not read", severity)
        sure = f" {row['confidence']:.0%}" if _finite(row["confidence"]) else ""
        return Answer(row["correct"], f"{self._name(row['prediction'])}{sure.replace('%', ' %')}", severity)

    def _name(self, place: int) -> str:
        return self._names[place].split(",")[0] if 0 <= place < len(self._names) else str(place)

    def _picture(self, checkpoint: str, text: str, sample: str) -> Picture:
        return self._pictures.get((checkpoint, text), {}).get(sample, Picture())

    def _of(self, sample: str) -> Iterator[Picture]:
        return (found[sample] for found in self._pictures.values() if sample in found)

    def _bytes(self, sample: str) -> int:
        """Of its pictures, each once."""
        return sum(map(len, {part for one in self._of(sample) for part in (one.image, one.difference) if part}))

    def _uri(self, image: bytes) -> str:
        return _uri(_shrunk(image, _SMALL) if self._small else image)


def _grouped(texts: Iterator[str]) -> dict[str, list[str]]:
    """Conditions by the line that they share: the severities of a corruption, all others alone."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        part = parse_corrupted(text)
        groups.setdefault(_plain(part) if part else text, []).append(text)
    return groups


def _plain(part: Corrupted) -> str:
    return replace(part, severity=0).text.removeprefix("corruption(").removesuffix(")")


@lru_cache(maxsize=1024)
def _severity(text: str) -> int:
    part = parse_corrupted(text)
    return part.severity if part else 0


def _held(
    run: RunFolder, checkpoints: Sequence[str], texts: Sequence[str], ids: Sequence[str]
) -> tuple[list[str], dict[tuple[str, str], dict[str, Picture]]]:
    """The first samples, as many as are held at once, and their pictures by checkpoint and condition."""
    sizes = dict.fromkeys(ids, 0)
    found: dict[tuple[str, str], dict[str, Picture]] = {}
    for checkpoint in checkpoints if ids else ():
        for text in texts:
            found[checkpoint, text] = own = read_pictures(run, checkpoint, text)
            for name in sizes.keys() & own.keys():
                sizes[name] += sum(len(part or b"") for part in (own[name].image, own[name].difference))
            total, fit = 0, dict[str, int]()
            for name, size in sizes.items():
                total += size
                if total > _HELD and fit:
                    break
                fit[name] = size
            sizes = fit
            for other in found.values():
                for name in other.keys() - sizes.keys():
                    del other[name]
    return list(sizes), found


def _shards(run: RunFolder, checkpoint: str, text: str) -> dict[str, int]:
    """In which shard each sample is: the same of all checkpoints and conditions."""
    folder = run.shard_path(checkpoint, text, 0).parent
    return {
        name: int(path.stem)
        for path in sorted(folder.glob("*.parquet"))
        for name in _read(path, ["sample_id"])["sample_id"].to_pylist()
    }


def _rows(
    run: RunFolder, checkpoint: str, text: str, ids: Sequence[str], shards: Iterable[int]
) -> dict[str, dict[str, Any]]:
    """Rows by sample id, of these samples, which are in these shards."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, wanted = [*_COLUMNS, *(_SCORES if text.startswith("cam(") else ())], pa.array(ids, pa.string())
    found: dict[str, dict[str, Any]] = {}
    for path in (run.shard_path(checkpoint, text, shard) for shard in shards):
        if path.is_file():
            table = _read(path, columns)
            rows = table.filter(pc.is_in(table["sample_id"], value_set=wanted)).to_pylist()
            found.update((row["sample_id"], row) for row in rows)
    return found


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read(columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as fault:
        raise RunError(f"{path}: a record cannot be read ({fault}); delete it and run again") from None


def _size(largest: float | None) -> str:
    """How much a difference is stretched, so that its largest change is half the range."""
    if largest is None or not math.isfinite(largest):
        return ""
    return f"difference × {0.5 / largest:.4g}, largest {pixels(largest, 'linf')}" if largest else "nothing changed"


def _finite(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _uri(image: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(image).decode()}"


def _opened(image: bytes) -> Image.Image:
    """A kept picture; a run folder of someone else may hold a larger one. Raises what `open_picture` raises."""
    opened = open_picture(image)
    if opened.width * opened.height > _PICTURE:
        raise Refused(f"a kept picture of {opened.width} x {opened.height} pixels")
    return opened


def _shrunk(image: bytes, side: int) -> bytes:
    with _opened(image) as opened:
        small = opened.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _webp(small)


def _webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=2)
    return buffer.getvalue()


def _over(image: bytes, heat: bytes) -> str:
    """The map over its image, as a URI."""
    with _opened(image) as opened, _opened(heat) as levels:
        drawn = overlay(np.array(opened.convert("RGB")), np.array(levels.convert("L"), np.float32) / np.float32(255))
    small = Image.fromarray(drawn)
    small.thumbnail((160, 160), Image.Resampling.LANCZOS)
    return _uri(_webp(small))
