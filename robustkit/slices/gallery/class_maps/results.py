"""Maps of classes in results: what lies on the class, what its pixels do to its IoU, how far ahead of controls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ....common.figure import Figure
from ....common.finding import Finding
from ....common.groups import Groups, chosen_groups
from ....common.intervals import Floats, bootstrapped, mean_of
from ....display.format import MISSING, count, counted, figure_cell, scaled
from ....display.table import Section, Table, with_flags
from ....evaluations.aggregate import RecordReader, Results, readable_rows
from ....evaluations.condition import FIRST, SHORT, BriefRow, Clause, name_of
from ....evaluations.family import Aggregator, Presenter, Summary
from ....evaluations.maps import METHOD_NAMES
from ....evaluations.maps.tables import CONTROLS_IN_WORDS, control_of, gallery_uri, lead_in_words
from ....evaluations.metrics import Cells, Metric, by_checkpoint, lead_over_control, metric_named
from ....evaluations.presenting import finding_lines, of_family
from ....evaluations.records import CheckpointRecords, PerSample, not_paired
from . import (
    ABPC,
    AREA,
    COLUMNS_READ,
    CONTEXT,
    ENERGY,
    EVERY,
    FLAT,
    HEAD,
    HEAD_ABPC,
    HEAD_ENERGY,
    IN_CONTEXT,
    IN_OBJECT,
    LARGEST,
    LEADS,
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
HELD = 0.5  # IoU with the clean class from which on it counts as held


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
        if broken := int(sum(np.nansum(each) for each in flat.values())):
            maps = int(sum(np.isfinite(each).sum() for each in flat.values()))
            raised.append(
                Finding.of("maps/pairs-degenerate" if spec.under else "maps/degenerate", count=broken, n=maps)
            )
        ids = rows["sample_id"]
        return cls(spec, tuple(ids.to_pylist()), of_class, tuple(raised), reading.groups(ids))

    def means(self, metric: str) -> Floats:
        """Return the mean over the classes of each image, (n,)."""
        values = np.stack(list(self.of_class[metric].values()))
        present = np.isfinite(values)
        with np.errstate(invalid="ignore"):
            means: Floats = np.where(present, values, 0).sum(axis=0) / present.sum(axis=0)
        return means


def _mean(values: Floats, groups: Groups | None) -> Figure | None:
    finite = np.isfinite(values)
    return mean_of(values[finite], chosen_groups(groups, np.asarray(finite))) if finite.any() else None


def value_rows(values: Values, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the figures of one condition: of all its classes, and of each. names: of the classes."""
    for metric, of_class in values.of_class.items():
        flags = list(values.flags)
        if (figure := _mean(values.means(metric), values.groups)) is None:
            continue
        if metric == HEAD.name and figure.low >= UNMOVED:
            flags.append(Finding.of("maps/independent-of-class"))
        yield figure.of(values.spec.text, metric, flags)
        if metric == ENERGY.name:
            yield _mean_of(1 - values.means(metric), values.groups).of(values.spec.text, CONTEXT.name, flags)
        for target, column in of_class.items():
            if (figure := _mean(column, values.groups)) is not None and values.spec.index is None:
                yield figure.of(values.spec.text, f"{metric}({names[target]})", flags)


def _mean_of(values: Floats, groups: Groups | None) -> Figure:
    figure = _mean(values, groups)
    assert figure is not None
    return figure


def moved_rows(values: Values) -> Iterator[Figure]:
    """Yield how alike maps are where the class is still there, and where it fell."""
    if LEFT.name not in values.of_class:
        return
    left = np.stack(list(values.of_class[LEFT.name].values()))
    for metric in (RANK, OVERLAP):
        if metric.name not in values.of_class:
            continue
        every = np.stack(list(values.of_class[metric.name].values()))
        for group, chosen in (("_held", left >= HELD), ("_fell", left < HELD)):
            some = np.where(chosen, every, np.nan)
            present = np.isfinite(some)
            with np.errstate(invalid="ignore"):
                means = np.where(present, some, 0).sum(axis=0) / present.sum(axis=0)
            if (figure := _mean(means, values.groups)) is not None:
                yield figure.of(values.spec.text, metric.name + group, values.flags)


