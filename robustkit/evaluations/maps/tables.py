"""Show maps in tables, sentences and dot plots, next to controls that do not look at the image."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from PIL import Image

from ...common.figure import Figure
from ...common.finding import Finding
from ...data.images import open_picture
from ...display.format import MISSING, Cell, count, counted, figure_cell, scaled
from ...display.svg import Plot, Style, brief_labels, dots, legend, list_some, panels, series_shift
from ...display.table import Section, Table, side_by_side, with_flags
from ...errors import RunError
from ...runs.folder import RunFolder, refuse_link
from ..aggregate import RecordReader, Results, readable_rows
from ..condition import FIRST, SHORT, BriefRow, Clause, metric_in, name_of
from ..estimation import support_grids, support_tables
from ..family import Aggregator, Presenter, Summary
from ..metrics import Cells, Metric, by_checkpoint, is_finite
from ..presenting import finding_lines, note_lines, of_family
from ..records import CheckpointRecords, PerSample, not_paired
from . import (
    FREE_HEADINGS,
    METHOD_NAMES,
    MODES,
    MOVED,
    SCORE_HEADINGS,
    STABILITY,
    VOCABULARY,
    MapSpec,
    method_names,
    only_boxes,
    option_texts,
    parts_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ...common.groups import Groups
    from ...common.intervals import Floats
    from ...runs.manifest import Manifest
    from ..aggregate import Results
    from ..family import Looks


_DRAWN = {
    ("cam_iou", "mask"): "IoU of pixels",
    ("cam_iou", "box"): "IoU of boxes",
    ("pointing_game", ""): "pointing game",
    ("energy_inside", ""): "energy inside",
    ("pxap", ""): "PxAP",
    ("abpc", ""): "ABPC",
    ("road", ""): "ROAD",
    ("insertion_auc", ""): "insertion",
    ("deletion_auc", ""): "deletion ↓",
}  # metric and mode of the scores that are drawn; the tables have all


def score_called(metric: str, mode: str, only_boxes: bool, of: Mapping[tuple[str, str], str] = _DRAWN) -> str:
    return "IoU with boxes" if only_boxes and (metric, mode) == ("cam_iou", "mask") else of[metric, mode]


@dataclass(frozen=True)
class Score:
    """A score of a checkpoint's maps. kind: the parameters that methods share. points: by method. controls: values."""

    checkpoint: str
    kind: str
    score: str
    scale: float
    points: Mapping[str, Figure]
    controls: Mapping[str, float]

    @property
    def best_control(self) -> str:
        """The name; empty without controls."""
        finite = {name: value for name, value in self.controls.items() if math.isfinite(value)}
        return (min if "↓" in self.score else max)(finite, key=finite.__getitem__, default="")


_CHIEF = {("cam_pixel_accuracy", "mask"): "pixel acc.", ("cam_dice", "mask"): "DICE", **_DRAWN}
"""What a checkpoint's first table has: pixel accuracy and DICE, too."""


def map_scores(
    results: Sequence[Figure], only_boxes: bool = False, of: Mapping[tuple[str, str], str] = _DRAWN
) -> list[Score]:
    by_score: dict[tuple[str, str, str, float], dict[str, Figure]] = {}
    controls: dict[tuple[str, str, str, float], dict[str, float]] = {}
    for row in results:
        parts = parts_of(row.condition)
        if parts is None or parts[0].under or not row.is_finite or (row.metric, parts[1]) not in of:
            continue
        spec, mode = parts
        kind = spec.kind.text.removeprefix("cam(").rstrip(")").lstrip(",")
        score = score_called(row.metric, mode, only_boxes, of)
        key = row.checkpoint, kind, score, _scale(row.metric)
        if spec.is_control:
            controls.setdefault(key, {})[spec.called] = row.value
        else:
            by_score.setdefault(key, {})[spec.called] = row
    order = [score_called(*key, only_boxes, of) for key in of]
    every = sorted(by_score.items(), key=lambda item: order.index(item[0][2]))
    return [
        Score(*key, {name: points[name] for name in sorted(points, key=_place)}, controls.get(key, {}))
        for key, points in every
    ]


