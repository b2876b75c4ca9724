"""The segmentation results of a run as tables: clean and attacked, corruptions with what is left of mIoU, classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...display.numbers import pixels
from ...evaluations.corruptions.condition import parse_corrupted
from ...evaluations.corruptions.sets import CATEGORIES, CORRUPTIONS, set_of, span
from ...evaluations.corruptions.shares import shares_of
from ...evaluations.corruptions.tables import is_of_corruptions
from .metrics import LEFT_OUT

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ...runs.manifest import Manifest

HEADINGS = (
    *("checkpoint", "attention", "condition", "n", "mIoU % [95 %]"),
    *("pixel acc. % [95 %]", "mean acc. % [95 %]", "NLL", "largest |δ|"),
)
SEVERITY_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
MEAN_HEADINGS = ("mean over", "n", "mIoU % [95 %]", "retention % [95 %]", "pixel acc. %", "mean acc. %", "NLL")
LONGEST = 40
"""Rows of a table of classes up to which a terminal shows it."""
_WORDS = ("checkpoint", "attention", "condition", "corruption", "mean over", "class")
_KIND = {name: kind for kind, names in CATEGORIES.items() for name in names}

Figures = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True)
class SceneTable:
    """One table. title: what is in it, and of which checkpoint, if of one.

    rows: texts under `headings`. values: of each row the fraction behind each cell but the first, None where there is
    none; empty where no cell is a fraction on its own. ends: places of rows below which a group ends. flags: lines that
    name the checkpoint and the condition.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[tuple[float | None, ...], ...] = ()
    ends: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()


def scene_tables(results: Sequence[Mapping[str, Any]], manifest: Manifest) -> list[SceneTable]:
    """The tables of all checkpoints, from the rows of the summary; none where no condition has a mIoU."""
    own: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in results:
        own.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
    own = {name: found for name, found in own.items() if any(metric == "miou" for _, metric in found)}
    if not own:
        return []
    tables = [_conditions(own, manifest)]
    for checkpoint, found in own.items():
        for definition in dict.fromkeys(_definition(condition) for condition, _ in found):
            if definition is not None:
                tables += _corruptions(checkpoint, definition, found)
        tables += _classes(checkpoint, found)
    return tables


@lru_cache(maxsize=1024)
def _definition(condition: str) -> str | None:
    """Of a corruption or of a mean over corruptions, such as `(preset=cifar)`; None for other conditions."""
    part = parse_corrupted(next(iter(shares_of(condition))))
    return None if part is None else part.definition


def _conditions(own: Mapping[str, Figures], manifest: Manifest) -> SceneTable:
    words = {"none": "no", "other": "other"}  # what stands for a formula where there is none
    attention = {known.name: words.get(known.attention, known.attention) for known in manifest.checkpoints}
    rows, ends, flags = [], [], list[str]()
    for checkpoint, found in own.items():
        plain = {key: row for key, row in found.items() if not is_of_corruptions(key[0])}
        for condition in dict.fromkeys(condition for condition, _ in plain):
            norm = manifest.norm(condition)
            largest = _value(found, condition, f"{norm}_max")
            accuracies = (_with_interval(found.get((condition, f"{which}_accuracy"))) for which in ("pixel", "mean"))
            miou = found[condition, "miou"]
            rows.append(
                (
                    *(checkpoint, attention[checkpoint], condition, str(miou["n"]), _with_interval(miou)),
                    *accuracies,
                    _loss(found.get((condition, "nll"))),
                    pixels(largest, norm) if largest else "0",
                )
            )
        ends.append(len(rows) - 1)
        flags += _flags(checkpoint, plain)
    title = f"protocol {manifest.protocol.tag}: {manifest.protocol.summary}"
    return SceneTable(title, HEADINGS, tuple(rows), ends=tuple(ends), flags=tuple(flags))


def _corruptions(checkpoint: str, definition: str, found: Figures) -> Iterator[SceneTable]:
    """By severity, and the means of sets."""
    mine = {key: row for key, row in found.items() if _definition(key[0]) == definition}
    names = {part.name: part for condition, _ in mine if (part := parse_corrupted(next(iter(shares_of(condition)))))}
    rows, values = [], []
    order = [name for name in CORRUPTIONS if name in names]
    for name in order:
        every = names[name].mean.text
        texts = [every.replace(name, f"{name},severity={severity}", 1) for severity in (1, 2, 3, 4, 5)]
        some = every.replace(name, f"{name},severity=1+2+3", 1)
        mean = every if (every, "miou") in mine else some
        kept = _value(mine, mean, "retention")
        fractions = [*(_value(mine, text, "miou") for text in texts), _value(mine, mean, "miou"), kept]
        cells = [_percent(value) for value in fractions]
        said = "1–3" if mean == some else ""
        if fractions[5] is None:
            those, said = _of_those(fractions[:5], _value(found, "clean", "miou"))
            cells[5:] = map(_percent, those)
        if said:
            cells[5:] = [f"{cell} ({said})" if cell != "–" else cell for cell in cells[5:]]
        rows.append((name, *cells))
        values.append(tuple(fractions))
    rows, values, ends = _with_categories(order, rows, values)
    said = "released files" if "source=released" in definition else "corrupted in memory"
    title = f"{checkpoint}: mIoU in % by corruption and severity, {said}{f' {definition}' if definition else ''}"
    yield SceneTable(title, SEVERITY_HEADINGS, tuple(rows), tuple(values), tuple(ends), tuple(_flags(checkpoint, mine)))
    lines = tuple(_mean(condition, mine) for condition, metric in mine if metric == "miou" and set_of(condition))
    if lines:
        yield SceneTable(f"{checkpoint}: means over sets of corruptions, {said}", MEAN_HEADINGS, lines)


