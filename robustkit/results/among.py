"""Checkpoints among published ones: their own figures next to the level of each attention of a reference."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..display.table import TextTable
from ..evaluations.cells import Row, is_finite
from ..evaluations.metric import Metric
from ..runs.folder import RunFolder
from ..tasks.measures import metric_of
from .paired import Side
from .published import Published

SMALL = 0.1
"""Where all figures of a row are below, three decimals would not tell them apart."""


@dataclass(frozen=True)
class Among:
    """A figure of a checkpoint, and the published levels by attention. spreads: standard deviations over trainings, of
    the levels that have one.
    """

    row: Row
    levels: dict[str, float]
    spreads: dict[str, float] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        return metric_of(self.row["metric"])

    @property
    def places(self) -> tuple[int, int] | None:
        """The best and the worst place among them all that the checkpoint's interval allows, from 1 for the best; None
        where neither more nor less is better, or the figure is not a number. Levels with a spread are those of another
        training, within two standard deviations; others are taken as exact.
        """
        better, own = self.metric.better, self.row["value"]
        if not better or not is_finite(own):
            return None
        ends = sorted(better * (self.row[end] if is_finite(self.row[end]) else own) for end in ("ci_low", "ci_high"))
        levels = [(better * level, 2 * self.spreads.get(name, 0.0)) for name, level in self.levels.items()]
        best = 1 + sum(level - reach > ends[1] for level, reach in levels)
        return best, 1 + sum(level + reach > ends[0] for level, reach in levels)


def found_among(side: Side, reference: Published) -> list[Among]:
    """Return the figures of a checkpoint that a reference has for some attention, in the order of its results."""
    resolved = reference.resolved()
    found = []
    for row in side.results:
        condition, metric = row["condition"], row["metric"]
        levels, spreads = (
            {name: value for name in resolved.figures if (value := take(name, condition, metric)) is not None}
            for take in (resolved.figure, resolved.spread)
        )
        if levels:
            found.append(Among(row, levels, spreads))
    return found


def sides_of(runs: Sequence[RunFolder], checkpoints: Collection[str] = ()) -> list[Side]:
    """Return the checkpoints of all runs, or those named."""
    kept = ((run, name) for run in runs for name in run.manifest.names)
    return [Side(run, name) for run, name in kept if not checkpoints or name in checkpoints]


def among_tables(sides: Sequence[Side], reference: Published) -> list[TextTable]:
    """Return a table for each checkpoint that has figures of the reference."""
    note = (
        f"{reference.name}: {reference.summary}, on {reference.data} ({reference.source}). Place: 1 is the best; "
        "it is what the interval allows, and says little on other images."
    )
    tables = []
    for side in sides:
        found = found_among(side, reference)
        names = list(dict.fromkeys(name for each in found for name in each.levels))
        rows = tuple(_cells(each, names) for each in found)
        tag = side.manifest.protocol.tag
        doubt = f"published under {reference.protocol}, here {tag.partition('@')[0]}"
        own = f"{side.checkpoint} ({side.described.attention}) on {side.manifest.data.name}"
        title = f"{own}, among {reference.name} on {reference.data}"
        spread = any(each.spreads for each in found)
        more = " ±: standard deviation over trainings, of which the place allows two." if spread else ""
        if rows:
            headings = ("condition", "figure", "n", "here [95 %]", *names, "place")
            flags = () if reference.is_of(tag) else (doubt,)
            tables.append(TextTable(title, headings, rows, flags, note + more, side.checkpoint, ("n",)))
    return tables


def _cells(each: Among, names: Sequence[str]) -> tuple[str, ...]:
    row, metric = each.row, each.metric
    figures = [row["value"], *each.levels.values()]
    small = all(abs(value) < SMALL for value in figures if is_finite(value))  # such as distances in linf
    digits = 2 if metric.scale == 100 else 5 if small else 3

    def cell(value: float | None) -> str:
        return f"{metric.scale * value:.{digits}f}" if value is not None and math.isfinite(value) else "–"

    bounds = f" [{cell(row['ci_low'])}, {cell(row['ci_high'])}]" if is_finite(row["ci_low"]) else ""
    place = ""
    if each.places:
        best, worst = each.places
        place = f"{best}{f' to {worst}' if worst > best else ''} of {len(each.levels) + 1}"
    spreads = {name: f" ± {cell(value)}" for name, value in each.spreads.items()}
    levels = (cell(each.levels.get(name)) + spreads.get(name, "") for name in names)
    return (row["condition"], metric.label, str(row["n"]), cell(row["value"]) + bounds, *levels, place)