def _scale(name: str) -> float:
    metric = metric_in(VOCABULARY, name)
    return 1.0 if metric is None else metric.scale


def _place(called: str) -> tuple[int, str]:
    return method_names().index(called.partition("(")[0]), called


def map_figures(entries: Sequence[Score], looks: Mapping[str, Style]) -> Iterator[Plot]:
    """Yield a figure for each kind of map, with a panel for each score."""
    kinds = dict.fromkeys(entry.kind for entry in entries)
    several = len(kinds) > 1
    if len({name for entry in entries for name in entry.points}) < 2:  # the table says as much
        return
    for kind in kinds:
        yield _figure(kind if several else "", [entry for entry in entries if entry.kind == kind], looks)


def _figure(kind: str, group: Sequence[Score], looks: Mapping[str, Style]) -> Plot:
    score_names = list(dict.fromkeys(entry.score for entry in group))
    methods = sorted({name for entry in group for name in entry.points}, key=_place)
    names = brief_labels([*dict.fromkeys(entry.checkpoint for entry in group)])

    def paint(canvas: Canvas) -> None:
        grid = panels(canvas, len(score_names), sharey=True)
        for axes, score in zip(grid, score_names, strict=True):
            rivals = [entry for entry in group if entry.score == score]
            for place, entry in enumerate(rivals):
                rows = [row for row, method in enumerate(methods) if method in entry.points]
                points = [entry.points[methods[row]] for row in rows]
                shift = -series_shift(place, len(rivals), 8, 34)
                dots(axes, rows, points, looks[entry.checkpoint], shift=shift, across=True, scale=entry.scale)
            ink = axes.spines["left"].get_edgecolor()
            for value in {entry.scale * entry.controls[best] for entry in rivals if (best := entry.best_control)}:
                axes.axvline(value, color=ink, linestyle="--", linewidth=1)
            axes.set_title(f"{score}, %" if rivals[0].scale == 100 else score)
            axes.set_xlim(*_limits(rivals))
            axes.locator_params(axis="x", nbins=4)
            axes.grid(visible=False, axis="y")
            for row in range(len(methods) - 1):  # rows hold several series: lines part them
                axes.axhline(row + 0.5, color=ink, alpha=0.25, linewidth=0.8)
        for axes in grid[::2]:
            axes.set_yticks(range(len(methods)), methods)
            axes.set_ylim(len(methods) - 0.5, -0.5)
        legend(canvas, {names[name]: looks[name] for name in names}, lines=False)

    texts = [_description(score, [entry for entry in group if entry.score == score], names) for score in score_names]
    caption = "With 95 % intervals."
    if any(entry.controls for entry in group):
        caption += " Dashed: the best control, which ignores the image; a map is informative where it is better."
    return Plot(
        "maps",
        f"Scores of maps{f' ({kind})' if kind else ''}",
        40 + 18 * -(-len(names) // 2) + (52 + max(42, 18 * len(names)) * len(methods)) * -(-len(score_names) // 2),
        paint,
        alt=" ".join(texts),
        caption=caption
        + (" Lower is better with ↓, higher otherwise." if any("↓" in score for score in score_names) else ""),
    )


def _limits(rivals: Sequence[Score]) -> tuple[float, float]:
    points = [(entry.scale, point) for entry in rivals for point in entry.points.values()]
    every = [scale * bound for scale, point in points for bound in (point.value, point.low, point.high)]
    every += [entry.scale * entry.controls[best] for entry in rivals if (best := entry.best_control)]
    finite = [bound for bound in every if math.isfinite(bound)]
    pad = 0.06 * (max(finite) - min(finite)) or 0.05 * rivals[0].scale
    return min(finite) - pad, max(finite) + pad


def _description(score: str, rivals: Sequence[Score], names: Mapping[str, str]) -> str:
    sentences = []
    for entry in rivals:
        digits = 1 if entry.scale == 100 else 3
        mine = [f"{name} {entry.scale * point.value:.{digits}f}" for name, point in entry.points.items()]
        if best := entry.best_control:
            mine.append(f"best control {best} {entry.scale * entry.controls[best]:.{digits}f}")
        sentences.append(f"{names[entry.checkpoint]}: {', '.join(mine)}")
    return f"{score.replace(' ↓', ', lower is better')}. {list_some(sentences)}."


ONE_SIDED = ("cam_precision", "cam_recall")  # reached by marking all, or nearly nothing: a lead in one is not shown
_SHORTER = {"rank_correlation": "rank corr.", "map_iou": "IoU"}
_HEADED = tuple(_SHORTER.get(metric.name, metric.label) for metric in STABILITY)
STABLE_HEADINGS = ("under", "n held", *_HEADED, "n fell", *_HEADED)


def is_of_maps(condition: str) -> bool:
    return condition.startswith(("cam(", "stability("))


def control_of(row: Figure) -> str:
    """Return the best control, over which a figure is the lead."""
    text = next(each.text for each in row.findings if each.code == "maps/best-control")
    return text.removeprefix("best control: ")


def map_tables(results: Sequence[Figure], only_boxes: bool = False) -> list[Table]:
    """Return the tables of all checkpoints, under titles without their names. only_boxes: there are no masks."""
    every = by_checkpoint(results, lambda text: text if is_of_maps(text) else None)
    return [table for checkpoint, figures in every.items() for table in _tables(checkpoint, figures, only_boxes)]


def _tables(checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]], only_boxes: bool) -> Iterator[Table]:
    figures = {parts: metrics for text, metrics in conditions.items() if (parts := parts_of(text)) is not None}
    scored = {key: metrics for key, metrics in figures.items() if not key[0].under}
    for kind in dict.fromkeys(spec.kind for spec, _ in scored):
        ours = {key: metrics for key, metrics in scored.items() if key[0].kind == kind}
        remark = " of the label's class" * (kind.target == "label") + (f", {kind.on} samples drawn" if kind.on else "")
        for mode in MODES:
            part = {spec: metrics for (spec, its), metrics in ours.items() if its == mode}
            against = "pixels against boxes" if only_boxes and mode == "mask" else f"{mode} mode"
            title = f"maps, {against} at threshold {kind.threshold:g}{remark}"
            yield from _scores(checkpoint, title, SCORE_HEADINGS, part)
        part = {spec: metrics for (spec, its), metrics in ours.items() if not its}
        yield from _scores(checkpoint, f"maps, without a threshold{remark}", FREE_HEADINGS, part)
    stable = {spec: metrics for (spec, _), metrics in figures.items() if spec.under}
    for method in dict.fromkeys(spec.called for spec in stable):
        same = {spec: metrics for spec, metrics in stable.items() if spec.called == method}
        lines = tuple(_stable(spec, metrics) for spec, metrics in same.items())
        yield Table(f"{method}: alike to the clean map", STABLE_HEADINGS, lines, checkpoint=checkpoint)