def lead_rows(values: Values, every: Mapping[ClassMap, Values]) -> Iterator[Figure]:
    """Yield the leads of a map: over the best control that does not look at the image, which is chosen again in every
    resample, or over its own map with the head redrawn; and over the prediction's own mask."""
    for metric in SCORES:
        if metric.name not in values.of_class:
            continue
        mine, rivals = values.means(metric.name), dict[str, Floats]()
        for name in (*RIVALS, OWN_MASK):
            other = every.get(replace(values.spec, method=name, options=(), index=None))
            if other is not None and other.ids == values.ids and metric.name in other.of_class:
                rivals[name] = other.means(metric.name)
        mask = rivals.pop(OWN_MASK, None)
        if (redrawn := _OF_HEAD.get(metric.name)) in values.of_class:
            rivals[_REDRAWN] = values.means(str(redrawn))
        if rivals:
            yield _ahead(values, metric, mine, rivals, f"{metric.name}_over_control")
        if mask is not None and metric.name + OVER_MASK in {each.name for each in LEADS}:
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

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        names = [number.name for number in self.words.metrics if number.paired]
        if metric not in names:
            raise not_paired(condition, metric, names)
        table = side.table(condition, ["sample_id", metric, "error"])
        if metric not in table.column_names:
            raise not_paired(condition, metric, [name for name in names if name in table.column_names])
        read = readable_rows(table)
        rows = [[value for value in row or () if value == value] for row in read[metric].to_pylist()]
        means = np.array([np.mean(row) if row else np.nan for row in rows])
        finite = np.isfinite(means)
        return read["sample_id"].combine_chunks().filter(pa.array(finite)), means[finite]


_CHIEF = (ENERGY, ABPC)
_NOTE = (
    "Energy on it: the share of a map's sum on the class's pixels; the rest is its context. ABPC: how fast the IoU of "
    "the class falls without its highest pixels. A lead is over the best control that does not look at the image, or "
    "the same map with the head redrawn. The own mask marks what is predicted as the class: no map has more energy on "
    "it; a map that beats its ABPC has found which of these pixels, or of the context, decide."
)
_STABLE = ("under", "n", "IoU left %", "n held", "rank corr.", "IoU", "n fell", "rank corr.", "IoU")


