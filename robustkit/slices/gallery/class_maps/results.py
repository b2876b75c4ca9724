"""Maps of classes in results: what lies on the class, what its pixels do to its IoU, how far ahead of controls."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....common.figure import Figure
from ....common.finding import Finding
from ....common.groups import Groups, chosen_groups
from ....common.intervals import Floats, bootstrapped, mean_of
from ....display.format import MISSING, count, counted, figure_cell, scaled
from ....display.table import Section, Table, with_flags
from ....errors import RunError
from ....evaluations.aggregate import RecordReader, Results, readable_rows
from ....evaluations.condition import FIRST, SHORT, BriefRow, Clause, name_of
from ....evaluations.family import Aggregator, Presenter, Summary
from ....evaluations.maps import METHOD_NAMES, option_texts
from ....evaluations.maps.tables import CONTROLS_IN_WORDS, control_of, gallery_uri, lead_in_words
from ....evaluations.metrics import Cells, Metric, by_checkpoint, lead_over_control, metric_named
from ....evaluations.presenting import finding_lines, of_family
from ....evaluations.records import CheckpointRecords, Pairings, PerSample, not_paired
from . import (
    ABPC,
    AREA,
    COLUMNS_READ,
    CONTEXT,
    ENERGY,
    EVERY,
    EVERY_CONTROL,
    FLAT,
    HEAD,
    HEAD_ABPC,
    HEAD_ENERGY,
    HELD,
    IN_CONTEXT,
    IN_OBJECT,
    LARGEST,
    LEFT,
    OVER_MASK,
    OVERLAP,
    OWN_MASK,
    POINTING,
    RANK,
    RIVALS,
    SCORES,
    VOCABULARY,
    ClassMap,
    parse_class_map,
)

Key = tuple[str, str]
_OF_HEAD = {ENERGY.name: HEAD_ENERGY.name, ABPC.name: HEAD_ABPC.name}
_REDRAWN = "redrawn head"
UNMOVED = 0.9  # rank correlation above which maps after the head is redrawn do not depend on the class
HELD_FROM = 0.5  # IoU with the clean class from which on it has held


@dataclass(frozen=True)
class Values:
    """The records of one condition for n images that show the class: of each metric the value of each class, (n,) with
    nan where an image does not show it."""

    spec: ClassMap
    ids: tuple[str, ...]
    of_class: Mapping[str, Mapping[int, Floats]]
    flags: tuple[Finding, ...] = ()
    groups: Groups | None = None

    @classmethod
    def of(cls, spec: ClassMap, table: pa.Table, flags: Sequence[Finding], reading: RecordReader) -> Values:
        read = readable_rows(table)
        shows = np.array([bool(each) for each in read["explained"].to_pylist()], dtype=bool)
        raised = list(flags)
        if lacking := len(read) - int(shows.sum()):
            raised.append(Finding.of("maps/class-not-shown", count=lacking, n=len(read)))
        rows = read.take(np.flatnonzero(shows))
        explained = rows["explained"].to_pylist()
        names = [name for name in rows.column_names if name.startswith("class_")]
        every = sorted({target for targets in explained for target in targets})
        of_class: dict[str, dict[int, Floats]] = {}
        for name in names:
            values = {target: np.full(len(rows), np.nan) for target in every}
            for place, (targets, row) in enumerate(zip(explained, rows[name].to_pylist(), strict=True)):
                for target, value in zip(targets, row or (), strict=False):
                    values[target][place] = np.nan if value is None else value
            if not all(np.isnan(each).all() for each in values.values()):
                of_class[name] = values
        flat = of_class.pop(FLAT, {})
        if ENERGY.name in of_class:
            energies = of_class[ENERGY.name]
            of_class[CONTEXT.name] = {k: np.where(flat[k] == 0, 1 - energies[k], np.nan) for k in flat}
        if LEFT.name in of_class:
            left = of_class[LEFT.name]
            of_class[HELD.name] = {k: np.where(np.isnan(left[k]), np.nan, left[k] >= HELD_FROM) for k in left}
        if broken := int(sum(np.nansum(each) for each in flat.values())):
            maps = int(sum(np.isfinite(each).sum() for each in flat.values()))
            raised.append(
                Finding.of("maps/pairs-degenerate" if spec.under else "maps/degenerate", count=broken, n=maps)
            )
        ids = rows["sample_id"]
        return cls(spec, tuple(ids.to_pylist()), of_class, tuple(raised), reading.groups(ids))

    def means(self, metric: str, chosen: Callable[[Floats], NDArray[np.bool_]] = np.isfinite) -> Floats:
        """Return the mean over the classes of each image, (n,). chosen: which of them count, by how much is left."""
        values = np.stack(list(self.of_class[metric].values()))
        if chosen is not np.isfinite:
            left = np.stack([self.of_class[LEFT.name][k] for k in self.of_class[metric]])
            values = np.where(chosen(left), values, np.nan)
        present = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            means: Floats = np.where(present, values, 0).sum(axis=0) / present.sum(axis=0)
        return means

    def mean(self, values: Floats) -> Figure | None:
        """Return the mean of (n,) figures of the images that have one; None without any."""
        finite = np.isfinite(values)
        return mean_of(values[finite], chosen_groups(self.groups, np.asarray(finite))) if finite.any() else None


def value_rows(values: Values, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures of one condition: of all its classes, and of each. names: of the classes."""
    if not values.ids:
        yield Figure(math.nan, 0).of(values.spec.text, AREA.name, values.flags)
    for metric, of_class in values.of_class.items():
        flags = list(values.flags)
        if (figure := values.mean(values.means(metric))) is None:
            continue
        if metric == HEAD.name and figure.low >= UNMOVED:
            flags.append(Finding.of("maps/independent-of-class"))
        yield figure.of(values.spec.text, metric, flags)
        for target, column in of_class.items():
            if values.spec.index is None and (figure := values.mean(column)) is not None:
                yield figure.of(values.spec.text, f"{metric}({names[target]})", flags)


