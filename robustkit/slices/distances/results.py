"""Smallest changes in results: medians, robust accuracy at every radius, tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from scipy.special import bdtr

from ...common.figure import FEWEST, ORDER, Figure
from ...common.finding import Finding
from ...common.groups import Groups
from ...common.intervals import Floats, bootstrapped, mean_of, share_of
from ...display.format import Cell, amount, figure_cell, number, percent, size_text
from ...display.svg import Plot, labels, legend, list_some, panels, shorten_name
from ...display.table import Section, Table, side_by_side, with_flags
from ...errors import DamagedRecord, RunError
from ...evaluations.aggregate import EXCEEDS, RecordReader, column_of, readable_rows
from ...evaluations.attacks import attack_norm, starts_from
from ...evaluations.attacks.ranking import Outcomes, Strengths, distances_of, evaluated
from ...evaluations.condition import FIRST, BriefRow, words_of
from ...evaluations.family import Aggregator, Overview, Presenter, Summary
from ...evaluations.layers import decode_layers, head_name
from ...evaluations.metrics import Metric, by_checkpoint
from ...evaluations.presenting import finding_lines, of_family
from ...evaluations.records import common_places, not_paired
from ...protocol.card import parse_number
from ...protocol.condition import CLEAN
from ...runs.manifest import Manifest
from . import (
    ACCURACY,
    AREA,
    BY_CHANCE,
    CORRELATION,
    FURTHEST,
    MEDIAN,
    OF_HEAD,
    OPTIMALITY,
    RADII,
    RATIO,
    VOCABULARY,
    WATCHED,
    budget_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ...evaluations.aggregate import Results
    from ...evaluations.family import Looks
    from ...evaluations.layers import Layer
    from ...evaluations.records import Bools, CheckpointRecords, Pairings, PerSample

_LEAST = 0.02  # the share of the samples that may be missed without a flag, and one sample always: random starts differ


def weak_flags(reading: RecordReader, condition: str, read: pa.Table) -> list[Finding]:
    """Return a finding for each attack of a fixed radius that broke samples nearer than `read` has distances."""
    flags = []
    for other, eps, distances, right in _others(reading, condition, read):
        missed = int((~right & (distances > eps * (1 + 1e-4) + EXCEEDS)).sum())
        if missed > max(1.0, _LEAST * len(right)):
            radius = amount(eps, attack_norm(condition), reading.manifest.protocol.space)
            values = {"other": other, "count": missed, "n": len(right), "radius": radius}
            flags.append(Finding.of("attack/too-weak", budget=budget_of(condition), **values))
    return flags


class LeftStanding(Overview):
    """Attacks of a fixed radius that left standing what a nearer wrong point was found for."""

    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading

    def findings(self) -> dict[str, list[Finding]]:
        raised: dict[str, list[Finding]] = {}
        for condition in _ours(self.reading.manifest.conditions):
            table = evaluated(self.reading, condition, ["sample_id", "distance"])
            for other, eps, distances, right in _others(self.reading, condition, table):
                left = int((right & (distances <= eps)).sum())
                if left > max(1.0, _LEAST * len(right)):
                    raised.setdefault(other, []).append(
                        Finding.of("attack/left-standing", count=left, n=len(right), other=condition)
                    )
        return raised


def _others(reading: RecordReader, condition: str, read: pa.Table | None) -> Iterator[tuple[str, float, Floats, Bools]]:
    """Yield the attacks on clean images of a fixed radius in a condition's norm: text, radius in the units of records,
    and, of the samples that both have, the distances in `read` and what is right under them.
    """
    manifest, norm = reading.manifest, attack_norm(condition)
    if read is None or manifest.protocol.space == "normalised":
        return
    for other, claim in manifest.claims.items():
        if claim.norm != norm or claim.eps <= 0 or starts_from(other) != CLEAN.text:
            continue
        if (table := evaluated(reading, other, ["sample_id", "correct"])) is not None:
            mine, theirs = common_places([read["sample_id"], table["sample_id"]])
            yield other, claim.eps, distances_of(read)[mine], Outcomes.of(table).right[theirs]


_FIGURES = ("softmax_slope", "softmax_slopes")
_SHUFFLES = 1000
_AT_ONCE = 1_000_000  # figures of shuffles that are held together


@dataclass(frozen=True)
class Slopes:
    """The softmax slopes of n samples on clean images: (n,) over all heads, and of each of the T heads (n, T)."""

    ids: Sequence[str]
    means: Floats
    heads: Floats
    layers: Sequence[Layer]


def slopes_of(reading: RecordReader) -> Slopes | None:
    """Return the slopes of `attention(clean)`; None without. Raises DamagedRecord for missing layers or heads."""
    where = reading.run.shard_path(reading.checkpoint, WATCHED, 0).parent
    ids, means, heads = list[str](), list[Floats](), list[Floats]()
    layers: tuple[Layer, ...] = ()
    try:
        every = list(reading.shards(WATCHED, ("sample_id", "error", *_FIGURES)))
    except DamagedRecord:
        raise
    except RunError:
        return None  # not asked for, or not evaluated yet
    for shard in every:
        if not len(read := readable_rows(shard)):
            continue
        decoded = decode_layers(shard.schema.metadata, where)
        if layers and decoded != layers:
            raise DamagedRecord(f"{where}: records with different layers than the rest; delete them and run again")
        layers = decoded
        width = sum(layer.heads for layer in layers)
        complete = {*_FIGURES} <= {*read.column_names}
        flat = read["softmax_slopes"].combine_chunks().flatten() if complete else None
        if flat is None or len(flat) != len(read) * width:
            raise DamagedRecord(f"{where}: a record without a figure for each head; delete it and run again")
        ids += read["sample_id"].to_pylist()
        means.append(column_of(read, "softmax_slope"))
        heads.append(flat.to_numpy(zero_copy_only=False).reshape(-1, width))
    return Slopes(ids, np.concatenate(means), np.concatenate(heads), layers) if ids else None


def correlations(
    ids: Sequence[str], distances: Floats, slopes: Slopes, groups: Groups | None = None
) -> Iterator[Figure]:
    """Yield Spearman's correlation of slopes with distances (n,), over the samples right as they are, with its
    interval; from 10 samples on also of the best head, and what the best reaches by chance. Nothing where all samples
    tie.

    Infinite distances rank last; ties share their rank. Samples with a slope that is not finite are left out. groups:
    of the samples; shuffles would tear them apart, so that nothing is said on heads.
    """
    mine, theirs = common_places([pa.array(ids, pa.string()), pa.array(slopes.ids, pa.string())])
    finite = np.isfinite(slopes.means) & np.isfinite(slopes.heads).all(axis=1)
    counted = (distances[mine] > 0) & finite[theirs]
    far, theirs = distances[mine][counted], theirs[counted]
    n, means = len(far), slopes.means[theirs]
    value = float(spearman(means, far, np.ones((1, n)))[0]) if n else math.nan
    if math.isnan(value):
        return
    if groups is not None:
        groups = Groups.numbered(groups.codes[mine][counted])
    yield bootstrapped(lambda counts: spearman(means, far, counts), n, value, groups).named(CORRELATION.name)
    if n < FEWEST or groups is not None:
        return
    standard = np.stack([_standard(column) for column in slopes.heads[theirs].T], axis=1)
    ranks = _standard(far)
    of_heads = ranks @ standard
    best = int(np.abs(of_heads).argmax())
    if of_heads[best]:
        yield Figure(float(of_heads[best]), n, metric=f"{OF_HEAD.name}{head_name(slopes.layers, best)})")
        yield Figure(by_chance(ranks, standard), n, metric=BY_CHANCE.name)


def spearman(x: Floats, y: Floats, counts: Floats) -> Floats:
    """Return Spearman's correlation (R,) of x and y (n,), sample i counted counts[r, i] times; nan where all tie."""
    middle = (counts.sum(axis=1, keepdims=True) + 1) / 2
    first, second = (_ranks(values, counts) - middle for values in (x, y))
    with np.errstate(invalid="ignore", divide="ignore"):
        both = (counts * first * second).sum(axis=1)
        correlation: Floats = both / np.sqrt((counts * first**2).sum(axis=1) * (counts * second**2).sum(axis=1))
    return correlation


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Return the rank, from 1 on, of each of n values among their copies, (R, n)."""
    order = np.argsort(values, kind="stable")
    distinct, group = np.unique(values, return_inverse=True)
    starts = np.searchsorted(values[order], distinct)
    copies = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks: Floats = (copies.cumsum(axis=1) - (copies - 1) / 2)[:, group]
    return ranks


def _standard(values: Floats) -> Floats:
    """Return the ranks (n,) of values, with mean 0 and a sum of squares of 1; 0 where all tie."""
    (ranks,) = _ranks(values, np.ones((1, len(values)))) - (len(values) + 1) / 2
    standard: Floats = ranks / (math.sqrt(float(ranks @ ranks)) or 1.0)
    return standard


def by_chance(ranks: Floats, standard: Floats) -> float:
    """Return what the largest |correlation| of ranks (n,) with columns (n, T) stays below in 95 % of fixed shuffles."""
    generator = np.random.Generator(np.random.PCG64(0))
    largest, n = list[Floats](), len(ranks)
    while (left := _SHUFFLES - sum(map(len, largest))) > 0:
        rows = min(max(1, _AT_ONCE // n), left)
        drawn = generator.permuted(np.broadcast_to(ranks, (rows, n)), axis=1)
        largest.append(np.abs(drawn @ standard).max(axis=1))
    return float(np.quantile(np.concatenate(largest), 0.95))


class DistanceSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.strengths, self.noted = reading, Strengths(reading), dict[str, list[Finding]]()

    def add(self, condition: str) -> list[Figure]:
        columns = ("sample_id", "error", "correct", "distance", "nll")
        table, notes = self.reading.joined(self.reading.shards(condition, columns))
        read = readable_rows(table)
        flags = [*self.reading.findings(condition, table), *notes]
        if not len(read):
            return []
        distances = distances_of(read)
        if lost := int(np.isinf(distances).sum()):
            why = "use more queries" if budget_of(condition) == "queries" else "gradients may mislead the attack"
            flags.append(Finding.of("attack/none-found", count=lost, n=len(read), why=why))
        flags += weak_flags(self.reading, condition, read)
        self.strengths.take(condition, read)
        self.noted[condition] = flags
        groups = self.reading.groups(read["sample_id"])
        figures = list(distance_numbers(distances, attack_norm(condition), groups))
        if self._slopes is not None:
            figures += correlations(read["sample_id"].to_pylist(), distances, self._slopes, groups)
        return [figure.of(condition, figure.metric, flags) for figure in figures]

    @cached_property
    def _slopes(self) -> Slopes | None:
        return slopes_of(self.reading)

    def finish(self) -> Iterator[Figure]:
        for condition, flags in self.noted.items():
            figures = self.strengths.optimality(condition)
            yield from (figure.of(condition, OPTIMALITY.name, flags) for figure in figures)


def distance_numbers(distances: Floats, norm: str, groups: Groups | None = None) -> Iterator[Figure]:
    n = len(distances)
    if groups is None:
        middle = Figure(float(np.sort(distances)[(n - 1) // 2]), n, *median_interval(distances), ORDER)
    else:
        ordered, order = np.sort(distances), np.argsort(distances)

        def medians(counts: Floats) -> Floats:
            sums = counts[:, order].cumsum(axis=1)
            return ordered[(sums > (sums[:, -1:] - 1) // 2).argmax(axis=1)]  # type: ignore[no-any-return]

        middle = bootstrapped(medians, n, float(ordered[(n - 1) // 2]), groups)
    yield middle.named(MEDIAN.name)
    yield mean_of(np.minimum(distances, FURTHEST[norm]) / FURTHEST[norm], groups).named(AREA.name)
    for text in RADII[norm]:
        yield share_of(distances > float(parse_number(text)), groups).named(f"{ACCURACY.name}{text})")


def median_interval(values: Floats) -> tuple[float, float]:
    """Return a 95 % interval of the median by order statistics; nan, nan of fewer than six values."""
    n, ordered = len(values), np.sort(values)
    place = max((k for k in range(n // 2 + 1) if bdtr(k - 1, n, 0.5) <= 0.025), default=0) if n else 0
    return (float(ordered[place - 1]), float(ordered[n - place])) if place else (math.nan, math.nan)


_NOTE = (
    "Accuracy at a radius counts the samples whose nearest adversarial example found is further away; samples "
    "misclassified when clean have distance 0."
    " 95 % intervals in brackets."
)
_OF_SLOPES = (
    " Slope correlation: Spearman's, of distance and softmax slope on the clean image, over the samples that are "
    "correct when clean. Samples without an adversarial example rank last"
    ", ties share their rank; the interval is a bootstrap's. The head with the largest correlation is selected, and "
    "that maximum is large by chance, too:"
    " in 95 % of 1000 shuffles of the distances "
    "the largest stays below the figure given for chance."
)


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]]) -> Table:
    lines = list[tuple[str, str, Cell]]()
    for condition, rows in conditions.items():
        norm, name = attack_norm(condition), VOCABULARY.label(condition)
        called = {
            MEDIAN.name: "median distance",
            OPTIMALITY.name: "optimality among all attacks of this norm, %",
            AREA.name: f"area under the curve to {size_text(FURTHEST[norm], norm)}, %",
        }
        for metric, row in rows.items():
            if not metric.startswith(CORRELATION.name):
                what = called.get(metric) or f"accuracy at {_radius(metric)}, %"
                lines.append((name, what, _cell(row, norm, percent=metric != MEDIAN.name)))
        lines += [(name, *line) for line in _correlations(rows)]
    n = next(iter(next(iter(conditions.values())).values())).n
    note = _NOTE + _OF_SLOPES * any(what == CORRELATION.label for _, what, _ in lines)
    title, headings = f"{checkpoint}: smallest adversarial perturbations, n = {n}", ("attack", "figure", "value")
    return Table(title, headings, tuple(lines), note=note, checkpoint=checkpoint)


def _radius(metric: str) -> str:
    return metric.removeprefix(ACCURACY.name).removesuffix(")")


def _correlations(rows: Mapping[str, Figure]) -> Iterator[tuple[str, Cell]]:
    of = {metric: row for metric, row in rows.items() if row.is_finite}
    if (row := of.get(CORRELATION.name)) is not None:
        yield CORRELATION.label, figure_cell(row, 1, digits=2).followed_by(f", n = {row.n}")
    for metric, row in of.items():
        if metric.startswith(OF_HEAD.name) and BY_CHANCE.name in of:
            head = metric.removeprefix(OF_HEAD.name).removesuffix(")")
            chance = of[BY_CHANCE.name].value
            yield (
                f"{CORRELATION.label}, largest of all heads",
                number(row.value, 2).followed_by(f" ({head}; chance {number(chance, 2)})"),
            )


def _cell(row: Figure, norm: str, percent: bool) -> Cell:
    """Return `2.74/255 [2.30, 3.49]`, or `43.3 [31.6, 55.9]` of percentages."""
    if not row.is_finite:
        return Cell("none found")
    levels = norm == "linf" and not percent

    def shown(value: float) -> str:
        if not math.isfinite(value):
            return "…"
        return f"{255 * value:.2f}" if levels else f"{100 * value:.1f}" if percent else f"{value:.3g}"

    interval = f" [{shown(row.low)}, {shown(row.high)}]" if row.interval else ""
    return Cell(shown(row.value) + "/255" * levels + interval, row.value, row)


def distance_figures(results: Sequence[Figure], looks: Looks) -> Iterator[Plot]:
    for text in _ours(dict.fromkeys(row.condition for row in results)):
        curves: dict[str, list[tuple[float, Figure]]] = {}
        for row in results:
            if row.condition == text and row.metric.startswith(ACCURACY.name):
                radius = float(parse_number(_radius(row.metric)))
                curves.setdefault(row.checkpoint, []).append((radius, row))
        if curves:
            yield _figure(text, curves, looks)


def _figure(text: str, curves: Mapping[str, list[tuple[float, Figure]]], looks: Looks) -> Plot:
    norm, names = attack_norm(text), labels(curves)
    unit = 255 if norm == "linf" else 1
    axis = {"linf": "radius (linf) in 1/255", "l0": "values that may change (l0)"}.get(norm, f"radius ({norm})")

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1)
        for checkpoint, points in curves.items():
            look, radii = looks[checkpoint], [unit * radius for radius, _ in points]
            low, value, high = ([100 * getattr(point, end) for _, point in points] for end in ("low", "value", "high"))
            axes.fill_between(radii, low, high, color=look.colour, alpha=0.15, linewidth=0)
            line: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
            axes.plot(radii, value, markersize=4, linewidth=1.6, **line)
        axes.set_xscale("symlog", linthresh=min(unit * points[0][0] for points in curves.values()))
        ticks = [unit * radius for radius, _ in next(iter(curves.values()))]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, 104)
        axes.set_xlabel(axis)
        axes.set_ylabel("accuracy, %")
        legend(canvas, {names[name]: looks[name] for name in curves})

    sentences = []
    for checkpoint, points in curves.items():
        points_in_words = (f"{percent(point.value)} at {unit * radius:g}" for radius, point in points)
        sentences.append(f"{names[checkpoint]} has {', '.join(points_in_words)}")
    label, height = VOCABULARY.label(text), 300 + 18 * -(-len(curves) // 2)
    caption = f"{label}: the share of samples without an adversarial example within the radius; bands: 95 %."
    alt = f"{shorten_name(label, 90)}: {list_some(sentences)}."
    return Plot("distances", f"Accuracy at every radius, {label}", height, paint, alt=alt, caption=caption, name=text)


def _ours(texts: Iterable[str]) -> list[str]:
    return [text for text in texts if words_of(text) is VOCABULARY]


class DistancesAggregator(Aggregator):
    words = VOCABULARY
    summary = DistanceSummary
    overview = LeftStanding

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        yield from ((text, RATIO.name) for text in common)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        read = side.samples(condition, ["distance"])
        distances = np.where(np.isnan(read.columns["distance"]), np.inf, read.columns["distance"])
        if metric == RATIO.name:
            right = distances > 0
            return read.ids.filter(pa.array(right)), np.log(distances[right])
        if metric == AREA.name:
            furthest = FURTHEST[attack_norm(condition)]
            return read.ids, np.minimum(distances, furthest) / furthest
        if metric.startswith(ACCURACY.name) and metric.endswith(")"):
            return read.ids, (distances > float(parse_number(_radius(metric)))).astype(np.float64)
        raise not_paired(condition, metric, [RATIO.name, AREA.name, f"{ACCURACY.name}RADIUS)"])


class DistancesPresenter(Presenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Sequence[Table]:
        ours = by_checkpoint(results, lambda text: text if words_of(text) is VOCABULARY else None)
        return [_table(checkpoint, conditions) for checkpoint, conditions in ours.items()]

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        yield from (row for row in super().brief(keys, manifest, headline) if row.places == FIRST)
        for text in dict.fromkeys(text for text, _ in keys):
            in_levels = attack_norm(text) == "linf"
            metric = replace(MEDIAN, scale=255.0) if in_levels else MEDIAN
            label = f"{VOCABULARY.label(text, 'table', manifest)}: median{', 1/255' * in_levels}"
            yield BriefRow("smallest adversarial perturbation, higher is better", label, text, metric)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        if tables := self.tables(results):
            lines, note = finding_lines(results, of_family(self.name)), max((table.note for table in tables), key=len)
            parts = [replace(table, keys=2, note="") for table in tables]
            # A row for each figure, a column for each checkpoint.
            title, figures = "Minimal adversarial perturbations", tuple(distance_figures(results, looks))
            grid = replace(side_by_side(title, parts, headline="value", note=note)[0], title=title)
            values = {"grids": with_flags([grid], lines)}
            yield Section("distances", f"{title}", lambda: values, figures)