def _scores(
    checkpoint: str, title: str, headings: Mapping[str, str], part: Mapping[MapSpec, Mapping[str, Figure]]
) -> Iterator[Table]:
    """Yield a table with a column per score and a row per method, controls last; below each its lead over the best."""
    used = [metric for metric in headings if any(metric in metrics for metrics in part.values())]
    if not used:
        return
    scales, rows = {metric: _scale(metric) for metric in used}, []
    for spec in sorted(part, key=lambda spec: spec.is_control):
        figures = {metric: part[spec].get(metric) for metric in used}
        ns = dict.fromkeys(str(row.n) for row in figures.values() if row is not None)
        cells = [figure_cell(row, scales[metric], not spec.is_control) for metric, row in figures.items()]
        rows.append((spec.called, Cell(" / ".join(ns)), *cells))
        leads = {m: row for m in used if m not in ONE_SIDED and (row := part[spec].get(f"{m}_over_control"))}
        if leads:
            ahead = {m: f"over {control_of(row)}: {figure_cell(row, scales[m], sign='+')}" for m, row in leads.items()}
            rows.append((f"{spec.called}, lead", "", *(ahead.get(metric, "") for metric in used)))
    columns = (headings[metric] + " %" * (scales[metric] == 100) for metric in used)
    yield Table(title, ("method", "n", *columns), tuple(rows), checkpoint=checkpoint)