def moved_rows(values: Values) -> Iterator[Figure]:
    """Yield how alike maps are where the class is still there, and where it fell."""
    groups = {"_held": lambda left: left >= HELD_FROM, "_fell": lambda left: left < HELD_FROM}
    for metric in (RANK, OVERLAP):
        for group, chosen in groups.items() if {metric.name, LEFT.name} <= values.of_class.keys() else ():
            if (figure := values.mean(values.means(metric.name, chosen))) is not None:
                yield figure.of(values.spec.text, metric.name + group, values.flags)


def lead_rows(values: Values, every: Mapping[ClassMap, Values]) -> Iterator[Figure]:
    """Yield the leads of a map: over the best control that does not look at the image, which is chosen again in every
    resample, or over its own map with the head redrawn; and over the prediction's own mask."""
    for metric in SCORES:
        if metric.name not in values.of_class:
            continue
        mine, rivals = values.means(metric.name), dict[str, Floats]()
        for name in EVERY_CONTROL:
            other = every.get(replace(values.spec, method=name, options=(), index=None))
            if other is not None and other.ids == values.ids and metric.name in other.of_class:
                rivals[name] = other.means(metric.name)
        mask = rivals.pop(OWN_MASK, None)
        if (redrawn := _OF_HEAD.get(metric.name)) in values.of_class:
            rivals[_REDRAWN] = values.means(str(redrawn))
        if rivals:
            yield _ahead(values, metric, mine, rivals, f"{metric.name}_over_control")
        if mask is not None and metric in SCORES[2:]:
            yield _ahead(values, metric, mine, {OWN_MASK: mask}, metric.name + OVER_MASK)


def _ahead(values: Values, metric: Metric, mine: Floats, rivals: Mapping[str, Floats], name: str) -> Figure:
    sign = metric.better
    finite = np.asarray(np.isfinite(np.stack([mine, *rivals.values()])).all(axis=0))
    scores, n = sign * mine[finite], int(finite.sum())
    controls = np.stack([sign * each[finite] for each in rivals.values()])

    def lead(counts: Floats) -> Floats:
        ahead: Floats = (counts @ scores - (counts @ controls.T).max(axis=1)) / counts.sum(axis=1)
        return ahead

    groups = chosen_groups(values.groups, finite)
    figure = bootstrapped(lead, n, float(lead(np.ones((1, n)))[0]), groups)
    best = list(rivals)[int(controls.mean(axis=1).argmax())]
    return figure.of(values.spec.text, name, [Finding.of("maps/best-control", control=best)])


class ClassMapsSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.values = reading, dict[ClassMap, Values]()

    def add(self, condition: str) -> Iterator[Figure]:
        reading, spec = self.reading, parse_class_map(condition)
        columns = {"sample_id", "error", *COLUMNS_READ}
        table, notes = reading.joined(reading.shards(condition, columns))
        names = reading.manifest.data.class_names
        if "explained" not in table.column_names or not len(readable_rows(table)):  # no image could be read
            return
        if spec.of not in (EVERY, LARGEST):
            spec = spec.resolve(names)
        values = Values.of(spec, table, [*reading.findings(condition, table), *notes], reading)
        if not spec.under:
            self.values[replace(spec, index=None)] = values
        yield from value_rows(values, names)
        if spec.under:
            yield from moved_rows(values)

    def finish(self) -> Iterator[Figure]:
        for spec, values in self.values.items():
            if spec.method and not spec.is_control:
                yield from lead_rows(values, self.values)


class ClassMapsAggregator(Aggregator):
    words = VOCABULARY
    summary = ClassMapsSummary

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[Key]:
        """Yield the figures, not of controls, that some image has for both."""
        for text, metric in super().compared(first, second, common, compared):
            with contextlib.suppress(RunError):
                both = [self.per_sample(side, text, metric) for side in (first, second)]
                if not parse_class_map(text).is_control and all(len(ids) for ids, _ in both):
                    yield text, metric

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        names = [number.name for number in self.words.metrics if number.paired]
        read = readable_rows(side.table(condition, ["sample_id", *names, "error"]))
        filled = [name for name in names if name in read.column_names and read[name].null_count < len(read)]
        if metric not in filled:
            raise not_paired(condition, metric, filled)
        rows = [[value for value in row or () if value == value] for row in read[metric].to_pylist()]
        means = np.array([np.mean(row) if row else np.nan for row in rows])
        finite = np.isfinite(means)
        return read["sample_id"].combine_chunks().filter(pa.array(finite)), means[finite]


_CHIEF = (ENERGY, ABPC)
_NOTE = (
    "Energy on it: the share of a map's sum on the class's pixels; the rest is its context. Over all K classes of an "
    "image, a map without information has 1/K of it, and points at 1/K of them. ABPC: how fast the IoU of the class "
    "falls without its highest pixels. A lead is over the best of a random map, a centred Gaussian, and for energy, "
    "with all tests for ABPC, too, the same map with the head redrawn. The own mask marks the class's own pixels, so "
    "no map has more energy on it; one that beats its ABPC has found which of these pixels, or around them, decide."
)
_STABLE = ("under", "n", LEFT.short, HELD.short, "held: rank corr.", "IoU", "fell: rank corr.", "IoU")


