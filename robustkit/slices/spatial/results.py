"""Rotations and translations in results: accuracy within each angle, with a table and a curve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...common.figure import Figure
from ...common.finding import Finding
from ...common.intervals import share_of
from ...display.format import figure_cell, percent
from ...display.svg import Plot, labels, legend, list_some, panels
from ...display.table import Section, Table, of_tables
from ...evaluations.aggregate import RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import name_of, pattern_of, with_usual, words_of
from ...evaluations.family import Aggregator, Presenter
from ...evaluations.presenting import short_names
from . import VOCABULARY, WITHIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ...evaluations.family import Looks

_PARTS = 6  # of the largest angle, each of which is a point of the curve
_NOTE = (
    "Accuracy within an angle: images that are correct under all moves of at most so many degrees, with all shifts of "
    "the condition. 95 % intervals in brackets."
)


class SpatialAggregator(Aggregator):
    words = VOCABULARY

    def extras(self, reading: RecordReader, condition: str, read: pa.Table) -> tuple[list[Figure], list[Finding]]:
        columns = ("sample_id", "error", "correct", "first_degrees", "passes")
        protocol = reading.manifest.protocol
        labels = protocol.parameters.get("spatial", {}).get("labels", protocol.labels)
        moved = readable_rows(reading.joined(reading.shards(condition, columns))[0])
        if not len(moved) or labels == "predicted" or "passes" in moved.column_names:
            return [], []  # angles at which wrong labels, or lucky passes of a random model, turn say nothing
        first, groups = np.array(moved["first_degrees"].to_pylist(), float), reading.groups(moved["sample_id"])
        falls_at = np.where(np.isnan(first), np.where(column_of(moved, "correct") > 0, np.inf, 0.0), first)
        shares = {f"{WITHIN.name}{angle:g})": falls_at > angle * (1 + 1e-6) for angle in angles_of(condition)}
        return [share_of(right, groups).named(name) for name, right in shares.items()], []


def angles_of(condition: str) -> list[float]:
    """Return at most `_PARTS` + 1 ascending angles for a curve: some of the grid; of draws, parts of the largest."""
    parameters = with_usual(pattern_of(condition))
    degrees, count = float(parameters["degrees"]), int(parameters["angles"])
    if parameters["draws"] != "0":
        return [degrees * part / _PARTS for part in range(_PARTS + 1)] if degrees else []
    tried = sorted({0.0, *(round(abs(degrees * (2 * i / (count - 1) - 1)), 6) for i in range(count) if count > 1)})
    step = max(-(-(len(tried) - 1) // _PARTS), 1)
    return [*tried[:-1:step], tried[-1]] if tried[-1] else []


def _angle(metric: str) -> float:
    return float(metric.removeprefix(WITHIN.name).removesuffix(")"))


def curves_of(results: Iterable[Figure]) -> Mapping[str, Mapping[str, list[Figure]]]:
    """Return the figures within each angle, ascending, by condition and checkpoint."""
    curves: dict[str, dict[str, list[Figure]]] = {}
    for row in results:
        if words_of(row.condition) is VOCABULARY and row.metric.startswith(WITHIN.name):
            curves.setdefault(row.condition, {}).setdefault(row.checkpoint, []).append(row)
    return curves


class SpatialPresenter(Presenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Iterator[Table]:
        names = short_names(results.manifest.names)
        for text, curves in curves_of(results).items():
            angles = [f"{_angle(row.metric):g}°" for row in next(iter(curves.values()))]
            lines = tuple((names[name], *map(figure_cell, rows)) for name, rows in curves.items())
            n = max(row.n for rows in curves.values() for row in rows)
            title = f"Accuracy within each angle, %: {name_of(text, 'table', results.manifest)}, n = {n}"
            yield Table(title, ("checkpoint", *angles), lines, note=_NOTE)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        if tables := tuple(self.tables(results)):
            plots = [_plot(text, curves, looks) for text, curves in curves_of(results).items()]
            yield of_tables("spatial", "Rotations and translations", tables, figures=tuple(plots))


def _plot(text: str, curves: Mapping[str, Sequence[Figure]], looks: Looks) -> Plot:
    names, label = labels(curves), VOCABULARY.label(text)

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1)
        for checkpoint, rows in curves.items():
            look, angles = looks[checkpoint], [_angle(row.metric) for row in rows]
            low, value, high = ([100 * getattr(row, end) for row in rows] for end in ("low", "value", "high"))
            axes.fill_between(angles, low, high, color=look.colour, alpha=0.15, linewidth=0)
            line: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
            axes.plot(angles, value, markersize=4, linewidth=1.6, **line)
        axes.set_ylim(0, 104)
        axes.set_xlabel("largest angle, degrees")
        axes.set_ylabel("accuracy, %")
        legend(canvas, {names[name]: looks[name] for name in curves})

    sentences = (
        f"{names[name]} has {', '.join(f'{percent(row.value)} at {_angle(row.metric):g}°' for row in rows)}"
        for name, rows in curves.items()
    )
    caption = f"{label}: the share of images that no move up to the angle misleads; bands: 95 %."
    title, height = f"Accuracy within each angle, {label}", 300 + 18 * -(-len(curves) // 2)
    return Plot(
        "spatial", title, height, paint, alt=f"{label}: {list_some(list(sentences))}.", caption=caption, name=text
    )