def _stable(spec: MapSpec, metrics: Mapping[str, Figure]) -> tuple[str, ...]:
    cells = [spec.under]
    for group in ("held", "fell"):
        rows = [metrics.get(f"{metric}_{group}") for metric in MOVED]
        cells += [count(0) if rows[0] is None else counted(rows[0]), *(figure_cell(row, 1) for row in rows)]
    return tuple(cells)


def chief_grids(entries: Sequence[Score]) -> Iterator[Table]:
    """Yield a small table of each checkpoint: a row for each method, a column for each score, and the best control."""
    by_checkpoint: dict[tuple[str, str], list[Score]] = {}
    for entry in entries:
        by_checkpoint.setdefault((entry.checkpoint, entry.kind), []).append(entry)
    several = len({kind for _, kind in by_checkpoint}) > 1
    for (checkpoint, kind), scores in by_checkpoint.items():
        methods = sorted({name for entry in scores for name in entry.points}, key=_place)
        rows = [(name, *(figure_cell(entry.points.get(name), entry.scale) for entry in scores)) for name in methods]
        controls = [(entry.best_control, entry) for entry in scores]
        if any(best for best, _ in controls):
            best_cells = (
                scaled(entry.controls[best], entry.scale).followed_by(f" ({best})") if best else MISSING
                for best, entry in controls
            )
            rows.append(("best control", *best_cells))
        headings = ("method", *(f"{entry.score} %" if entry.scale == 100 else entry.score for entry in scores))
        yield Table(f"{checkpoint}{f': {kind}' if several else ''}", headings, tuple(rows), checkpoint=checkpoint)


def map_grids(tables: Sequence[Table]) -> list[Table]:
    """Return all scores of all checkpoints, folded, and how maps change."""
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.title.replace("maps,", "Maps,", 1), []).append(replace(table, title=""))
    grids = (grid for title, parts in groups.items() for grid in side_by_side(title, parts))
    return [replace(grid, folded=grid.title.startswith("Maps,")) for grid in grids]


CONTROLS_IN_WORDS = {
    "random": "a random map",
    "centre": "a centred Gaussian",
    "full": "the all-ones map",
    "nothing": "the all-zeros map",
}
LEADS = (("abpc", ""), ("cam_iou", "mask"), ("cam_iou", "box"))

_SHORT = (("abpc", ""), *((f"cam_{score}", "mask") for score in ("pixel_accuracy", "iou", "dice")), ("cam_iou", "box"))
_NOTE = "Controls ignore the image; a lead is over the best of them."
_HEADING = "maps: scores in % and ABPC, higher is better"


def _called(text: str) -> str:
    """Return the method, with the parameters that differ from the published ones, but without the mode."""
    inside = text.partition("(")[2].removesuffix(")").split(",")
    method, *more = [part for part in inside if not part.startswith("mode=")]
    return f"{method} ({', '.join(more)})" if more else method


def lead_in_words(lead: Figure) -> str:
    """Return what a lead's interval says; without one, only that there are too few maps."""
    low, high = lead.low, lead.high
    if not (is_finite(low) and is_finite(high)):
        return f"has too few maps (n = {lead.n}) to tell it from"
    return "beats" if low > 0 else "is behind" if high < 0 else "cannot be distinguished from"