def _of_those(mious: Sequence[float | None], clean: float | None) -> tuple[list[float | None], str]:
    """Mean and retention over the severities that were evaluated, and which these are."""
    known = {severity: miou for severity, miou in enumerate(mious, start=1) if miou is not None}
    if not known:
        return [None, None], ""
    mean = sum(known.values()) / len(known)
    return [mean, mean / clean if clean else None], span(known)


def _with_categories(
    order: Sequence[str], rows: Sequence[tuple[str, ...]], values: Sequence[tuple[float | None, ...]]
) -> tuple[list[tuple[str, ...]], list[tuple[float | None, ...]], list[int]]:
    """The rows of corruptions with a mean below each category that has several; and the places where one ends."""
    texts, figures, ends = list[tuple[str, ...]](), list[tuple[float | None, ...]](), list[int]()
    for kind in dict.fromkeys(_KIND[name] for name in order):
        places = [place for place, name in enumerate(order) if _KIND[name] == kind]
        texts += (rows[place] for place in places)
        figures += (values[place] for place in places)
        if len(places) > 1:
            columns = zip(*(values[place] for place in places), strict=True)
            means = [
                sum(known) / len(places) if len(known := [v for v in column if v is not None]) == len(places) else None
                for column in columns
            ]
            if means[-2] is not None:  # every one of them has a mean
                texts.append((f"mean of {kind}", *map(_percent, means)))
                figures.append(tuple(means))
        ends.append(len(texts) - 1)
    return texts, figures, ends


def _mean(condition: str, found: Figures) -> tuple[str, ...]:
    miou = found[condition, "miou"]
    return (
        *(condition, str(miou["n"]), _with_interval(miou), _with_interval(found.get((condition, "retention")))),
        *(_percent(_value(found, condition, f"{which}_accuracy")) for which in ("pixel", "mean")),
        _loss(found.get((condition, "nll"))),
    )


def _classes(checkpoint: str, found: Figures) -> Iterator[SceneTable]:
    """IoU of each class under everything but single corruptions; images are those that have the class when clean."""
    shown = [
        condition
        for condition in dict.fromkeys(condition for condition, _ in found)
        if not condition.startswith("corruption(")
    ]
    if not shown:
        return
    names = dict.fromkeys(metric for condition, metric in found if condition in shown and metric.startswith("iou("))
    rows, values = [], []
    for metric in names:
        fractions = [_value(found, condition, metric) for condition in shown]
        first = found.get((shown[0], metric))
        rows.append((metric[4:-1], "0" if first is None else str(first["n"]), *map(_percent, fractions)))
        values.append((None, *fractions))
    title = f"{checkpoint}: IoU in % by class; images: with the class in prediction or truth, {shown[0]}"
    yield SceneTable(title, ("class", "images", *shown), tuple(rows), tuple(values))


def _flags(checkpoint: str, found: Figures) -> Iterator[str]:
    """Each flag once, with what bears it; which classes a condition leaves out only where no mean over it says so."""
    shares = {condition: shares_of(condition) for condition in dict.fromkeys(condition for condition, _ in found)}
    told = {text for texts in shares.values() if len(texts) > 1 for text in texts}
    seen: dict[str, list[str]] = {}
    for (condition, _), row in found.items():
        for flag in row["flags"]:
            if not (LEFT_OUT in flag and condition in told):
                seen.setdefault(flag, []).append(condition)
    for flag, conditions in seen.items():
        names = list(dict.fromkeys(conditions))
        yield f"{checkpoint}, {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {flag}"


def _value(found: Figures, condition: str, metric: str) -> float | None:
    row = found.get((condition, metric))
    return None if row is None or not _finite(row["value"]) else float(row["value"])


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _with_interval(row: Mapping[str, Any] | None) -> str:
    if row is None or not _finite(row["value"]):
        return "–" if row is None else "nan"
    if not _finite(row["ci_low"]):
        return _percent(row["value"])
    return f"{100 * row['value']:.1f} [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]"


def _loss(row: Mapping[str, Any] | None) -> str:
    if row is None or not _finite(row["value"]):
        return "–" if row is None else "nan"
    return f"{row['value']:.3f}"


def terminal_scenes(tables: Sequence[SceneTable]) -> Iterator[Table | Text]:
    """The tables for a terminal, each after its title; of a long one about classes only where it is."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for found in tables:
        yield Text(found.title, style="italic")
        if found.headings[0] == "class" and len(found.rows) > LONGEST:
            yield Text(f"  {len(found.rows)} classes; see the report")
            continue
        table = Table(box=box.SIMPLE_HEAD)
        for heading in found.headings:
            words = heading in _WORDS
            fold = heading in ("checkpoint", "condition", "class")
            table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not fold)
        for place, row in enumerate(found.rows):
            table.add_row(*map(Text, row), end_section=place in found.ends)
        yield table
