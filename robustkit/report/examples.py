"""The pictures that a run kept, with what checkpoints predicted, as objects and for a notebook."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, overload

from PIL import Image

from ..common.names import canonical
from ..data.class_names import class_name, class_names
from ..display.format import percent
from ..display.text import finite_json
from ..errors import RunError
from ..evaluations.condition import View, group_of, kind_named, matches, name_of, pattern_of, shares_of, words_of
from ..evaluations.metrics import is_finite
from ..runs.folder import RunFolder
from ..runs.kept_images import Picture, kept_conditions
from .samples import held_pictures, opened, thumbnail, under_map, uri_of

if TYPE_CHECKING:
    import pandas as pd

_SIDE = 112
_COLUMNS = ("sample_id", "label", "prediction", "correct", "confidence", "error")


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
        names = ", ".join(dict.fromkeys(_brief(text) for text in views)) or "none; an audit keeps some with browse="
        raise RunError(f"{run.path} kept no pictures under {condition or 'any condition'}; it kept some under {names}")
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
    return {row["sample_id"]: row for row in run.table(*unit, _COLUMNS).to_pylist() if row["sample_id"] in ids}


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