class MapsPresenter(Presenter):
    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        boxes = only_boxes(manifest)
        leads: dict[str, dict[str, list[str]]] = {}
        for metric, mode in LEADS:
            score = score_called(metric, mode, boxes)
            for (condition, name), row in cells.items():
                parts = parts_of(condition) if name == f"{metric}_over_control" else None
                if parts is None or parts[1] != mode:
                    continue
                control = control_of(row)
                method = METHOD_NAMES.get(parts[0].method, parts[0].method)
                if parts[0].options:
                    method += f" ({', '.join(option_texts(parts[0].options))})"
                if parts[0].target == "label":
                    method += " of the label's class"
                odd = f" at threshold {parts[0].threshold:g}" if mode and parts[0].threshold != 0.5 else ""
                verb = f"{lead_in_words(row)} {CONTROLS_IN_WORDS.get(control, control)}"
                leads.setdefault(method, {}).setdefault(verb, []).append(score + odd)
        for method, verbs in leads.items():
            words = {verb: " and ".join(filter(None, [", ".join(some[:-1]), some[-1]])) for verb, some in verbs.items()}
            yield Clause(f"{method} {', '.join(f'{verb} on {scores}' for verb, scores in words.items())}")

    def tables(self, results: Results) -> Iterable[Table]:
        """Yield those of a terminal and a card; the page has those of all checkpoints side by side."""
        for table in map_tables(results, only_boxes(results.manifest)):
            yield replace(table, title=f"{table.checkpoint}: {table.title}", note=_NOTE, places=("terminal", "card"))
        yield from support_tables(results, is_of_maps)

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        """Yield scores of each method, and their leads over controls; on a first page, the IoU with masks, or else with
        boxes, and the ABPC."""
        of_masks = any(parts is not None and parts[1] == "mask" for parts in (parts_of(text) for text, _ in keys))
        for text in dict.fromkeys(text for text, _ in keys):
            parts = parts_of(text)
            if parts is None or parts[0].is_control or parts[0].under:
                continue
            for name, mode in _SHORT:
                metric, lead = metric_in(VOCABULARY, name), metric_in(VOCABULARY, f"{name}_over_control")
                if mode == parts[1] and metric is not None and lead is not None:
                    yield BriefRow(_HEADING, f"{name_of(text, 'table', manifest)}: {metric.word}", text, metric)
                    yield BriefRow(_HEADING, "  – lead over the best control", text, lead)
            if parts[1] != ("box" if of_masks else ""):
                chief = [metric for metric in VOCABULARY.metrics if metric.name == ("cam_iou" if parts[1] else "abpc")]
                yield from (BriefRow("", "", text, metric, FIRST) for metric in chief)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        lines, boxes = finding_lines(results, of_family(self.name)), only_boxes(results.manifest)

        def values() -> dict[str, Any]:
            chief = chief_grids(map_scores(results, boxes, _CHIEF))
            grids = [*chief, *map_grids(map_tables(results, boxes)), *support_grids(results, is_of_maps)]
            if grids and (remarks := note_lines(results, of_family(self.name))):
                grids[0] = replace(grids[0], note=f"{'. '.join(remarks)}.")
            return {"grids": with_flags(grids, lines), "gallery": gallery_uri(results.run)}

        yield Section("maps", "Attribution maps", values, tuple(map_figures(map_scores(results, boxes), looks)))


class ListedAggregator(Aggregator):
    """A family with records of its own. read: the columns that its rows are made of."""

    read: ClassVar[Collection[str]]

    def rows(
        self, condition: str, read: pa.Table, flags: list[Finding], groups: Groups | None = None
    ) -> Iterator[Figure]:
        """Yield the rows of a condition. read: of the samples that could be read. groups: theirs."""
        raise NotImplementedError

    def of_samples(self, side: CheckpointRecords, condition: str, metric: str) -> tuple[pa.Array, Floats]:
        """Return ids and a figure (n,), nan for samples that do not count. Raises RunError without records."""
        read = side.samples(condition, [metric])
        return read.ids, read.columns[metric]

    def summary(self, reading: RecordReader) -> Summary:
        return _ListedSummary(self, reading)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        if metric not in (names := [number.name for number in self.words.metrics if number.paired]):
            raise not_paired(condition, metric, names)
        ids, figures = self.of_samples(side, condition, metric)
        finite = np.isfinite(figures)
        return ids.filter(pa.array(finite)), figures[finite]