class ClassMapsPresenter(Presenter):
    words, note = VOCABULARY, _NOTE

    def clauses(self, cells: Cells, manifest: Any, headline: Metric) -> Iterator[Clause]:
        for metric in (ABPC, ENERGY):
            for (text, name), row in cells.items():
                if name == f"{metric.name}_over_control":
                    control = control_of(row)
                    rival = CONTROLS_IN_WORDS.get(control, f"the same map with a {control}")
                    called = name_of(text, "table", manifest)
                    score = "the ABPC of its IoU" if metric is ABPC else "energy on the class"
                    yield Clause(f"{called} {lead_in_words(row)} {rival} on {score}")
            if any(name == f"{metric.name}_over_control" for _, name in cells):
                return

    def tables(self, results: Results) -> Iterator[Table]:
        ours = of_family(self.name)
        for checkpoint, conditions in by_checkpoint(results, lambda text: text if ours(text) else None).items():
            parts = {parse_class_map(text): figures for text, figures in conditions.items()}
            for kind in dict.fromkeys(spec.kind for spec in parts if spec.method and not spec.under):
                same = {spec: figures for spec, figures in parts.items() if spec.kind == kind}
                yield _scores(checkpoint, kind, same)
                yield from _by_class(checkpoint, kind, same)
            yield from _stable(checkpoint, parts, partial(name_of, place="table", manifest=results.manifest))

    def brief(self, keys: Sequence[Key], manifest: Any, headline: Metric) -> Iterator[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            spec = parse_class_map(text)
            if not spec.method or spec.is_control or spec.under:
                continue
            called = name_of(text, "table", manifest)
            for metric in _CHIEF:
                lead = metric_named(self.words.metrics, f"{metric.name}_over_control") or lead_over_control(metric)
                yield BriefRow("maps of classes", f"{called}: {metric.label}", text, metric, (*SHORT, *FIRST))
                yield BriefRow("maps of classes", "  – lead over the best control", text, lead)

    def sections(self, results: Results, looks: Any) -> Iterator[Section]:
        if tables := [*self.tables(results)]:

            def values() -> dict[str, Any]:
                lines = finding_lines(results, of_family(self.name))
                return {"grids": with_flags(tables, lines), "gallery": gallery_uri(results.run)}

            yield Section("class-maps", "Maps of classes", values)


def _where(kind: ClassMap) -> str:
    return (
        kind.class_in_words
        + (f" over {kind.over}" if kind.over != "predicted" else "")
        + (f", {kind.on} images" if kind.on else "")
    )


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
    title = f"{checkpoint}: maps {_where(kind)}"
    return Table(title, headings, tuple(rows), note=ClassMapsPresenter.note, checkpoint=checkpoint).said_once("n")


def _over(row: Figure, suffix: str) -> str:
    return f"over {control_of(row)}: " if suffix != OVER_MASK else ""


def _by_class(checkpoint: str, kind: ClassMap, parts: Mapping[ClassMap, Mapping[str, Figure]]) -> Iterator[Table]:
    """Yield a table for each method, a line for each class, next to its best control, its own mask and noise."""
    noise = next((figures for spec, figures in parts.items() if not spec.method), {})
    noise = noise or {}
    controls = {spec.method: figures for spec, figures in parts.items() if spec.is_control}
    for spec, figures in parts.items():
        names = [name[len(ENERGY.name) + 1 : -1] for name in figures if name.startswith(f"{ENERGY.name}(")]
        if not spec.method or spec.is_control or len(names) < 2:
            continue
        rows = []
        for name in names:
            area = figures.get(f"{AREA.name}({name})")
            cells: list[str] = [figure_cell(area, 100, with_interval=False)]
            for metric in (ENERGY, POINTING, ABPC):
                key = f"{metric.name}({name})"
                cells += [figure_cell(figures.get(key), metric.scale), _best(controls, key, metric)]
            own = controls.get(OWN_MASK, {}).get(f"{ABPC.name}({name})")
            cells.append(figure_cell(own, 1, with_interval=False))
            cells += [figure_cell(noise.get(f"{each.name}({name})")) for each in (IN_OBJECT, IN_CONTEXT)]
            rows.append((name, counted(figures[f"{ENERGY.name}({name})"]), *cells))
        headings = (
            *("class", "n", "area %", "energy on it %", "best control", "pointing %", "best control", "ABPC"),
            *("best control", "own mask", IN_OBJECT.short, IN_CONTEXT.short),
        )
        title = f"{checkpoint}: {METHOD_NAMES.get(spec.method, spec.called)} by class"
        yield Table(title, headings, tuple(rows), checkpoint=checkpoint).without_empty()


def _best(controls: Mapping[str, Mapping[str, Figure]], key: str, metric: Metric) -> str:
    known = {name: controls[name][key].value for name in RIVALS if key in controls.get(name, {})}
    if not known:
        return MISSING
    best = max(known, key=known.__getitem__)
    return scaled(known[best], metric.scale).followed_by(f" ({best})")


def _stable(
    checkpoint: str, parts: Mapping[ClassMap, Mapping[str, Figure]], called: Callable[[str], str]
) -> Iterator[Table]:
    """Yield how maps change under other conditions. called: the name of one."""
    for kind in dict.fromkeys(replace(spec, under="") for spec in parts if spec.under):
        moved = {spec: figures for spec, figures in parts.items() if spec.under}
        same = {called(each.under): figures for each, figures in moved.items() if replace(each, under="") == kind}
        rows = []
        for under, figures in same.items():
            cells = [counted(figures[RANK.name]) if RANK.name in figures else count(0)]
            cells.append(figure_cell(figures.get(LEFT.name)))
            for group in ("_held", "_fell"):
                some = [figures.get(metric.name + group) for metric in (RANK, OVERLAP)]
                cells.append(count(0) if some[0] is None else counted(some[0]))
                cells += [figure_cell(each, scale) for each, scale in zip(some, (1, 100), strict=True)]
            rows.append((under, *cells))
        title = f"{checkpoint}: {METHOD_NAMES.get(kind.method, kind.called)} {_where(kind)}, alike to the clean map"
        yield Table(title, _STABLE, tuple(rows), checkpoint=checkpoint)
        yield from _stable_by_class(checkpoint, kind, same)


def _stable_by_class(checkpoint: str, kind: ClassMap, same: Mapping[str, Mapping[str, Figure]]) -> Iterator[Table]:
    """Yield a line for each class: the mean over the conditions, and the one under which its map changes most."""
    of_class: dict[str, dict[str, Figure]] = {}
    for under, figures in same.items():
        for name, figure in figures.items():
            if name.startswith(f"{RANK.name}("):
                of_class.setdefault(name[len(RANK.name) + 1 : -1], {})[under] = figure
    if len(of_class) < 2:
        return
    rows = []
    for name, figures in of_class.items():
        mean = sum(figure.value for figure in figures.values()) / len(figures)
        lowest = min(figures, key=lambda under: figures[under].value)
        left = [same[under].get(f"{LEFT.name}({name})") for under in figures]
        known = [each.value for each in left if each is not None]
        least = figure_cell(figures[lowest], 1).followed_by(f" ({lowest})")
        rows.append((name, scaled(mean, 1), scaled(sum(known) / max(len(known), 1), 100), least))
    headings = ("class", "rank corr., mean", "IoU left %, mean", "lowest rank corr.")
    yield Table(
        f"{checkpoint}: {METHOD_NAMES.get(kind.method, kind.called)} by class, alike to the clean map",
        headings,
        tuple(rows),
        checkpoint=checkpoint,
    )