class ClassMapsPresenter(Presenter):
    words, note = VOCABULARY, _NOTE

    def clauses(self, cells: Cells, manifest: Any, headline: Metric) -> Iterator[Clause]:
        for metric in (ABPC, ENERGY):
            for (text, name), row in cells.items():
                if name == f"{metric.name}_over_control":
                    control = control_of(row)
                    rival = CONTROLS_IN_WORDS.get(control, f"the same map with a {control}")
                    words = name_of(text, "table", manifest)
                    score = "the ABPC of its IoU" if metric is ABPC else "energy on the class"
                    yield Clause(f"{words} {lead_in_words(row)} {rival} on {score}")
            if any(name == f"{metric.name}_over_control" for _, name in cells):
                return

    def tables(self, results: Results) -> Iterator[Table]:
        ours = of_family(self.name)
        for checkpoint, conditions in by_checkpoint(results, lambda text: text if ours(text) else None).items():
            parts = {parse_class_map(text): figures for text, figures in conditions.items()}
            for kind in dict.fromkeys(spec.kind for spec in parts if spec.method and not spec.under):
                same = {spec: figures for spec, figures in parts.items() if spec.kind == kind}
                yield _scores(checkpoint, kind, same)
                around = replace(kind, faithfulness="abpc")
                yield from _by_class(checkpoint, kind, same, parts.get(around, {}))
            yield from _stable(checkpoint, parts, partial(name_of, place="table", manifest=results.manifest))

    def brief(self, keys: Sequence[Key], manifest: Any, headline: Metric) -> Iterator[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            spec = parse_class_map(text)
            if not spec.method or spec.is_control or spec.under:
                continue
            words = name_of(text, "table", manifest)
            for metric in _CHIEF:
                lead = metric_named(self.words.metrics, f"{metric.name}_over_control") or lead_over_control(metric)
                yield BriefRow("maps of classes", f"{words}: {metric.label}", text, metric, (*SHORT, *FIRST))
                yield BriefRow("maps of classes", "  – lead over the best control", text, lead)

    def sections(self, results: Results, looks: Any) -> Iterator[Section]:
        if tables := [*self.tables(results)]:

            def values() -> dict[str, Any]:
                lines = finding_lines(results, of_family(self.name))
                return {"grids": with_flags(tables, lines), "gallery": gallery_uri(results.run)}

            yield Section("class-maps", "Maps of classes", values)


def _titled(spec: ClassMap) -> str:
    """Return a map, its class and region for a title."""
    options = f" ({', '.join(option_texts(spec.options))})" if spec.options else ""
    parts = [f"{METHOD_NAMES.get(spec.method, spec.method) or 'maps'}{options} {spec.class_in_words}"]
    parts[0] += f" over {spec.over}" * (spec.over != "predicted")
    parts += [f"{spec.on} images drawn"] * bool(spec.on) + [f"tests {spec.faithfulness}"] * (
        spec.faithfulness != "abpc"
    )
    return ", ".join(parts)


def _scores(checkpoint: str, kind: ClassMap, parts: Mapping[ClassMap, Mapping[str, Figure]]) -> Table:
    maps = {spec: figures for spec, figures in parts.items() if spec.method}
    columns = [metric for metric in (*SCORES, HEAD) if any(metric.name in figures for figures in maps.values())]
    rows = []
    for spec, figures in sorted(maps.items(), key=lambda item: item[0].is_control):
        n = count(figures[ENERGY.name].n if ENERGY.name in figures else 0)
        rows.append((spec.called, n, *(figure_cell(figures.get(m.name), m.scale) for m in columns)))
        for suffix, what in (("_over_control", "lead"), (OVER_MASK, "over its own mask")):
            leads = [figures.get(metric.name + suffix) for metric in columns]
            cells = [
                "" if row is None else f"{_over(row, suffix)}{figure_cell(row, metric.scale, sign='+')}"
                for row, metric in zip(leads, columns, strict=True)
            ]
            rows += [(f"{spec.called}, {what}", "", *cells)] if any(cells) else []
    headings = ("method", "n", *(metric.short or metric.label for metric in columns))
    title = f"{checkpoint}: {_titled(kind)}"
    return Table(title, headings, tuple(rows), note=ClassMapsPresenter.note, checkpoint=checkpoint).said_once("n")


def _over(row: Figure, suffix: str) -> str:
    return f"over {control_of(row)}: " if suffix != OVER_MASK else ""


def _by_class(
    checkpoint: str, kind: ClassMap, parts: Mapping[ClassMap, Mapping[str, Figure]], noise: Mapping[str, Figure]
) -> Iterator[Table]:
    """Yield a table for each method, a line for each class, next to its best control, its own mask and noise."""
    controls = {spec.method: figures for spec, figures in parts.items() if spec.is_control}
    for spec, figures in parts.items():
        if not spec.method or spec.is_control or AREA.name not in figures or not figures[AREA.name].is_finite:
            continue
        classes = {name[len(AREA.name) :]: name[len(AREA.name) + 1 : -1] for name in figures if f"{AREA.name}(" in name}
        rows = []
        for suffix, name in (classes or {"": spec.of}).items():
            cells: list[str] = [figure_cell(figures[AREA.name + suffix], 100, with_interval=False)]
            for metric in (ENERGY, POINTING, ABPC):
                mine, best = figures.get(metric.name + suffix), _best(controls, metric.name + suffix, metric)
                cells += [figure_cell(mine, metric.scale), *([best] if metric is not POINTING else [])]
            of_mask = controls.get(OWN_MASK, {}).get(ABPC.name + suffix)
            cells += [figure_cell(of_mask, 1, with_interval=False)]
            cells += [figure_cell(noise.get(each.name + suffix)) for each in (IN_OBJECT, IN_CONTEXT)]
            rows.append((name, counted(figures[AREA.name + suffix]), *cells))
        headings = (
            *("class", "n", "area %", "energy on it %", "random or centre", "pointing %", "ABPC", "random or centre"),
            *("own mask", IN_OBJECT.short, IN_CONTEXT.short),
        )
        title = f"{checkpoint}: {_titled(spec)}, by class"
        yield Table(title, headings, tuple(rows), checkpoint=checkpoint).without_empty()


def _best(controls: Mapping[str, Mapping[str, Figure]], key: str, metric: Metric) -> str:
    values = {name: controls[name][key].value for name in RIVALS if key in controls.get(name, {})}
    if not values:
        return MISSING
    best = max(values, key=values.__getitem__)
    return scaled(values[best], metric.scale).followed_by(f" ({best})")


def _stable(
    checkpoint: str, parts: Mapping[ClassMap, Mapping[str, Figure]], called: Callable[[str], str]
) -> Iterator[Table]:
    """Yield how maps change under other conditions. called: the name of one."""
    for kind in dict.fromkeys(replace(spec, under="") for spec in parts if spec.under):
        moved = {spec: figures for spec, figures in parts.items() if spec.under}
        same = {called(each.under): figures for each, figures in moved.items() if replace(each, under="") == kind}
        rows = []
        for under, figures in same.items():
            cells = [counted(figures[LEFT.name]) if LEFT.name in figures else count(0)]
            cells += [figure_cell(figures.get(metric.name)) for metric in (LEFT, HELD)]
            for group in ("_held", "_fell"):
                cells += [figure_cell(figures.get(each.name + group), each.scale) for each in (RANK, OVERLAP)]
            rows.append((under, *cells))
        yield Table(
            f"{checkpoint}: {_titled(kind)}, alike to the clean map", _STABLE, tuple(rows), checkpoint=checkpoint
        ).said_once("n")
        yield from _stable_by_class(checkpoint, kind, same)


def _stable_by_class(checkpoint: str, kind: ClassMap, same: Mapping[str, Mapping[str, Figure]]) -> Iterator[Table]:
    """Yield a line for each class: the mean over the conditions, and the one under which its map changes most."""
    names = dict.fromkeys(
        name[len(LEFT.name) + 1 : -1] for each in same.values() for name in each if name.startswith(f"{LEFT.name}(")
    )
    rows = []
    for name in names:
        left, ranks = (
            {under: figure for under in same if (figure := same[under].get(f"{metric.name}({name})")) is not None}
            for metric in (LEFT, RANK)
        )
        means = [sum(each.value for each in some.values()) / max(len(some), 1) for some in (left, ranks)]
        lowest = min(ranks, key=lambda under: ranks[under].value, default="")
        least = figure_cell(ranks[lowest], 1).followed_by(f" ({lowest})") if ranks else MISSING
        rows.append((name, scaled(means[0], 100), scaled(means[1], 1) if ranks else MISSING, least))
    headings = ("class", "IoU left %, mean", "rank corr., mean", "lowest rank corr.")
    if len(rows) > 1 and len(same) > 1:
        title = f"{checkpoint}: {_titled(kind)}, by class, alike to the clean map"
        yield Table(title, headings, tuple(rows), checkpoint=checkpoint)
