"""Show the corruptions of a segmenter as tables: mIoU by corruption and severity, and the means of named sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from ...display.table import HeatTable
from ..cells import Cells, finite, interval_cell, loss_cell, percent_cell
from .condition import Corrupted, parse_corrupted
from .sets import CATEGORIES, CORRUPTIONS, set_of, span
from .shares import shares_of

SEVERITY_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
MEAN_HEADINGS = ("mean over", "n", "mIoU % [95 %]", "retention % [95 %]", "pixel acc. %", "mean acc. %", "NLL")
_KIND = {name: kind for kind, names in CATEGORIES.items() for name in names}

Values = tuple[float | None, ...]


def retention_tables(checkpoint: str, cells: Cells) -> Iterator[HeatTable]:
    """Yield the tables of one checkpoint, those of each definition of corruptions together."""
    for definition in dict.fromkeys(_definition(condition) for condition, _ in cells):
        if definition is not None:
            yield from _tables(checkpoint, definition, cells)


@lru_cache(maxsize=1024)
def _definition(condition: str) -> str | None:
    """Return the definition of a corruption or a mean over corruptions, `(preset=cifar)`; None for other conditions."""
    part = parse_corrupted(next(iter(shares_of(condition))))
    return None if part is None else part.definition


def _tables(checkpoint: str, definition: str, cells: Cells) -> Iterator[HeatTable]:
    mine = {key: row for key, row in cells.items() if _definition(key[0]) == definition}
    parts = [parse_corrupted(next(iter(shares_of(condition)))) for condition, _ in mine]
    labels = {part.label: part.mean for part in parts if part is not None}
    found = sorted(labels.values(), key=lambda part: CORRUPTIONS.index(part.name))
    lines = [_by_severity(part, mine, finite(cells, "clean", "miou")) for part in found]
    order = [part.name for part in found]
    rows, values, ends = _with_categories(order, lines)
    source = "released files" if "source=released" in definition else "corrupted in memory"
    title = f"{checkpoint}: mIoU in % by corruption and severity, {source}{f' {definition}' if definition else ''}"
    yield HeatTable(title, SEVERITY_HEADINGS, tuple(rows), tuple(values), tuple(ends), checkpoint)
    means = tuple(_mean(condition, mine) for condition, metric in mine if metric == "miou" and set_of(condition))
    if means:
        title = f"{checkpoint}: means over sets of corruptions, {source}"
        yield HeatTable(title, MEAN_HEADINGS, means, checkpoint=checkpoint)


def _by_severity(part: Corrupted, cells: Cells, clean: float | None) -> tuple[tuple[str, ...], Values]:
    """Return the row of a corruption, and the fractions behind its cells."""
    every, texts = part.text, [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    some = texts[0].replace("severity=1", "severity=1+2+3", 1)
    mean = every if (every, "miou") in cells else some
    kept = finite(cells, mean, "retention")
    fractions = [*(finite(cells, text, "miou") for text in texts), finite(cells, mean, "miou"), kept]
    shown = [percent_cell(value) for value in fractions]
    which = "1–3" if mean == some else ""
    if fractions[5] is None:
        those, which = _of_those(fractions[:5], clean)
        shown[5:] = map(percent_cell, those)
    if which:
        shown[5:] = [f"{cell} ({which})" if cell != "–" else cell for cell in shown[5:]]
    return (part.label, *shown), tuple(fractions)


def _of_those(mious: Sequence[float | None], clean: float | None) -> tuple[list[float | None], str]:
    """Return mean and retention over the severities that were evaluated, and which these are."""
    present = {severity: miou for severity, miou in enumerate(mious, start=1) if miou is not None}
    if not present:
        return [None, None], ""
    mean = sum(present.values()) / len(present)
    return [mean, mean / clean if clean else None], span(present)


def _with_categories(
    order: Sequence[str], lines: Sequence[tuple[tuple[str, ...], Values]]
) -> tuple[list[tuple[str, ...]], list[Values], list[int]]:
    """Return the rows of corruptions, with a mean below each category that has several, and where categories end."""
    texts, figures, ends = list[tuple[str, ...]](), list[Values](), list[int]()
    for kind in dict.fromkeys(_KIND[name] for name in order):
        places = [place for place, name in enumerate(order) if _KIND[name] == kind]
        texts += (lines[place][0] for place in places)
        figures += (lines[place][1] for place in places)
        if len(places) > 1:
            columns = zip(*(lines[place][1] for place in places), strict=True)
            means = [
                sum(present) / len(places)
                if len(present := [v for v in column if v is not None]) == len(places)
                else None
                for column in columns
            ]
            if means[-2] is not None:  # every one of them has a mean
                texts.append((f"mean of {kind}", *map(percent_cell, means)))
                figures.append(tuple(means))
        ends.append(len(texts) - 1)
    return texts, figures, ends


def _mean(condition: str, cells: Cells) -> tuple[str, ...]:
    miou = cells[condition, "miou"]
    return (
        *(condition, str(miou["n"]), interval_cell(miou), interval_cell(cells.get((condition, "retention")))),
        *(percent_cell(finite(cells, condition, f"{which}_accuracy")) for which in ("pixel", "mean")),
        loss_cell(cells.get((condition, "nll"))),
    )