class _ListedSummary(Summary):
    def __init__(self, family: ListedAggregator, reading: RecordReader) -> None:
        self.family, self.reading = family, reading

    def add(self, condition: str) -> Iterator[Figure]:
        table, notes = self.reading.joined(self.reading.shards(condition, self.family.read))
        flags = [*self.reading.findings(condition, table), *notes]
        read = readable_rows(table)
        return self.family.rows(condition, read, flags, self.reading.groups(read["sample_id"]))


class ListedPresenter(Presenter):
    """section_title: in sentence case. first: the heading of conditions. chief: metrics of the short table; the first
    is on the first page. counted: whose n stands for a row. signed: changes. optional: columns left out where empty."""

    section_title: ClassVar[str]
    first: ClassVar[str]
    chief: ClassVar[tuple[Metric, ...]]
    counted: ClassVar[Metric]
    signed: ClassVar[tuple[Metric, ...]] = ()
    optional: ClassVar[tuple[Metric, ...]] = ()
    note: ClassVar[str]
    template: ClassVar[str] = "plain"

    def tables(self, results: Sequence[Figure]) -> Sequence[Table]:
        ours = of_family(self.name)
        texts = {text for text in dict.fromkeys(row.condition for row in results) if ours(text)}
        every = by_checkpoint(results, lambda text: text if text in texts else None)
        return [self._table(checkpoint, conditions) for checkpoint, conditions in every.items()]

    def _table(self, checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]]) -> Table:
        names = {name for figures in conditions.values() for name in figures}
        columns = [metric for metric in self.words.metrics if metric.name in names or metric not in self.optional]
        rows = []
        for text, figures in conditions.items():
            n = counted(figures[self.counted.name]) if self.counted.name in figures else count(0)
            cells = (figure_cell(figures.get(m.name), m.scale, sign="+" * (m in self.signed)) for m in columns)
            rows.append((self.words.label(text), n, *cells))
        headings = (self.first, "n", *(metric.short or metric.label for metric in columns))
        title = f"{checkpoint}: {self.section_title[0].lower()}{self.section_title[1:]}"
        return Table(title, headings, tuple(rows), (), self.note, checkpoint=checkpoint).said_once("n")

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterator[BriefRow]:
        texts = dict.fromkeys(text for text, _ in keys)
        for place, metric in enumerate(self.chief):
            heading, places = f"{self.section_title.lower()}: {metric.heading}", SHORT if place else (*SHORT, *FIRST)
            labels = {text: self.words.label(text, "table", manifest) for text in texts}
            yield from (BriefRow(heading, label, text, metric, places) for text, label in labels.items())

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            headline = self.chief[0].short or self.chief[0].label
            grids = side_by_side(self.section_title, tables, headline=headline, note=self.note)
            values = {"grids": with_flags(grids, finding_lines(results, of_family(self.name)))}
            yield Section(self.name.replace(" ", "-"), self.section_title, lambda: values, template=self.template)


def gallery_uri(run: RunFolder) -> str | None:
    """Return the contact sheet of maps as a small data URI; None if there is none."""
    path = run.path / "cams" / "gallery.png"
    refuse_link(path, run.path)
    if not path.is_file():
        return None
    try:
        with open_picture(path) as sheet:
            small = sheet.convert("RGB")
    except Exception as fault:  # anything may stand in place of a gallery
        raise RunError(f"{path}: not a gallery that can be read ({fault}); make it again with robustkit cam") from None
    small.thumbnail((1600, 16000), Image.Resampling.LANCZOS)
    small.save(buffer := io.BytesIO(), "WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
